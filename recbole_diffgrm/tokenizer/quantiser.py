"""Vectors to codes: PCA, then product quantisation (with or without a learned rotation) or residual k-means.

Codebooks are trained by faiss in one thread. Everything after that is done in float64, so that an item's codes do not
depend on which other items are quantised with it.
"""

from dataclasses import dataclass, fields
from typing import NamedTuple

import faiss
import numpy as np

from recbole_diffgrm.errors import UserError
from recbole_diffgrm.tokenizer.blocks import BLOCK_CELLS, map_blocks, one_thread

TRAINING_POINTS = 65_536  # more training vectors than these, and than 64 a code, are sampled down
KMEANS_ROUNDS = 25
ROWS = 8192  # in a block


class Nearest(NamedTuple):
    codes: np.ndarray  # [B, Q, n] uint16, cheapest first
    error: np.ndarray  # [B, Q] squared distance between the vector and what the codes stand for


@dataclass(frozen=True)
class Quantiser:
    """Plain arrays. A vector x becomes codes by: project and normalise, rotate, nearest centroids."""

    residual: np.ndarray  # [] bool: codebooks quantise what the ones before left over, not a slice each
    mean: np.ndarray  # [d]
    projection: np.ndarray  # [d, p] PCA with whitening; [d, 0] leaves the vectors as they are
    rotation: np.ndarray  # [p, p]; [0, 0] for none
    codebooks: np.ndarray  # [n, M, width]: width p / n, or p where residual

    @property
    def digits(self) -> int:
        return self.codebooks.shape[0]

    @property
    def dimensions(self) -> int:
        """p, of what is quantised."""
        return self.projection.shape[1] or len(self.mean)

    def arrays(self) -> dict[str, np.ndarray]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def codes(self, vectors: np.ndarray) -> np.ndarray:
        """[N, d] -> [N, n] uint16, the nearest centroid of each digit."""
        _, size, width = self.codebooks.shape
        parts = map_blocks(
            lambda start, stop: self._codes(self.prepare(vectors[start:stop])),
            len(vectors),
            max(1, BLOCK_CELLS // max(size * self.digits, width)),
        )
        return np.concatenate(parts) if parts else np.zeros((0, self.digits), np.uint16)

    def errors_of(self, prepared: np.ndarray, codes: np.ndarray) -> np.ndarray:
        """[B] squared distance between each prepared vector and what its codes stand for."""
        return _squared(prepared - self._decode(codes))

    def nearest(self, prepared: np.ndarray, count: int) -> Nearest:
        """The `count` nearest codes of each prepared vector (all of them, where there are fewer)."""
        if self.residual:
            return self._beam(prepared, count)
        return cheapest_sums(self._distances(prepared), count)

    def prepare(self, vectors: np.ndarray) -> np.ndarray:
        """[B, d] -> [B, p] float64: what is quantised."""
        return _rotate(project(vectors, self.mean, self.projection), self.rotation)

    def _distances(self, prepared: np.ndarray) -> np.ndarray:
        """[B, p] -> [B, n, M] squared distance of each slice to each centroid."""
        slices = prepared.reshape(len(prepared), self.digits, -1)
        books = self.codebooks.astype(np.float64)
        return np.stack([_squared_distances(slices[:, k], books[k]) for k in range(self.digits)], axis=1)

    def _codes(self, prepared: np.ndarray) -> np.ndarray:
        if not self.residual:
            return self._distances(prepared).argmin(axis=2).astype(np.uint16)
        rest, codes = prepared, []
        for book in self.codebooks.astype(np.float64):
            code = _squared_distances(rest, book).argmin(axis=1)
            rest = rest - book[code]
            codes.append(code)
        return np.stack(codes, axis=1).astype(np.uint16)

    def _decode(self, codes: np.ndarray) -> np.ndarray:
        """[B, n] -> [B, p]"""
        parts = [book[codes[:, k]] for k, book in enumerate(self.codebooks.astype(np.float64))]
        return np.sum(parts, axis=0) if self.residual else np.concatenate(parts, axis=1)

    def _beam(self, prepared: np.ndarray, count: int) -> Nearest:
        """Residual codes cannot be ranked digit by digit: keep the `count` best beginnings at each digit."""
        rows = np.arange(len(prepared))[:, None]
        rest = prepared[:, None, :]  # [B, Q, p]
        codes = np.zeros((len(prepared), 1, 0), np.uint16)
        for book in self.codebooks.astype(np.float64):
            size, width = book.shape
            error = _squared_distances(rest.reshape(-1, width), book).reshape(len(prepared), -1)  # [B, Q * M]
            best, error = _smallest(error, count)
            branch, code = best // size, best % size
            rest = rest[rows, branch] - book[code]
            codes = np.concatenate([codes[rows, branch], code[..., None].astype(np.uint16)], axis=2)
        return Nearest(codes, error)


def cheapest_sums(costs: np.ndarray, count: int) -> Nearest:
    """Costs [B, n, M] of each code of each digit -> the `count` codes with the smallest sums, in order.

    Digits are added one at a time. Of two sorted lists only sums of the i-th and j-th with (i + 1) (j + 1) <= count can
    be among the `count` smallest, since so many are no larger.
    """
    rows, digits, _ = costs.shape
    codes = np.zeros((rows, 1, 0), np.uint16)
    total = np.zeros((rows, 1))
    for digit in range(digits):
        order, added = _smallest(costs[:, digit], count)  # [B, T]
        left, right = _pairs(total.shape[1], order.shape[1], count)
        sums = total[:, left] + added[:, right]
        best, total = _smallest(sums, count)  # [B, Q]
        chosen = np.take_along_axis(codes, left[best][..., None], axis=1)
        code = np.take_along_axis(order, right[best], axis=1).astype(np.uint16)
        codes = np.concatenate([chosen, code[..., None]], axis=2)
    return Nearest(codes, total)


def _smallest(values: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Places and values [B, count] of the smallest of each row, in order."""
    if count < values.shape[1]:
        place = np.argpartition(values, count - 1, axis=1)[:, :count]
    else:
        place = np.broadcast_to(np.arange(values.shape[1]), values.shape)
    found = np.take_along_axis(values, place, axis=1)
    order = np.argsort(found, axis=1, kind="stable")
    return np.take_along_axis(place, order, axis=1), np.take_along_axis(found, order, axis=1)


def _pairs(left: int, right: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    widths = np.minimum(count // np.arange(1, left + 1), right)
    i = np.repeat(np.arange(left), widths)
    j = np.arange(len(i)) - np.repeat(np.cumsum(widths) - widths, widths)
    return i, j


def fit(kind: str, vectors: np.ndarray, digits: int, size: int, pca_dim: int | None, seed: int) -> Quantiser:
    """Train on `vectors` [N, d], those of the items that occur in training."""
    enough = max(TRAINING_POINTS, 64 * size)
    if len(vectors) > enough:
        vectors = vectors[np.sort(np.random.default_rng(seed).choice(len(vectors), enough, replace=False))]
    check_size(len({vector.tobytes() for vector in vectors}), size)
    mean, projection = whitening(vectors, digits, pca_dim)
    points = _in_blocks(lambda part: project(part, mean, projection), vectors)
    if kind == "rq_kmeans":
        return Quantiser(np.array(True), mean, projection, np.zeros((0, 0)), _train_rq(points, digits, size, seed))
    if points.shape[1] % digits:
        raise UserError(
            f"sid_pca_dim: embeddings of {points.shape[1]} dimensions cannot be cut into {digits} equal slices; "
            "set it to a number"
        )
    rotation = np.zeros((0, 0))
    if kind == "opq":
        rotation = _train_rotation(points, digits, size, seed)
        points = _in_blocks(lambda part: _rotate(part, rotation), points)
    return Quantiser(np.array(False), mean, projection, rotation, _train_pq(points, digits, size, seed))


def check_size(distinct: int, size: int) -> None:
    """Codebooks of `size` codes need as many different training vectors."""
    if distinct < size:
        fits = 1 << max(distinct, 1).bit_length() - 1
        advice = f"set sid_codes to {fits} at most" if fits > 1 else "there are too few for any quantiser but random"
        raise UserError(f"sid_codes: {distinct:,} different training items are too few for {size} codes: {advice}")


def whitening(vectors: np.ndarray, digits: int, pca_dim: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Mean [d] and projection [d, p] to p uncorrelated dimensions of variance 1, p a multiple of `digits`."""
    mean = np.mean(vectors, axis=0, dtype=np.float64)
    if pca_dim is None:
        return np.zeros_like(mean), np.zeros((len(mean), 0))

    def products(start: int, stop: int) -> np.ndarray:
        centred = vectors[start:stop] - mean
        return centred.T @ centred

    covariance = sum(map_blocks(products, len(vectors), ROWS)) / len(vectors)
    with one_thread():
        variance, directions = np.linalg.eigh(covariance)  # ascending
    variance, directions = variance[::-1], directions[:, ::-1]
    usable = int((variance > 1e-10 * variance[0]).sum())  # the rest is rounding noise, which whitening would blow up
    kept = min(pca_dim, usable) // digits * digits
    if kept == 0:
        raise UserError(
            f"sid_digits: the embeddings of the training items vary in {usable} dimensions, too few for {digits} digits"
        )
    directions = directions[:, :kept]
    strongest = np.abs(directions).argmax(axis=0)
    directions = directions * np.sign(directions[strongest, np.arange(kept)])  # an eigenvector has no sign of its own
    return mean, directions / np.sqrt(variance[:kept])


def _in_blocks(function, rows: np.ndarray) -> np.ndarray:
    """function on blocks of rows, as float32 for faiss."""
    return np.concatenate(map_blocks(lambda start, stop: function(rows[start:stop]).astype("f"), len(rows), ROWS))


def project(vectors: np.ndarray, mean: np.ndarray, projection: np.ndarray) -> np.ndarray:
    vectors = np.asarray(vectors, np.float64)
    if projection.shape[1] == 0:
        return vectors
    projected = (vectors - mean) @ projection
    norm = np.linalg.norm(projected, axis=1, keepdims=True)
    return projected / np.where(norm > 0, norm, 1)


def _rotate(points: np.ndarray, rotation: np.ndarray) -> np.ndarray:
    return points @ rotation.astype(np.float64) if len(rotation) else points


def _train_rotation(points: np.ndarray, digits: int, size: int, seed: int) -> np.ndarray:
    """OPQ: the rotation [p, p] after which slices are quantised with the least error."""
    dimensions = points.shape[1]
    quantiser = _product_quantiser(dimensions, digits, size, seed)
    transform = faiss.OPQMatrix(dimensions, digits)
    transform.pq = quantiser
    with one_thread():
        transform.train(points)
    return faiss.vector_to_array(transform.A).reshape(dimensions, dimensions).T.copy()


def _train_pq(points: np.ndarray, digits: int, size: int, seed: int) -> np.ndarray:
    quantiser = _product_quantiser(points.shape[1], digits, size, seed)
    with one_thread():
        quantiser.train(points)
    return faiss.vector_to_array(quantiser.centroids).reshape(digits, size, -1)


def _product_quantiser(dimensions: int, digits: int, size: int, seed: int) -> faiss.ProductQuantizer:
    quantiser = faiss.ProductQuantizer(dimensions, digits, size.bit_length() - 1)
    quantiser.cp.seed = seed
    quantiser.cp.niter = KMEANS_ROUNDS
    quantiser.cp.min_points_per_centroid = 1  # fewer are allowed; faiss would only warn
    quantiser.cp.max_points_per_centroid = TRAINING_POINTS  # sampled already
    return quantiser


def _train_rq(points: np.ndarray, digits: int, size: int, seed: int) -> np.ndarray:
    rest, books = points, []
    for _ in range(digits):
        kmeans = faiss.Kmeans(
            points.shape[1],
            size,
            niter=KMEANS_ROUNDS,
            seed=seed,
            min_points_per_centroid=1,
            max_points_per_centroid=TRAINING_POINTS,
        )
        with one_thread():
            kmeans.train(rest)
            _, nearest = kmeans.index.search(rest, 1)
        books.append(kmeans.centroids)
        rest = rest - kmeans.centroids[nearest[:, 0]]
    return np.stack(books)


def _squared_distances(points: np.ndarray, centroids: np.ndarray) -> np.ndarray:
    """[B, w], [M, w] -> [B, M]"""
    return _squared(points)[:, None] - 2 * (points @ centroids.T) + _squared(centroids)


def _squared(rows: np.ndarray) -> np.ndarray:
    return np.einsum("bw,bw->b", rows, rows)
