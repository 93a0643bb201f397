"""Models on another device than the CPU: the same results, nothing mixed, little to wait for (tests.stub_device)."""

import pytest
import torch

from recbole_diffgrm.data.loader import TrainLoader, to_device
from recbole_diffgrm.models.base import total_length
from recbole_diffgrm.training.averaging import AveragedWeights
from recbole_diffgrm.training.signals import StopSignal
from recbole_diffgrm.training.tracking import Tracking
from recbole_diffgrm.training.trainer import Progress, Trainer, choose_amp_type
from tests.conftest import build_tiny
from tests.stub_device import DEVICE, StubDevice

SETTINGS = {
    "SASRec": {},
    "GRU4Rec": {"clip_grad_norm": 1.0},
    "DiffGRM": {"ema_decay": 0.9, "clip_grad_norm": 1.0},
    "DiffGRM with items": {"item_head": True, "sample_unit": "sequence", "min_history": 1, "max_history": None},
    "ARM": {},
    "TIGER": {},
    "RPG": {},
    "HSTU": {},
    "RecJPQ": {},
    "VQRec": {},
}
# What these do on the processor, batch by batch, is in docs/processes.md.
OTHERS = {"ActionPiece": {}}


def build(options, name, **changes):
    return build_tiny(options, name.split()[0], **{**SETTINGS, **OTHERS}[name], **changes)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_training_step_waits_once(options, tmp_path, name):
    """To read the losses. Copies to the device do not wait for it either."""
    tiny = build(options, name, std=None)
    tiny.config["device"] = DEVICE
    model = tiny.model.float().train()
    loader = TrainLoader(tiny.config, tiny.split.train, model.variable_length)
    with StubDevice() as device:
        model.to(DEVICE)
        made = Trainer(tiny.config, model, tmp_path, Tracking([]), StopSignal(tmp_path), Progress())
        made._step(loader.batch(torch.arange(20)), 0.01)  # the first one makes the optimizer's state
        made.progress.step += 1
        device.waits.clear()
        facts = made._step(loader.batch(torch.arange(20, 40)), 0.01)
        assert device.waits == {"to the CPU": 1}
    assert 0 < sum(facts.losses.values()) < 100


@pytest.mark.parametrize("name", [*SETTINGS, *OTHERS])
@torch.no_grad()
def test_results_do_not_depend_on_the_device(options, name):
    tiny = build(options, name)
    model = tiny.model
    index, batch = next(iter(tiny.loader))
    train = TrainLoader(tiny.config, tiny.split.train, model.variable_length).batch(torch.arange(20))

    def results(device):
        torch.manual_seed(0)
        loss = sum(model.losses(train.to(device)).parts.values())
        found = model.candidates(batch.interaction.to(device), 10)
        target, seen = batch.target.to(device), tuple(part.to(device) for part in batch.seen)
        ranks = [found.target_rank(target), found.target_rank(target, seen), found.top_k(10, seen).items]
        return loss.tolist(), [part.tolist() for part in ranks], found.count_sids(target, 10, seen)

    on_cpu = results("cpu")
    with StubDevice() as device:
        model.to(DEVICE)
        device.waits.clear()
        model.candidates(batch.interaction.to(DEVICE), 10)
        print(f"{name}: waits {device.waits.total()} times to decode {len(index)} users: {dict(device.waits)}")
        on_stub = results(DEVICE)
    assert on_stub[0] == pytest.approx(on_cpu[0])
    assert on_stub[1:] == on_cpu[1:]


def test_a_copied_batch_knows_how_long_its_histories_are(options):
    tiny = build_tiny(options, "SASRec")
    batch = TrainLoader(tiny.config, tiny.split.train, trim=True).batch(torch.arange(20))
    field = tiny.config["ITEM_LIST_LENGTH_FIELD"]
    with StubDevice() as device:
        copied = to_device(batch, DEVICE, field)
        assert total_length(copied, field) == total_length(batch, field) == int(batch[field].sum())
    assert device.waits.total() == 0


def test_averages_share_buffers():
    model = torch.nn.BatchNorm1d(2)
    average = AveragedWeights(model, decay=0.75)
    model.weight.data.fill_(4)
    average.update(is_first=True)
    model.weight.data.fill_(8)
    average.update(is_first=False)
    assert average.model.weight.tolist() == [5, 5]
    assert average.model.running_mean is model.running_mean
    assert average.model.weight is not model.weight


def test_bfloat16_is_the_type_of_mixed_precision(monkeypatch):
    assert choose_amp_type(torch.device("cpu")) == torch.bfloat16
    for is_supported, kind in {True: torch.bfloat16, False: torch.float16}.items():
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation, answer=is_supported: answer)
        assert choose_amp_type(torch.device("cuda")) == kind
