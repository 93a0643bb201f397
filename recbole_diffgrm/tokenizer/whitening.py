"""PCA with whitening: embeddings to uncorrelated dimensions of equal variance, then to length 1.

The same on every processor (tokenizer/exact.py): the covariance is one of rounded numbers, and points are rounded.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from recbole_diffgrm.errors import UserError
from recbole_diffgrm.files import atomic_write
from recbole_diffgrm.tokenizer.arrays import open_arrays
from recbole_diffgrm.tokenizer.exact import STEP, eigh, power_of_two, to_grid
from recbole_diffgrm.tokenizer.parallel import BLOCK_ROWS, map_blocks


@dataclass(frozen=True)
class Whitening:
    mean: np.ndarray  # [d]
    projection: np.ndarray  # [d, p]; [d, 0] leaves vectors as they are
    step: float = STEP  # points are multiples of it

    @classmethod
    def fit(cls, vectors: np.ndarray, pca_dim: int | None, multiple_of: int = 1) -> "Whitening":
        """To at most `pca_dim` dimensions, a multiple of `multiple_of`; None: no PCA."""
        mean = np.asarray(np.mean(vectors, axis=0, dtype=np.float64))
        if pca_dim is None:
            largest = max(map_blocks(lambda start, stop: np.abs(vectors[start:stop]).max(), len(vectors), BLOCK_ROWS))
            return cls(np.zeros_like(mean), np.zeros((len(mean), 0)), STEP * float(power_of_two(largest)))
        variance, directions = eigh(_covariance(vectors, mean))  # ascending
        variance, directions = variance[::-1], directions[:, ::-1]
        usable = int((variance > 1e-8 * variance[0]).sum())  # the rest is rounding noise that whitening would amplify
        kept = min(pca_dim, usable) // multiple_of * multiple_of
        if kept == 0:
            raise UserError(
                f"sid_num_digits: the embeddings of the training items vary in {usable} dimensions, too few for "
                f"{multiple_of} digits"
            )
        directions = directions[:, :kept]
        strongest = np.abs(directions).argmax(axis=0)
        # The sign of an eigenvector is arbitrary: its largest component is made positive.
        directions = directions * np.sign(directions[strongest, np.arange(kept)])
        return cls(mean, directions / np.sqrt(variance[:kept]), STEP)

    def save(self, path: Path) -> None:
        arrays: dict[str, Any] = {name: np.asarray(value) for name, value in vars(self).items()}
        with atomic_write(path) as file:
            np.savez(file, **arrays)

    @classmethod
    def load(cls, path: Path) -> "Whitening":
        with open_arrays(path) as saved:
            return cls(saved["mean"], saved["projection"], float(saved["step"]))

    @property
    def input_dim(self) -> int:
        return len(self.mean)

    @property
    def dim(self) -> int:
        return self.projection.shape[1] or len(self.mean)

    def apply(self, vectors: np.ndarray) -> np.ndarray:
        """[N, d] -> [N, p] float64; of length 1 unless vectors are left as they are, but for rounding."""
        vectors = np.asarray(vectors, np.float64)
        if self.projection.shape[1] == 0:
            return to_grid(vectors, self.step)
        projected = (vectors - self.mean) @ self.projection
        norm = np.linalg.norm(projected, axis=1, keepdims=True)
        return to_grid(projected / np.where(norm > 0, norm, 1), self.step)


def _covariance(vectors: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """[d, d] of centered vectors. Each dimension is rounded to as many bits of its range as sums have room for."""

    def centered(start: int, stop: int) -> np.ndarray:
        return vectors[start:stop] - mean

    ranges = map_blocks(lambda start, stop: np.abs(centered(start, stop)).max(axis=0), len(vectors), BLOCK_ROWS)
    scale = power_of_two(np.max(ranges, axis=0))  # [d]
    bits = (52 - len(vectors).bit_length()) // 2

    def outer_products(start: int, stop: int) -> np.ndarray:
        rounded = np.rint(centered(start, stop) / scale * 2.0**bits)  # integers: their products are exact
        return rounded.T @ rounded

    total = sum(map_blocks(outer_products, len(vectors), BLOCK_ROWS))
    return total / len(vectors) / 4.0**bits * (scale[:, None] * scale)
