"""What a quantizer is, and the registry of them.

A new one is a subclass of `Quantizer` in a file of this folder and a line in `quantizers/__init__.py`; its `name` is
then a value of `sid_quantizer`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from recbole_diffgrm.errors import UserError
from recbole_diffgrm.tokenizer.parallel import BLOCK_CELLS, map_blocks


class Nearest(NamedTuple):
    codes: np.ndarray  # [B, Q, n] uint16, smallest error first
    errors: np.ndarray  # [B, Q]


class Quantizer(ABC):
    """Turns an item's input into n codes, one per digit: its vector or, where `vectors_from` is None, its item id.

    `transform` maps inputs to points. Codes stand for a point too, and the squared distance between the two is their
    error. The codes of an item must not depend on which other items are encoded with it.
    """

    name: ClassVar[str]  # value of sid_quantizer
    summary: ClassVar[str] = ""  # what it is, for the description of sid_quantizer
    vectors_from: ClassVar[Literal["text", "interactions"] | None] = "text"  # interactions: embedding_sources
    keys: ClassVar[tuple[str, ...]] = ()  # of the configuration; `fit` takes them as further arguments
    resumable: ClassVar[bool] = False  # `fit` takes work_dir, a folder for its checkpoint, and show_progress
    packages: ClassVar[tuple[str, ...]] = ("faiss-cpu", "numpy")  # other versions may give other codes
    num_digits: int  # n
    codebook_size: int  # M
    input_dim: int | None = None  # d, of a vector
    dim: int | None = None  # p, of a point
    cells_per_candidate: int = 8  # numbers that `nearest` holds for one of its candidates: sizes blocks of work

    @classmethod  # noqa: B027 (a hook: not every quantizer needs a check)
    def check(cls, num_vectors: int, codebook_size: int) -> None:
        """Before texts are encoded: raise a UserError where fitting on this many different vectors would fail."""

    @classmethod
    @abstractmethod
    def fit(
        cls, vectors: np.ndarray, num_digits: int, codebook_size: int, pca_dim: int | None, seed: int
    ) -> "Quantizer":
        """From the vectors [N, d] of items that occur in training; [0, 0] where it reads none."""

    @classmethod
    def sample(cls, num_vectors: int, codebook_size: int, seed: int) -> np.ndarray:
        """Which of this many vectors `fit` is given: all, or a random choice where that is enough. Ascending."""
        return np.arange(num_vectors)

    def transform(self, inputs: Any) -> np.ndarray:
        """B inputs -> points [B, ...]"""
        return np.asarray(inputs, np.float64)

    @abstractmethod
    def nearest(self, points: np.ndarray, count: int) -> Nearest:
        """The `count` codes of smallest error for each point (all M^n of them, where there are fewer)."""

    @abstractmethod
    def errors(self, points: np.ndarray, codes: np.ndarray) -> np.ndarray:
        """[B] error of each point's codes [B, n]."""

    @abstractmethod
    def state(self) -> dict[str, np.ndarray]:
        """Plain arrays that `from_state` restores the quantizer from."""

    @classmethod
    @abstractmethod
    def from_state(cls, state: Mapping[str, np.ndarray]) -> "Quantizer": ...

    def encode(self, inputs: Any) -> np.ndarray:
        """N inputs -> codes [N, n] uint16"""
        parts = map_blocks(
            lambda start, stop: self.assign(self.transform(inputs[start:stop])),
            len(inputs),
            max(1, BLOCK_CELLS // self.cells_per_input),
        )
        return np.concatenate(parts) if parts else np.zeros((0, self.num_digits), np.uint16)

    def assign(self, points: np.ndarray) -> np.ndarray:
        """The codes [B, n] that `encode` gives."""
        return self.nearest(points, 1).codes[:, 0]

    @property
    def cells_per_input(self) -> int:
        """Numbers that `assign` holds for one input: sizes blocks of work."""
        return self.num_digits * self.codebook_size


def check_enough_vectors(num_vectors: int, codebook_size: int) -> None:
    """Each code needs a vector that has it."""
    if num_vectors < codebook_size:
        largest = 1 << max(num_vectors, 1).bit_length() - 1
        advice = f"set it to at most {largest}" if largest > 1 else "only random codes need no vectors"
        raise UserError(
            f"sid_codebook_size: {num_vectors:,} different training items are too few for codebooks of "
            f"{codebook_size}: {advice}"
        )


QUANTIZERS: dict[str, type[Quantizer]] = {}


def register(quantizer: type[Quantizer]) -> None:
    QUANTIZERS[quantizer.name] = quantizer
