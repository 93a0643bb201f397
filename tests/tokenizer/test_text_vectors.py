"""Text vectors for models: by item number, whitened on training items, length 1."""

import numpy as np
import pytest

from recbole_diffgrm import UserError
from recbole_diffgrm.tokenizer import text_encoder
from recbole_diffgrm.tokenizer import text_vectors as module
from recbole_diffgrm.tokenizer.text_vectors import text_vectors
from recbole_diffgrm.tokenizer.whitening import Whitening
from tests.tokenizer.conftest import IDS, load_split, write_npz
from tests.tokenizer.test_embedding_sources import set_texts


def test_by_hand(settings, tmp_path, vectors):
    config, split = load_split(
        settings, sid_text_encoder=write_npz(tmp_path / "a.npz", IDS, vectors[:40]), sid_pca_dim=6
    )
    result = text_vectors(config, split)
    assert result.shape == (41, 6)
    assert (result[0] == 0).all()
    flat = split.dataset.inter_feat.flat
    trained = sorted({str(split.item_ids[item - 1]) for item in flat.item[split.training_rows].tolist()})
    whitening = Whitening.fit(vectors[[IDS.index(item) for item in trained]], 6)
    for number, item in enumerate(split.item_ids.tolist(), start=1):
        expected = whitening.apply(vectors[IDS.index(item)][None])[0]
        assert np.allclose(result[number], expected / np.linalg.norm(expected), atol=1e-6)


def test_raw_vectors_have_length_one(settings, tmp_path, vectors):
    path = write_npz(tmp_path / "a.npz", IDS, 5 * vectors[:40])
    result = text_vectors(*load_split(settings, sid_text_encoder=path, sid_pca_dim=None))
    assert result.shape == (41, 12)
    assert np.allclose(np.linalg.norm(result[1:], axis=1), 1, atol=1e-6)


def test_items_without_text(settings, data):
    set_texts(data, lambda line: "i2\t\t" if line.startswith("i2\t") else line)
    config, split = load_split(settings, sid_file="unused.sid")  # ready SIDs, and vectors of texts next to them
    result = text_vectors(config, split)
    zero = np.flatnonzero((result == 0).all(axis=1))
    assert zero.tolist() == [0, 1 + split.item_ids.tolist().index("i2")]
    model = text_encoder.load(settings["sid_text_encoder"], "cpu", False)
    assert result.shape[1] <= model.get_embedding_dimension()


def test_no_text_in_training(settings, data):
    set_texts(data, lambda line: "B" + line)
    with pytest.raises(UserError, match="training has text") as caught:
        text_vectors(*load_split(settings))
    assert "item_text" not in str(caught.value)


def test_a_second_time_they_are_read_from_the_cache(settings, tmp_path, vectors, monkeypatch):
    loaded = load_split(settings, sid_text_encoder=write_npz(tmp_path / "a.npz", IDS, vectors[:40]), sid_pca_dim=6)
    first, whitening = module.fit_text_vectors(*loaded)
    monkeypatch.setattr(module, "text_source", None)
    again, same = module.fit_text_vectors(*loaded)
    assert isinstance(again, np.memmap) and (again == first).all()
    assert (same.mean == whitening.mean).all() and (same.projection == whitening.projection).all()
    number = 1 + loaded[1].item_ids.tolist().index("i2")
    assert (module.whiten(same, vectors[2:3])[0] == first[number]).all()


def test_of_many_items_some_are_drawn_for_the_whitening(settings, tmp_path, vectors, monkeypatch):
    loaded = load_split(settings, sid_text_encoder=write_npz(tmp_path / "a.npz", IDS, vectors[:40]), sid_pca_dim=6)
    monkeypatch.setattr(module, "MAX_TRAINING_VECTORS", 20)
    fitted = []
    original = Whitening.fit
    monkeypatch.setattr(Whitening, "fit", lambda points, *rest: fitted.append(points) or original(points, *rest))
    assert text_vectors(*loaded).shape == (41, 6)
    assert fitted[0].shape == (20, 12) and len(np.unique(fitted[0], axis=0)) == 20
