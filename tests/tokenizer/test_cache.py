"""Cache entries: built once, complete, repaired when damaged."""

import os

import pytest

from recbole_diffgrm import Tokenizer, UserError
from recbole_diffgrm.tokenizer import cache
from recbole_diffgrm.tokenizer.cache import follow_or_build, get_or_build
from tests.tokenizer.conftest import run_tokenizer


def test_built_once(tmp_path):
    built = []

    def build(folder):
        built.append(folder)
        (folder / "file").write_text("content")

    first = get_or_build(tmp_path, "kind", {"a": 1}, build)
    assert get_or_build(tmp_path, "kind", {"a": 1}, build) == first
    assert len(built) == 1
    assert get_or_build(tmp_path, "kind", {"a": 2}, build) != first
    assert sorted(path.name for path in first.iterdir()) == ["about.json", "file"]


def test_links_lead_to_an_entry_without_its_ingredients(tmp_path):
    asked = []

    def build():
        asked.append("built")
        return get_or_build(tmp_path, "kind", {"text": "long"}, lambda folder: (folder / "file").write_text("content"))

    entry = follow_or_build(tmp_path, "kind", {"file": 1}, build)
    assert follow_or_build(tmp_path, "kind", {"file": 1}, build) == entry and len(asked) == 1
    assert follow_or_build(tmp_path, "kind", {"file": 2}, build) == entry and len(asked) == 2
    (entry / "file").write_text("changed")
    assert follow_or_build(tmp_path, "kind", {"file": 1}, build) == entry and len(asked) == 3
    assert (entry / "file").read_text() == "content"
    for link in tmp_path.glob("*.link"):
        link.write_text("../elsewhere\n")
    assert follow_or_build(tmp_path, "kind", {"file": 1}, build) == entry and len(asked) == 4


@pytest.mark.parametrize("resumable", [False, True])
def test_interrupted_attempts(tmp_path, resumable):
    seen = []

    def build(folder):
        seen.append(sorted(path.name for path in folder.iterdir()))
        (folder / "part").write_text("")
        if len(seen) == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        get_or_build(tmp_path, "kind", {}, build, resumable)
    get_or_build(tmp_path, "kind", {}, build, resumable)
    assert seen == [[], ["part"] if resumable else []]


def test_files_are_hashed_again_only_where_they_may_have_changed(tmp_path, monkeypatch):
    hashed, original = [], cache.file_sha256
    monkeypatch.setattr(cache, "file_sha256", lambda path: hashed.append(path.name) or original(path))

    def build(folder):
        (folder / "file").write_text("content")
        os.utime(folder / "file", ns=(1, 10**18))  # some time before about.json

    def find() -> list[str]:
        hashed.clear()
        get_or_build(tmp_path, "kind", {}, build)
        return hashed

    assert find() == ["file"]
    assert find() == []
    entry = get_or_build(tmp_path, "kind", {}, build)
    os.utime(entry / "file", ns=(1, 10**18 + 1))  # copied: the content is the same
    assert find() == ["file"]
    os.utime(entry / "file", ns=(1, 10**18))
    os.utime(entry / "about.json", ns=(1, 10**18))  # written at the same tick of the clock
    assert find() == ["file"]


DAMAGES = ["cut", "flipped", "gone", "no about"]


def damage_entry(entry, file, damage: str) -> None:
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:-10])
    elif damage == "flipped":
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    elif damage == "gone":
        file.unlink()
    else:
        (entry / "about.json").write_text("{")


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_entry_is_built_again(tmp_path, damage, caplog):
    def build(folder):
        (folder / "file").write_text("content that is long enough")

    entry = get_or_build(tmp_path, "kind", {}, build)
    damage_entry(entry, entry / "file", damage)
    assert get_or_build(tmp_path, "kind", {}, build) == entry
    assert "is damaged" in caplog.text
    assert (entry / "file").read_text() == "content that is long enough"
    caplog.clear()
    get_or_build(tmp_path, "kind", {}, build)
    assert caplog.text == ""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["embeddings", "codes", "sid"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_noticed_and_repaired(settings, kind, damage, caplog):
    tokenized = run_tokenizer(settings)
    before = (tokenized.folder / "tiny.sid").read_text()
    found = tokenized.folder.parent.glob(f"{kind}-*")
    entry = next(path for path in found if path.is_dir())  # not a link to one
    damage_entry(entry, next(path for path in entry.iterdir() if path.suffix in (".npy", ".npz")), damage)
    # an entry is checked when it is used again: codes for other rules of collisions, embeddings for other digits
    changes = {"embeddings": {"sid_num_digits": 3}, "codes": {"sid_collisions": "reassign"}, "sid": {}}[kind]
    run_tokenizer(settings, **changes)
    assert f"{kind}-" in caplog.text
    assert "is damaged" in caplog.text
    caplog.clear()
    assert (run_tokenizer(settings).folder / "tiny.sid").read_text() == before
    assert "damaged" not in caplog.text


def test_incomplete_entry_is_not_used(settings, monkeypatch):
    original = Tokenizer.save

    def save_and_stop(self, path):
        original(self, path)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Tokenizer, "save", save_and_stop)
        with pytest.raises(KeyboardInterrupt):
            run_tokenizer(settings)
    assert run_tokenizer(settings).report["num_items"] == 40


def test_folder_that_cannot_be_written(settings, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=f"cache_dir: {tmp_path}/file"):
        run_tokenizer(settings, cache_dir=str(tmp_path / "file"))
