"""Checkpoints hold plain data and restore every random generator."""

import pytest
import torch

from recbole_diffgrm import checkpoint
from recbole_diffgrm.errors import UserError
from recbole_diffgrm.experiments.pipeline import run
from recbole_diffgrm.training.random_state import get_random_state, set_random_state


def test_checkpoints_are_plain_data(options, monkeypatch):
    """Nothing but tensors, numbers and text: they load with weights_only=True (the default refuses objects)."""
    saved = {}
    original = checkpoint.save
    monkeypatch.setattr(
        checkpoint, "save", lambda content, path: (saved.update({path.name: content}), original(content, path))
    )
    run("SASRec", "tiny", **options)

    def check(value):
        if isinstance(value, dict):
            for key, part in value.items():
                assert isinstance(key, str | int)
                check(part)
        elif isinstance(value, list | tuple):
            for part in value:
                check(part)
        else:
            assert value is None or isinstance(value, bool | int | float | str | torch.Tensor), type(value)

    assert set(saved) == {"state.pt", "best.pt"}
    for content in saved.values():
        check(content)


def test_random_state_round_trip():
    import random

    import numpy as np

    def draw():
        return random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.rand(1).item()

    draw()
    state = get_random_state()
    first = draw()
    draw()
    set_random_state(state)
    assert draw() == first


def test_missing_unreadable_damaged_and_hostile_are_told_apart(tmp_path, monkeypatch):
    path = tmp_path / "state.pt"
    with pytest.raises(UserError, match=r"state\.pt does not exist"):
        checkpoint.load(path)
    path.write_bytes(b"")
    with pytest.raises(UserError, match=r"state\.pt is damaged .*delete its run directory"):
        checkpoint.load(path)
    torch.save({"a": 1}, path)
    with pytest.raises(UserError, match=r"is damaged \(it has no checksum"):
        checkpoint.load(path)
    checkpoint.save({"a": torch.zeros(1000)}, path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"is damaged \(it has no checksum: it is cut off"):
        checkpoint.load(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(UserError, match=r"state\.pt is a folder"):
        checkpoint.load(path)
    path.rmdir()
    path.touch()

    def deny(*arguments, **keywords):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(path), "open", deny)
    with pytest.raises(UserError, match=r"cannot be read \(Permission denied\): check its permissions"):
        checkpoint.load(path)


class Attack:
    def __reduce__(self):
        return print, ("executed",)


@pytest.mark.parametrize("with_checksum", [False, True])
def test_a_hostile_checkpoint_is_refused_unread(tmp_path, capsys, with_checksum):
    path = tmp_path / "best.pt"
    if with_checksum:
        checkpoint.save({"a": Attack()}, path)
    else:
        torch.save({"a": Attack()}, path)
    with pytest.raises(UserError, match=r"best\.pt is refused .* nothing in it was executed") as error:
        checkpoint.load(path)
    assert "weights_only" not in str(error.value)
    assert capsys.readouterr().out == ""


def test_every_flipped_bit_is_found(tmp_path):
    path, content = tmp_path / "best.pt", {"weight": torch.arange(6.0), "epoch": 3}
    checkpoint.save(content, path)
    intact = path.read_bytes()
    for bit in range(0, 8 * len(intact), 37):
        damaged = bytearray(intact)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=r"is damaged|is refused"):
            checkpoint.load(path)
    path.write_bytes(intact)
    assert checkpoint.load(path)["weight"].equal(content["weight"])


def test_a_failed_write_keeps_the_old_checkpoint(tmp_path, monkeypatch):
    path = tmp_path / "state.pt"
    checkpoint.save({"a": 1}, path)

    class FullDisk(checkpoint._Hashed):
        def write(self, data):
            self.file.write(data[:10])
            self.error = OSError("no space left")
            raise self.error

    monkeypatch.setattr(checkpoint, "_Hashed", FullDisk)
    with pytest.raises(UserError, match=r"state\.pt cannot be written \(no space left\)"):
        checkpoint.save({"a": 2}, path)
    assert checkpoint.load(path) == {"a": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["state.pt"]
