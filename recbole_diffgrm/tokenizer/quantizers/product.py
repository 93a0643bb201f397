"""Product quantization: each digit encodes a slice of the vector (pq), after a learned rotation (opq).

opq is Parallel Semantic Encoding (PSE), Sec. 3.2 of the paper: digits that do not depend on each other.
"""

from functools import partial

import numpy as np

from recbole_diffgrm.errors import UserError
from recbole_diffgrm.tokenizer.exact import nearest_orthogonal, to_grid
from recbole_diffgrm.tokenizer.parallel import BLOCK_ROWS, map_blocks
from recbole_diffgrm.tokenizer.quantizers.base import Nearest
from recbole_diffgrm.tokenizer.quantizers.codebook import CodebookQuantizer, map_rows
from recbole_diffgrm.tokenizer.quantizers.distances import cheapest_sums, squared_distances
from recbole_diffgrm.tokenizer.quantizers.kmeans import improve, kmeans, move
from recbole_diffgrm.tokenizer.whitening import Whitening

ROTATIONS = 50  # of opq, one after the other
PULL = 2.0**-8  # towards the last rotation, next to the largest one away from it: decides what the points leave open


class ProductQuantizer(CodebookQuantizer):
    """codebooks [n, M, p / n]"""

    name = "pq"
    summary = "product quantization, a digit for each slice of the vector"

    @classmethod
    def _train(
        cls, points: np.ndarray, num_digits: int, codebook_size: int, step: float, seed: int
    ) -> dict[str, np.ndarray]:
        slices = _cut(points, num_digits)
        return {"codebooks": np.stack([kmeans(part, codebook_size, step, seed) for part in slices])}

    def assign(self, points: np.ndarray) -> np.ndarray:
        """The nearest centroid of each slice."""
        return self._distances(points).argmin(axis=2).astype(np.uint16)

    def nearest(self, points: np.ndarray, count: int) -> Nearest:
        return cheapest_sums(self._distances(points), count)

    def decode(self, codes: np.ndarray) -> np.ndarray:
        slices = [codebook[codes[:, k]] for k, codebook in enumerate(self.codebooks.astype(np.float64))]
        return np.concatenate(slices, axis=1)

    def _distances(self, points: np.ndarray) -> np.ndarray:
        """[B, p] -> [B, n, M] squared distance of each slice to each centroid."""
        slices = points.reshape(len(points), self.num_digits, -1)
        codebooks = self.codebooks.astype(np.float64)
        return np.stack([squared_distances(slices[:, k], codebooks[k]) for k in range(self.num_digits)], axis=1)


class OptimizedProductQuantizer(ProductQuantizer):
    """With the rotation after which slices are quantized with the least error."""

    name = "opq"
    summary = "pq after a learned rotation: the paper's PSE, Sec. 3.2"

    def __init__(self, whitening: Whitening, codebooks: np.ndarray, rotation: np.ndarray):
        super().__init__(whitening, codebooks)
        self.rotation = rotation  # [p, p] float32

    @classmethod
    def _train(
        cls, points: np.ndarray, num_digits: int, codebook_size: int, step: float, seed: int
    ) -> dict[str, np.ndarray]:
        """Codebooks for the rotation and the rotation for the codebooks, in turns (Ge et al., CVPR 2013)."""
        rotation = np.eye(points.shape[1])
        slices = _cut(points, num_digits)
        codebooks = [kmeans(part, codebook_size, step, seed) for part in slices]
        for _ in range(ROTATIONS):
            moved = [move(part, codebook, step) for part, codebook in zip(slices, codebooks)]
            codebooks = [codebook for _, codebook in moved]
            decoded = np.concatenate([codebook[code] for code, codebook in moved], axis=1)
            rotation = _best_rotation(points, decoded, rotation)
            slices = _cut(map_rows(partial(_rotate, rotation=rotation, step=step), points), num_digits)
        codebooks = [improve(part, codebook, step) for part, codebook in zip(slices, codebooks)]
        return {"codebooks": np.stack(codebooks), "rotation": rotation}

    def transform(self, inputs: np.ndarray) -> np.ndarray:
        return _rotate(super().transform(inputs), self.rotation, self.whitening.step)

    def state(self) -> dict[str, np.ndarray]:
        return super().state() | {"rotation": self.rotation}


def _cut(points: np.ndarray, num_digits: int) -> list[np.ndarray]:
    """[N, p] -> n times [N, p / n]"""
    dim = points.shape[1]
    if dim % num_digits:
        raise UserError(
            f"sid_pca_dim: embeddings of {dim} dimensions cannot be cut into {num_digits} equal slices; "
            "set it to a number"
        )
    return [np.ascontiguousarray(part) for part in np.split(points, num_digits, axis=1)]


def _rotate(points: np.ndarray, rotation: np.ndarray, step: float) -> np.ndarray:
    return to_grid(points @ rotation.astype(np.float64), step)


def _best_rotation(points: np.ndarray, decoded: np.ndarray, last: np.ndarray) -> np.ndarray:
    """The one that brings points nearest to what their codes stand for (orthogonal Procrustes)."""
    parts = map_blocks(lambda start, stop: points[start:stop].T @ decoded[start:stop], len(points), BLOCK_ROWS)
    product = np.asarray(sum(parts))
    size = np.abs(product).sum(axis=0).max() or 1.0
    return nearest_orthogonal(product + PULL * size * last)
