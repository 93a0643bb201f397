"""PCA with whitening: embeddings to uncorrelated dimensions of equal variance, then to length 1."""

from dataclasses import dataclass

import numpy as np

from recbole_diffgrm.errors import UserError
from recbole_diffgrm.tokenizer.parallel import BLOCK_ROWS, map_blocks, one_thread


@dataclass(frozen=True)
class Whitening:
    mean: np.ndarray  # [d]
    projection: np.ndarray  # [d, p]; [d, 0] leaves vectors as they are

    @classmethod
    def fit(cls, vectors: np.ndarray, pca_dim: int | None, multiple_of: int = 1) -> "Whitening":
        """To at most `pca_dim` dimensions, a multiple of `multiple_of`; None: no PCA."""
        mean = np.asarray(np.mean(vectors, axis=0, dtype=np.float64))
        if pca_dim is None:
            return cls(np.zeros_like(mean), np.zeros((len(mean), 0)))

        def outer_products(start: int, stop: int) -> np.ndarray:
            centered = vectors[start:stop] - mean
            return centered.T @ centered

        covariance = sum(map_blocks(outer_products, len(vectors), BLOCK_ROWS)) / len(vectors)
        with one_thread():
            variance, directions = np.linalg.eigh(covariance)  # ascending
        variance, directions = variance[::-1], directions[:, ::-1]
        usable = int((variance > 1e-10 * variance[0]).sum())  # the rest is rounding noise that whitening would amplify
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
        return cls(mean, directions / np.sqrt(variance[:kept]))

    @property
    def input_dim(self) -> int:
        return len(self.mean)

    @property
    def dim(self) -> int:
        return self.projection.shape[1] or len(self.mean)

    def apply(self, vectors: np.ndarray) -> np.ndarray:
        """[N, d] -> [N, p] float64; of length 1 unless vectors are left as they are."""
        vectors = np.asarray(vectors, np.float64)
        if self.projection.shape[1] == 0:
            return vectors
        projected = (vectors - self.mean) @ self.projection
        norm = np.linalg.norm(projected, axis=1, keepdims=True)
        return projected / np.where(norm > 0, norm, 1)
