"""k-means against slow references and against faiss's own."""

import faiss
import numpy as np

from recbole_diffgrm.tokenizer.exact import STEP, to_grid
from recbole_diffgrm.tokenizer.quantizers.kmeans import kmeans, move, nearest_centroid
from tests.tokenizer.conftest import correlated


def points(count: int, dim: int = 8, seed: int = 0) -> np.ndarray:
    vectors = correlated(count, dim, seed)
    return to_grid(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


def nearest_in_integers(rows: np.ndarray, centroids: np.ndarray) -> list[int]:
    """One by one, in Python's integers; the first of equally near ones."""
    grid = [[int(value) for value in row] for row in rows / STEP]
    centers = [[int(value) for value in row] for row in centroids / STEP]
    distances = [[sum((a - b) ** 2 for a, b in zip(row, center)) for center in centers] for row in grid]
    return [of_row.index(min(of_row)) for of_row in distances]


def test_ties_and_near_ties_are_decided_exactly():
    rows = points(300)
    centroids = np.concatenate([points(6, seed=1), points(6, seed=1) + [STEP, *[0] * 7], points(6, seed=1)])
    centroids = to_grid(centroids[np.random.default_rng(0).permutation(18)])
    assert nearest_centroid(rows, centroids).tolist() == nearest_in_integers(rows, centroids)
    assert nearest_centroid(np.zeros((3, 8)), centroids[[0, 0]]).tolist() == [0, 0, 0]


def test_a_step_moves_centroids_to_means():
    rows, start = points(200), points(5, seed=1)
    code, moved = move(rows, start, STEP)
    assert code.tolist() == nearest_in_integers(rows, start)
    for number in range(5):
        assert np.abs(moved[number] - rows[code == number].mean(axis=0)).max() <= STEP


def test_unused_codes_are_used_again():
    rows = points(200)
    far = np.concatenate([rows[:2], np.full((3, 8), 9.0)])
    code, moved = move(rows, far, STEP)
    assert set(code.tolist()) == {0, 1}
    assert len(set(nearest_centroid(rows, moved).tolist())) > 2


def test_error_is_that_of_faiss():
    rows = points(3000, 16)
    centroids = kmeans(rows, 32, STEP, seed=0)
    error = ((rows - centroids[nearest_centroid(rows, centroids)]) ** 2).sum()
    theirs = faiss.Kmeans(16, 32, niter=25, seed=0)
    assert error < 1.01 * theirs.train(rows.astype(np.float32))
