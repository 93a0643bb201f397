"""Exact arithmetic against numpy's, and semantic IDs on emulated processors."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from recbole_diffgrm.tokenizer import exact
from tests.conftest import ROOT
from tests.tokenizer.conftest import correlated

# Chooses old code paths of torch, oneDNN, MKL, OpenBLAS, faiss and numpy.
OLD_PROCESSOR = {
    "ATEN_CPU_CAPABILITY": "default",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "MKL_CBWR": "COMPATIBLE",
    "OPENBLAS_CORETYPE": "Nehalem",
    "FAISS_OPT_LEVEL": "generic",
    "NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX512_ICL AVX512_SPR",
    "OMP_NUM_THREADS": "2",
}

DIGESTS = """
import hashlib, json
import numpy as np
from recbole_diffgrm.tokenizer import text_encoder
from recbole_diffgrm.tokenizer.item_codes import encode_items, resolve_collisions
from recbole_diffgrm.tokenizer.embeddings import ItemVectors
from recbole_diffgrm.tokenizer.quantizers import QUANTIZERS
from tests.tokenizer.conftest import correlated

def digest(array):
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()

vectors = correlated(3000, 48)
third = vectors / np.float64(3)
digests = {"numpy": digest(third[:48] @ third[48:96])}
items = ItemVectors(np.arange(3000).astype(str), np.arange(3000), vectors)
settings = {"sid_num_digits": 4, "sid_codebook_size": 16, "sid_seed": 1, "sid_collisions": "reassign"}
for name, pca_dim in (("opq", 32), ("pq", 48), ("rq_kmeans", 32), ("rq_kmeans", None)):
    quantizer = QUANTIZERS[name].fit(vectors, 4, 16, pca_dim, 1)
    for part, array in quantizer.state().items():
        digests[f"{name} {pca_dim} {part}"] = digest(array)
    codes = encode_items(settings, quantizer, items)
    digests[f"{name} {pca_dim} sids"] = digest(resolve_collisions(settings, quantizer, items, codes, codes[:0]))
texts = [f"Film {i}: " + "the sea, a robot and its friends " * (i % 4) for i in range(40)]
model = text_encoder.load("bundled", "cpu", False)
digests["encoder"] = digest(text_encoder.encode(model, texts))
digests["encoder, one by one"] = digest(np.concatenate([text_encoder.encode(model, [text]) for text in texts[:8]]))
digests["encoder, in a batch"] = digest(text_encoder.encode(model, texts)[:8])
print(json.dumps(digests))
"""


@pytest.mark.slow
def test_other_processors_and_threads_make_the_same_ids():
    def run(**environment: str) -> dict[str, str]:
        command = [sys.executable, "-c", DIGESTS]
        done = subprocess.run(
            command, cwd=ROOT, env=os.environ | environment, check=True, stdout=subprocess.PIPE, text=True
        )
        return json.loads(done.stdout.splitlines()[-1])

    native, old = run(OMP_NUM_THREADS="1"), run(**OLD_PROCESSOR)
    assert native.pop("numpy") != old.pop("numpy")  # it is another one
    assert native == old
    assert native["encoder, one by one"] == native["encoder, in a batch"]


@pytest.mark.parametrize("size", [1, 2, 3, 40])
def test_eigh(size):
    points = correlated(100, size).astype(float)
    matrix = points.T @ points
    values, vectors = exact.eigh(matrix)
    assert np.allclose(values, np.linalg.eigvalsh(matrix), atol=1e-10 * values[-1])
    assert np.allclose(vectors.T @ vectors, np.eye(size), atol=1e-12)
    assert np.allclose(matrix @ vectors, vectors * values, atol=1e-10 * values[-1])


@pytest.mark.parametrize("matrix", [np.zeros((4, 4)), np.diag([3.0, 1, 2, 1]), np.ones((4, 4))])
def test_eigh_of_special_matrices(matrix):
    values, vectors = exact.eigh(matrix)
    assert np.allclose(vectors.T @ vectors, np.eye(4))
    assert np.allclose(vectors * values @ vectors.T, matrix)


def test_nearest_orthogonal():
    matrix = np.random.default_rng(0).standard_normal((30, 30))
    left, _, right = np.linalg.svd(matrix)
    found = exact.nearest_orthogonal(matrix)
    assert np.allclose(found, left @ right, atol=1e-4)
    assert np.allclose(found.T @ found, np.eye(30), atol=1e-6)
    assert (found.astype(np.float32) == found).all()  # nothing is lost when it is saved


def test_grid():
    values = np.array([0.1, -0.7, 3.0])
    rounded = exact.to_grid(values)
    assert np.abs(rounded - values).max() <= exact.STEP / 2
    assert (rounded / exact.STEP == np.rint(rounded / exact.STEP)).all()
    assert exact.power_of_two(np.array([0.0, 0.3, 0.5, 1.0, 5.0])).tolist() == [1, 0.5, 1, 2, 8]
