"""Parts of vectors, put together. tests/test_processes.py lets two processes make them."""

import numpy as np
import pytest

from recbole_diffgrm.tokenizer import shared_encoding
from recbole_diffgrm.tokenizer.cache import is_built
from recbole_diffgrm.tokenizer.text_encoder import VECTORS_FILE


@pytest.mark.parametrize(("num_texts", "world", "chunk"), [(10, 2, 512), (11, 3, 2), (7, 7, 1), (12, 5, 3)])
def test_parts_are_interleaved(tmp_path, monkeypatch, num_texts, world, chunk):
    monkeypatch.setattr(shared_encoding, "CHUNK_SIZE", chunk)
    vectors = np.random.default_rng(0).normal(size=(num_texts, 3)).astype(np.float32)
    parts = []
    for rank in range(world):
        (tmp_path / str(rank)).mkdir()
        np.save(tmp_path / str(rank) / VECTORS_FILE, vectors[rank::world])
        parts.append(tmp_path / str(rank))
    shared_encoding._put_together(tmp_path, {"a": 1}, parts)
    assert is_built(tmp_path, "embeddings", {"a": 1})
    written = next(tmp_path.glob("embeddings-*")) / VECTORS_FILE
    assert np.load(written).tolist() == vectors.tolist()
    assert not any(part.exists() for part in parts)
