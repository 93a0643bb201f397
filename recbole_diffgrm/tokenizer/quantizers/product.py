"""Product quantization: each digit encodes a slice of the vector (pq), after a learned rotation (opq).

opq is Parallel Semantic Encoding (PSE), Sec. 3.2 of the paper: digits that do not depend on each other.
"""

import faiss
import numpy as np

from recbole_diffgrm.errors import UserError
from recbole_diffgrm.tokenizer.parallel import one_thread
from recbole_diffgrm.tokenizer.quantizers.base import Nearest
from recbole_diffgrm.tokenizer.quantizers.codebook import (
    KMEANS_ITERATIONS,
    MAX_TRAINING_VECTORS,
    CodebookQuantizer,
    map_rows,
)
from recbole_diffgrm.tokenizer.quantizers.distances import cheapest_sums, squared_distances
from recbole_diffgrm.tokenizer.whitening import Whitening


class ProductQuantizer(CodebookQuantizer):
    """codebooks [n, M, p / n]"""

    name = "pq"
    summary = "product quantization, a digit for each slice of the vector"

    @classmethod
    def _train(cls, points: np.ndarray, num_digits: int, codebook_size: int, seed: int) -> dict[str, np.ndarray]:
        quantizer = _faiss_quantizer(points.shape[1], num_digits, codebook_size, seed)
        with one_thread():
            quantizer.train(points)
        return {"codebooks": faiss.vector_to_array(quantizer.centroids).reshape(num_digits, codebook_size, -1)}

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
    def _train(cls, points: np.ndarray, num_digits: int, codebook_size: int, seed: int) -> dict[str, np.ndarray]:
        dim = points.shape[1]
        if len(points) < dim:  # faiss would write beyond its memory
            raise UserError(
                f"sid_pca_dim: opq cannot learn a rotation of {dim} dimensions from {len(points)} training items; set "
                f"it to at most {len(points)}, or use sid_quantizer: pq"
            )
        quantizer = _faiss_quantizer(dim, num_digits, codebook_size, seed)
        transform = faiss.OPQMatrix(dim, num_digits)
        transform.pq = quantizer  # faiss keeps a bare pointer: `quantizer` has to stay alive until it is trained
        with one_thread():
            transform.train(points)
        rotation = faiss.vector_to_array(transform.A).reshape(dim, dim).T.copy()
        rotated = map_rows(lambda part: _rotate(part, rotation), points)
        return super()._train(rotated, num_digits, codebook_size, seed) | {"rotation": rotation}

    def transform(self, inputs: np.ndarray) -> np.ndarray:
        return _rotate(super().transform(inputs), self.rotation)

    def state(self) -> dict[str, np.ndarray]:
        return super().state() | {"rotation": self.rotation}


def _rotate(points: np.ndarray, rotation: np.ndarray) -> np.ndarray:
    return points @ rotation.astype(np.float64)


def _faiss_quantizer(dim: int, num_digits: int, codebook_size: int, seed: int) -> faiss.ProductQuantizer:
    if dim % num_digits:
        raise UserError(
            f"sid_pca_dim: embeddings of {dim} dimensions cannot be cut into {num_digits} equal slices; "
            "set it to a number"
        )
    quantizer = faiss.ProductQuantizer(dim, num_digits, codebook_size.bit_length() - 1)
    quantizer.cp.seed = seed
    quantizer.cp.niter = KMEANS_ITERATIONS
    quantizer.cp.min_points_per_centroid = 1  # fewer are allowed; faiss would only warn
    quantizer.cp.max_points_per_centroid = MAX_TRAINING_VECTORS  # sampled already
    return quantizer
