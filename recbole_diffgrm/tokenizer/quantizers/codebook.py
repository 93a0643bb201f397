"""What quantizers with codebooks share: a sample to train on, whitening, and an error that is a distance to centroids.

Points and centroids are rounded, so that distances are exact (tokenizer/exact.py): an item's codes depend neither on
the processor nor on which other items are encoded with it.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from recbole_diffgrm.tokenizer.parallel import BLOCK_ROWS, map_blocks
from recbole_diffgrm.tokenizer.quantizers.base import Quantizer, check_enough_vectors
from recbole_diffgrm.tokenizer.quantizers.distances import squared_norms
from recbole_diffgrm.tokenizer.whitening import Whitening

NO_STEP = 2.0**-60  # of tokenizers saved before points were rounded: too small to change any
MAX_TRAINING_VECTORS = 65_536  # more than this, and than 64 per centroid, are sampled down


class CodebookQuantizer(Quantizer):
    def __init__(self, whitening: Whitening, codebooks: np.ndarray):
        self.whitening = whitening
        self.codebooks = codebooks  # [n, M, w] float32
        self.num_digits, self.codebook_size, _ = codebooks.shape
        self.input_dim, self.dim = whitening.input_dim, whitening.dim

    @classmethod
    def check(cls, num_vectors: int, codebook_size: int) -> None:
        check_enough_vectors(num_vectors, codebook_size)

    @classmethod
    def sample(cls, num_vectors: int, codebook_size: int, seed: int) -> np.ndarray:
        limit = max(MAX_TRAINING_VECTORS, 64 * codebook_size)
        if num_vectors <= limit:
            return np.arange(num_vectors)
        return np.sort(np.random.default_rng(seed).choice(num_vectors, limit, replace=False))

    @classmethod
    def fit(
        cls,
        vectors: np.ndarray,
        num_digits: int,
        codebook_size: int,
        pca_dim: int | None,
        seed: int,
        **further: Any,
    ) -> "CodebookQuantizer":
        """`further`: what `_train` of the class takes besides."""
        vectors = vectors[cls.sample(len(vectors), codebook_size, seed)]
        cls.check(len({vector.tobytes() for vector in vectors}), codebook_size)
        whitening = Whitening.fit(vectors, pca_dim, multiple_of=num_digits)
        points = map_rows(whitening.apply, vectors)
        trained = cls._train(points, num_digits, codebook_size, whitening.step, seed, **further)
        return cls(whitening, **{name: array.astype(np.float32) for name, array in trained.items()})

    @classmethod
    @abstractmethod
    def _train(
        cls, points: np.ndarray, num_digits: int, codebook_size: int, step: float, seed: int, *_: Any, **further: Any
    ) -> dict[str, np.ndarray]:
        """Whitened points [N, p], multiples of `step` -> `codebooks`, and other arrays that the class is made of."""

    @abstractmethod
    def decode(self, codes: np.ndarray) -> np.ndarray:
        """[B, n] -> points [B, p] float64"""

    def transform(self, inputs: np.ndarray) -> np.ndarray:
        """[B, d] -> [B, p] float64"""
        return self.whitening.apply(inputs)

    def errors(self, points: np.ndarray, codes: np.ndarray) -> np.ndarray:
        return squared_norms(points - self.decode(codes))

    def state(self) -> dict[str, np.ndarray]:
        whitening = {name: np.asarray(value) for name, value in vars(self.whitening).items()}
        return whitening | {"codebooks": self.codebooks}

    @classmethod
    def from_state(cls, state: Mapping[str, np.ndarray]) -> "CodebookQuantizer":
        arrays = dict(state)
        step = float(arrays.pop("step", NO_STEP))
        return cls(Whitening(arrays.pop("mean"), arrays.pop("projection"), step), **arrays)

    @property
    def cells_per_input(self) -> int:
        return max(self.num_digits * self.codebook_size, self.codebooks.shape[2])


def map_rows(function: Callable[[np.ndarray], np.ndarray], rows: np.ndarray) -> np.ndarray:
    """function(rows), block by block."""
    return np.concatenate(map_blocks(lambda start, stop: function(rows[start:stop]), len(rows), BLOCK_ROWS))
