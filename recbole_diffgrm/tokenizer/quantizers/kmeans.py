"""k-means in exact arithmetic (tokenizer/exact.py): the same centroids on every processor.

faiss searches the nearest centroids in float32; where the two nearest are too close for it to tell, exact distances
decide. Centroids are means, rounded to the grid of the points.
"""

import faiss
import numpy as np

from recbole_diffgrm.tokenizer.exact import to_grid
from recbole_diffgrm.tokenizer.parallel import BLOCK_CELLS
from recbole_diffgrm.tokenizer.quantizers.distances import squared_distances, squared_norms

ITERATIONS = 25
SPLIT = 2.0**-6  # how far the halves of a centroid are from it, relative to its values
FLOAT32_ERROR = 2.0**-21  # four times the bound of the error of a distance per dimension, relative to squared norms


def kmeans(points: np.ndarray, num_centroids: int, step: float, seed: int) -> np.ndarray:
    """[N, w] multiples of `step` -> [M, w], likewise. Starts at different random points."""
    start = np.random.default_rng(seed).permutation(len(points))[:num_centroids]
    return improve(points, points[start], step)


def improve(points: np.ndarray, centroids: np.ndarray, step: float) -> np.ndarray:
    """Until they stay where they are, or iterations are used up."""
    for _ in range(ITERATIONS):
        _, moved = move(points, centroids, step)
        if (moved == centroids).all():
            break
        centroids = moved
    return centroids


def move(points: np.ndarray, centroids: np.ndarray, step: float) -> tuple[np.ndarray, np.ndarray]:
    """One of Lloyd's iterations: each point's nearest centroid [N], and the means [M, w] of the points with each."""
    from scipy.sparse import csr_matrix  # takes long to import: a wrong command is answered before

    code = nearest_centroid(points, centroids)
    count = np.bincount(code, minlength=len(centroids))
    member = csr_matrix((np.ones(len(code)), code, np.arange(len(code) + 1)), shape=(len(code), len(count)))
    moved = to_grid((member.T @ points) / np.maximum(count, 1)[:, None], step)
    unused = np.flatnonzero(count == 0).tolist()
    if unused:
        error = np.bincount(code, squared_norms(points - moved[code]), len(centroids))
        for number in unused:
            _split(moved, error, number, step)
    return code, moved


def _split(centroids: np.ndarray, error: np.ndarray, unused: int, step: float) -> None:
    """The centroid with the largest error shares its points with the unused one."""
    worst = int(error.argmax())
    center = centroids[worst].copy()
    offset = np.where(np.abs(center) * SPLIT < step, step, center * SPLIT) * np.resize([1, -1], len(center))
    centroids[unused], centroids[worst] = to_grid(center + offset, step), to_grid(center - offset, step)
    error[[unused, worst]] = error[worst] / 2


def nearest_centroid(points: np.ndarray, centroids: np.ndarray) -> np.ndarray:
    """[N], the first one of those that are equally near."""
    index = faiss.IndexFlatL2(centroids.shape[1])
    index.add(centroids.astype(np.float32))
    distance, nearest = index.search(points.astype(np.float32), 2)
    code = nearest[:, 0].copy()
    tolerance = FLOAT32_ERROR * (points.shape[1] + 4) * (squared_norms(points) + squared_norms(centroids).max())
    with np.errstate(invalid="ignore"):  # float32 may overflow: then exact distances decide, too
        close = np.flatnonzero(~(distance[:, 1] - distance[:, 0] > tolerance))
    at_once = max(1, BLOCK_CELLS // len(centroids))
    for start in range(0, len(close), at_once):
        rows = close[start : start + at_once]
        code[rows] = squared_distances(points[rows], centroids).argmin(axis=1)
    return code
