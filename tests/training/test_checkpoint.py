"""Checkpoints hold plain data and restore every random generator."""

import pytest
import torch

from recbole_diffgrm.errors import UserError
from recbole_diffgrm.experiments.pipeline import run
from recbole_diffgrm.training import checkpoint


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
    state = checkpoint.random_state()
    first = draw()
    draw()
    checkpoint.set_random_state(state)
    assert draw() == first


def test_damaged_checkpoint_is_named(options, tmp_path, capsys):
    path = tmp_path / "state.pt"
    path.write_bytes(b"not a checkpoint")
    with pytest.raises(UserError, match=r"state\.pt is damaged"):
        checkpoint.load(path)
    with pytest.raises(UserError, match="does not exist"):
        checkpoint.load(tmp_path / "none.pt")


def test_a_failed_write_keeps_the_old_checkpoint(tmp_path, monkeypatch):
    path = tmp_path / "state.pt"
    checkpoint.save({"a": 1}, path)

    def disk_full(*arguments):
        raise OSError("no space left")

    monkeypatch.setattr(checkpoint.torch, "save", disk_full)
    with pytest.raises(OSError):
        checkpoint.save({"a": 2}, path)
    assert checkpoint.load(path) == {"a": 1}
