"""Random codes (random), a hash of the item id: a baseline without semantics, and for items that have no vector."""

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

from recbole_diffgrm.tokenizer.quantizers.base import Nearest, Quantizer
from recbole_diffgrm.tokenizer.quantizers.distances import cheapest_sums

ERROR_SCALE = 1e-9  # next to distances between vectors: which codes such an item moves to must cost others nothing


class RandomCodes(Quantizer):
    """Every code of every digit costs a random number; an item has the codes that cost least."""

    name = "random"
    summary = "a hash of the item id"
    vectors_from = None

    def __init__(self, num_digits: int, codebook_size: int, seed: int):
        self.num_digits = num_digits
        self.codebook_size = codebook_size
        self.seed = seed

    @classmethod
    def fit(
        cls, vectors: np.ndarray, num_digits: int, codebook_size: int, pca_dim: int | None, seed: int
    ) -> "RandomCodes":
        return cls(num_digits, codebook_size, seed)

    def transform(self, inputs: Sequence[str]) -> np.ndarray:
        """B item ids -> costs [B, n, M], uniform in 0..1; those of an item depend on its id and the seed only."""
        start = np.array([_hash(str(item), self.seed) for item in inputs], np.uint64)
        with np.errstate(over="ignore"):
            count = np.arange(1, self.num_digits * self.codebook_size + 1, dtype=np.uint64)
            bits = _split_mix(start[:, None] + count)
        return ((bits >> np.uint64(11)) * 2.0**-53).reshape(-1, self.num_digits, self.codebook_size)

    def assign(self, points: np.ndarray) -> np.ndarray:
        return points.argmin(axis=2).astype(np.uint16)

    def nearest(self, points: np.ndarray, count: int) -> Nearest:
        codes, costs = cheapest_sums(points, count)
        return Nearest(codes, costs * ERROR_SCALE)

    def errors(self, points: np.ndarray, codes: np.ndarray) -> np.ndarray:
        """None: without a vector no code is wrong."""
        return np.zeros(len(points))

    def state(self) -> dict[str, np.ndarray]:
        return {name: np.array(value) for name, value in vars(self).items()}

    @classmethod
    def from_state(cls, state: Mapping[str, np.ndarray]) -> "RandomCodes":
        return cls(**{name: int(value) for name, value in state.items()})


def _hash(item: str, seed: int) -> int:
    content = item.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(content, digest_size=8, key=seed.to_bytes(8, "big")).digest(), "big")


def _split_mix(x: np.ndarray) -> np.ndarray:
    """SplitMix64: counters to uniform bits."""
    x = x * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
