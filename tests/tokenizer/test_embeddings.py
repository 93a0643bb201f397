"""Files of embeddings: what is read, and what is refused."""

from pathlib import Path

import numpy as np
import pytest

from recbole_diffgrm import UserError
from recbole_diffgrm.tokenizer.embeddings import NO_VECTOR, ItemVectors, read_embeddings
from tests.tokenizer.conftest import IDS, run_tokenizer, write_npz


@pytest.mark.slow
def test_embedding_files(settings, tmp_path, vectors):
    order = np.random.default_rng(1).permutation(40)
    ids = [IDS[i] for i in order]
    first = run_tokenizer(
        settings, sid_text_encoder=write_npz(tmp_path / "a.npz", [*ids, "unknown"], vectors)
    ).tokenizer
    np.save(tmp_path / "b.npy", vectors)
    (tmp_path / "b.ids.txt").write_text("\n".join([*ids, "unknown"]) + "\n")
    second = run_tokenizer(settings, sid_text_encoder=str(tmp_path / "b.npy")).tokenizer
    assert (first.sids == second.sids).all()
    for kind in (np.float64, np.float16):
        np.save(tmp_path / "b.npy", vectors.astype(np.float16).astype(kind))
        rounded = run_tokenizer(settings, sid_text_encoder=str(tmp_path / "b.npy")).tokenizer
        assert (rounded.sids == first.sids).all(axis=1).mean() > 0.5
    np.savez(tmp_path / "c.npz", item_id=np.array(ids, dtype="S"), embedding=vectors[:40])
    assert (run_tokenizer(settings, sid_text_encoder=str(tmp_path / "c.npz")).tokenizer.sids == first.sids).all()
    for item, vector in zip(ids[:5], vectors):
        assert first.table([item]).tolist() == first.quantizer.encode(vector[None]).tolist()


def test_rows(tmp_path, vectors):
    items = read_embeddings(Path(write_npz(tmp_path / "a.npz", IDS[::-1], vectors[:40])), np.array(["i3", "i0"]))
    assert items.has_vector.all()
    assert (items.select(np.array([0, 1])) == vectors[[36, 39]]).all()
    empty = ItemVectors.empty(np.array(["a", "b"]))
    assert (empty.row == NO_VECTOR).all()
    assert not empty.has_vector.any()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda ids, v: (ids[:-1], v[:-1]), "a.npz: 1 of 40 items .* 'i39'"),
        (lambda ids, v: ([*ids[:-1], "i3"], v), "a.npz: item 'i3' .* twice"),
        (lambda ids, v: (ids, np.where(np.arange(40)[:, None] == 5, np.nan, v)), "item 'i5' .* NaN"),
        (lambda ids, v: (ids, np.where(np.arange(40)[:, None] == 6, np.inf, v)), "item 'i6' .* infinity"),
        (lambda ids, v: (ids, v[:-1]), r"40 item ids .* \[39, 12\]"),
        (lambda ids, v: (ids, v[:, 0]), r"40 item ids .* \[40\]"),
    ],
)
def test_wrong_content(settings, tmp_path, vectors, change, words):
    path = write_npz(tmp_path / "a.npz", *change(IDS, vectors[:40]))
    with pytest.raises(UserError, match=words):
        run_tokenizer(settings, sid_text_encoder=path)


def test_integers(settings, tmp_path):
    np.savez(tmp_path / "a.npz", item_id=np.array(IDS), embedding=np.ones((40, 3), int))
    with pytest.raises(UserError, match=r"a.npz: .* int64"):
        run_tokenizer(settings, sid_text_encoder=str(tmp_path / "a.npz"))


def test_files_that_are_not_embeddings(settings, tmp_path, vectors):
    with pytest.raises(UserError, match=r"nowhere.npz does not exist; sid_text_encoder expects a \.npz with item_id"):
        run_tokenizer(settings, sid_text_encoder=str(tmp_path / "nowhere.npz"))
    np.save(tmp_path / "a.npy", vectors)
    with pytest.raises(UserError, match=r"a.ids.txt does not exist"):
        run_tokenizer(settings, sid_text_encoder=str(tmp_path / "a.npy"))
    (tmp_path / "folder.npz").mkdir()
    (tmp_path / "b.npz").write_bytes(b"PK\3\4 and then nothing")
    np.savez(tmp_path / "c.npz", other=vectors)
    np.savez(tmp_path / "d.npz", item_id=np.array(IDS, dtype=object), embedding=vectors[:40])  # would run code
    np.save(tmp_path / "e.npz.npy", vectors)
    (tmp_path / "e.npz.npy").rename(tmp_path / "e.npz")
    for name, words in {
        "folder.npz": "is a folder where a file is expected",
        "b.npz": "is damaged .*; sid_text_encoder expects",
        "c.npz": "is damaged .*; sid_text_encoder expects",
        "d.npz": r"is refused \(it holds pickled Python objects\): nothing in it was executed",
        "e.npz": "is damaged .*; sid_text_encoder expects",
    }.items():
        with pytest.raises(UserError, match=f"{name} {words}"):
            run_tokenizer(settings, sid_text_encoder=str(tmp_path / name))


def test_ids_written_on_windows(tmp_path, vectors):
    np.save(tmp_path / "a.npy", vectors[:2])
    (tmp_path / "a.ids.txt").write_bytes(b"\xef\xbb\xbfi0\r\ni1\r\n")
    assert read_embeddings(tmp_path / "a.npy", np.array(["i1"])).row.tolist() == [1]
