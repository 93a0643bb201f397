"""Checkpoints without what is made from the data again."""

import pytest
import torch

from recbole_diffgrm import checkpoint, run
from recbole_diffgrm.experiments import pipeline
from recbole_diffgrm.training.learned_state import learned_state, load_learned
from recbole_diffgrm.training.trainer import Trainer
from tests.conftest import build_tiny

CODES = {"sid_quantizer": "random", "hidden_size": 16, "n_heads": 2, "decoder_layers": 1}


def test_what_a_checkpoint_holds(options):
    model = build_tiny(options, **CODES, item_head=True).model
    state = learned_state(model)
    assert set(state) == {name for name, _ in model.named_parameters()}
    others = {name: torch.randn_like(tensor) for name, tensor in state.items()}
    load_learned(model, others)
    assert all((tensor == others[name]).all() for name, tensor in model.named_parameters())
    with pytest.raises(RuntimeError, match=r"network\.norm\.bias"):
        load_learned(model, {name: tensor for name, tensor in state.items() if name != "network.norm.bias"})
    with pytest.raises(RuntimeError, match="unknown"):
        load_learned(model, {**state, "unknown": torch.zeros(1)})


def test_a_run_goes_on_from_it(options, monkeypatch):
    settings = {**options, **CODES, "item_head": True, "ema_decay": 0.9, "epochs": 3}
    whole = run("DiffGRM", "tiny", **settings)
    saved = []
    original = Trainer.save_state

    def stop_after_two(self):
        original(self)
        saved.append(checkpoint.load(self.state_path))
        if self.progress.epoch == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "save_state", stop_after_two)
    with pytest.raises(KeyboardInterrupt):
        pipeline.run("DiffGRM", "tiny", **{**settings, "seed": 2020, "save_topk": 1})
    monkeypatch.setattr(Trainer, "save_state", original)
    again = pipeline.run("DiffGRM", "tiny", **{**settings, "seed": 2020, "save_topk": 1}, resume=True)
    assert again.curve[2]["loss"] == whole.curve[2]["loss"] and again.test == whole.test
    assert not [name for part in ("model", "average") for name in saved[-1][part] if "semantic_ids" in name]
