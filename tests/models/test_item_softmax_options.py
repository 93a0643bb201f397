"""Every model with a large softmax: in chunks or over a sample of the items, it is trained as with the plain one."""

import pytest
import torch

from recbole_diffgrm import UserError, run
from recbole_diffgrm.data.loader import TrainLoader
from recbole_diffgrm.models import build_config
from recbole_diffgrm.nn import losses
from tests.conftest import build_tiny
from tests.models.actionpiece.test_model import SIZES

CODES = {"sid_quantizer": "random", "sid_num_digits": 4, "sid_codebook_size": 8}
SMALL = {**CODES, "hidden_size": 16, "n_heads": 2}
ITEM_HEAD = {"item_head": True, "sample_unit": "sequence", "min_history": 1, "decoder_layers": 1, "warmup_steps": 0}
MODELS = {
    "DiffGRM": {**SMALL, **ITEM_HEAD},
    "HSTU": {"hidden_size": 16, "n_heads": 2, "num_negatives": None},
    "HSTU of codes": {**SMALL, "item_input": "codes", "num_negatives": None},
    "RecJPQ": {**SMALL, "loss_type": "CE"},
    "VQRec": {**SMALL, "inner_size": 8},
}


def gradients(options, name, **changes) -> dict[str, torch.Tensor]:
    """Of all weights, without dropout."""
    config, split, model, _ = build_tiny(options, name.split()[0], **changes)
    batch = next(TrainLoader(config, split.train, trim=True).batches(epoch=0))
    torch.manual_seed(0)
    parts = model.losses(batch).parts
    sum(parts.values()).backward()
    return {"loss": parts.get("item", sum(parts.values())).detach()} | {
        name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None
    }


@pytest.mark.parametrize("name", [*MODELS, "ActionPiece"])
def test_chunks_change_no_gradient(options, name, monkeypatch, tmp_path):
    changes = {**(MODELS.get(name) or SIZES), "cache_dir": str(tmp_path / "cache")}
    whole = gradients(options, name, **changes)
    monkeypatch.setattr(losses, "LOGITS_AT_ONCE", 100)
    in_chunks = gradients(options, name, **changes)
    assert whole.keys() == in_chunks.keys() and len(whole) > 5
    for parameter, expected in whole.items():
        assert torch.allclose(in_chunks[parameter], expected, rtol=1e-8, atol=1e-12), parameter


@pytest.mark.parametrize("name", MODELS)
def test_a_large_sample_is_near_the_softmax_over_all_items(options, name, tmp_path):
    changes = {**MODELS[name], "cache_dir": str(tmp_path / "cache")}
    full = gradients(options, name, item_softmax="full", **changes)
    sampled = gradients(options, name, item_softmax="sampled", softmax_items=20_000, **changes)
    assert sampled["loss"].item() == pytest.approx(full["loss"].item(), rel=0.02)
    for parameter, expected in full.items():
        assert (sampled[parameter] - expected).norm() <= 0.1 * expected.norm() + 1e-6, parameter


def test_a_run_with_a_sample(options, tmp_path, caplog):
    caplog.set_level("INFO")
    changes = {**MODELS["VQRec"], "cache_dir": str(tmp_path / "cache")}
    result = run("VQRec", "tiny", **options, **changes, item_softmax="sampled", softmax_items=8, learning_rate=0.01)
    assert result.curve[1]["loss"] < result.curve[0]["loss"]
    assert "8 drawn" in caplog.text


@pytest.mark.parametrize(
    "model, needed", [("DiffGRM", "item_head"), ("HSTU", "num_negatives"), ("RecJPQ", "loss_type")]
)
def test_a_key_that_nothing_reads_is_refused(model, needed):
    with pytest.raises(UserError, match=f"softmax_items: read only with {needed}"):
        build_config(model, "ml-100k", overrides={"softmax_items": 100})
