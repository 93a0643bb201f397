"""Masks and losses against direct transcriptions of the paper (Sec. 3.3)."""

import itertools
import math

import pytest
import torch
from pydantic import ValidationError

from recbole_diffgrm.config.options import option
from recbole_diffgrm.errors import UserError
from recbole_diffgrm.generation.semantic_ids import MASKED
from recbole_diffgrm.models.diffgrm.network import DiffGRMConfig
from recbole_diffgrm.models.diffgrm.noising import (
    NOISINGS,
    Noising,
    digit_losses,
    even_schedule,
    nested_masks,
    predict_views,
    register,
    sample_losses,
)
from tests.conftest import build_tiny
from tests.models.diffgrm.test_network import encode, make_network

CONFIG = DiffGRMConfig(4, 6, 8, 16, 2, 1, 2, 0.0, 9, True)
FULL = (1, 2, 3, 4)
DEFAULTS = {
    "n_views": None,
    "mask_schedule": None,
    "ocn_select": "least",
    "ocn_refresh": False,
    "ocn_sample": False,
    "ocn_confidence": "msp",
    "coherent_paths": 1,
    "random_ratio": None,
}


def make_noising(name: str, **changes) -> Noising:
    noising = NOISINGS[name]
    return noising(**{key: DEFAULTS[key] for key in noising.model_fields} | changes)


@pytest.fixture
def sample():
    """A network far from its initial values, histories and targets of five samples."""
    network = make_network(CONFIG)
    sids, length = torch.randint(6, (5, 7, 4)), torch.tensor([7, 1, 3, 2, 5])
    return network, encode(network, sids, length), torch.randint(6, (5, 4))


def predictions(network, history, target, masked):
    """Probabilities [B, n, M] for one view."""
    shown = torch.where(masked, MASKED, target)[:, None]
    return network.logits(network.decode(shown, history))[:, 0].softmax(-1)


def paper_masks(network, history, target, schedule=FULL, confidence="msp", select="least"):
    """M^(r) = {sigma(1), ..., sigma(m_r)}, sigma from hardest to easiest by a fully masked pass; ties by digit."""
    all_masked = torch.ones(5, 4, dtype=torch.bool)
    p = predictions(network, history, target, all_masked)
    masks = torch.zeros(5, len(schedule), 4, dtype=torch.bool)
    for b in range(5):
        delta = []
        for k in range(4):
            values = p[b, k].tolist()
            delta.append(1 - max(values) if confidence == "msp" else -sum(v * math.log(v) for v in values))
        sigma = sorted(range(4), key=lambda k: ((-1 if select == "least" else 1) * delta[k], k))
        for r, m in enumerate(schedule):
            for k in sigma[:m]:
                masks[b, r, k] = True
    return masks


@pytest.mark.parametrize("confidence", ["msp", "entropy"])
@pytest.mark.parametrize("select", ["least", "most"])
@pytest.mark.parametrize("schedule", [FULL, (2, 4), (1, 3), (4,)])
def test_ocn(sample, confidence, select, schedule):
    network, history, target = sample
    noising = make_noising("ocn", mask_schedule=list(schedule), ocn_select=select, ocn_confidence=confidence)
    views = noising.make_views(network, history, target)
    assert torch.equal(views.masked, paper_masks(network, history, target, schedule, confidence, select))
    for v in range(len(schedule)):
        masked = views.masked[:, v]
        expected = predictions(network, history, target, masked)
        assert torch.allclose(views.logits[:, v].softmax(-1)[masked], expected[masked], atol=1e-10)


def test_ties_are_broken_by_digit():
    order = make_noising("ocn").masking_order(torch.tensor([[0.5, 0.7, 0.5, 0.7]]))
    assert order.tolist() == [[1, 3, 0, 2]]
    assert nested_masks(order, (1, 3)).int().tolist() == [[[0, 1, 0, 0], [1, 1, 0, 1]]]


@pytest.mark.parametrize("select", ["least", "most"])
def test_refresh(sample, select):
    network, history, target = sample
    views = make_noising("ocn", ocn_select=select, ocn_refresh=True).make_views(network, history, target)
    masked = torch.ones(5, 4, dtype=torch.bool)
    for m in (4, 3, 2, 1):
        assert torch.equal(views.masked[:, m - 1], masked)
        delta = 1 - predictions(network, history, target, masked).amax(-1)
        for b in range(5):  # show the easiest (least) or the hardest (most) of those still masked
            rest = [k for k in range(4) if masked[b, k]]
            shown = (min if select == "least" else max)(rest, key=lambda k: delta[b, k].item())
            masked[b, shown] = False
    noising = make_noising("ocn", mask_schedule=[2, 3], ocn_select=select, ocn_refresh=True)
    assert torch.equal(noising.make_views(network, history, target).masked, views.masked[:, 1:3])


def test_sampling_by_difficulty():
    """The first digit is sampled in proportion to difficulty, the second likewise among the rest."""
    difficulty = torch.tensor([[0.1, 0.2, 0.3, 0.4]]).repeat(40_000, 1)
    torch.manual_seed(0)
    for select, weight in (("least", difficulty[0]), ("most", 1 - difficulty[0])):
        order = make_noising("ocn", ocn_select=select, ocn_sample=True).masking_order(difficulty)
        first = torch.bincount(order[:, 0], minlength=4) / len(order)
        assert torch.allclose(first, weight / weight.sum(), atol=0.01)
        second = torch.bincount(order[order[:, 0] == 3][:, 1], minlength=4) / (order[:, 0] == 3).sum()
        rest = weight * torch.tensor([1, 1, 1, 0])
        assert torch.allclose(second, rest / rest.sum(), atol=0.02)


def test_coherent(sample):
    network, history, target = sample
    views = make_noising("coherent", coherent_paths=3).make_views(network, history, target)
    assert views.masked.shape == (5, 12, 4)
    paths = views.masked.view(5, 3, 4, 4)
    assert torch.equal(paths.sum(-1), torch.tensor(FULL).expand(5, 3, 4))
    assert (paths[:, :, 1:] >= paths[:, :, :-1]).all()  # nested
    torch.manual_seed(0)
    one = make_noising("coherent", mask_schedule=[1])
    first = torch.cat([one.make_views(network, history, target).masked for _ in range(400)])
    share = first[:, 0].double().mean(0)
    assert torch.allclose(share, torch.full_like(share, 0.25), atol=0.04)


def test_random(sample):
    network, history, target = sample
    torch.manual_seed(0)
    for ratio, num_masked in ((0.5, 2), (0.01, 1), (1.0, 4)):
        views = make_noising("random", random_ratio=ratio).make_views(network, history, target)
        assert (views.masked.sum(-1) == num_masked).all()
    sampled = [make_noising("random").make_views(network, history, target).masked for _ in range(300)]
    counts = torch.bincount(torch.cat(sampled).sum(-1).flatten(), minlength=5)[1:] / (300 * 5 * 4)
    assert torch.allclose(counts, torch.full((4,), 0.25), atol=0.03)


EXAMPLES = [
    ("ocn", {}, 4),
    ("ocn", {"n_views": 2}, 2),
    ("ocn", {"mask_schedule": [1, 2, 4], "ocn_refresh": True}, 3),
    ("coherent", {"mask_schedule": [2, 4], "coherent_paths": 2}, 4),
    ("random", {}, 4),
    ("random", {"n_views": 6, "random_ratio": 0.5}, 6),
]


@pytest.mark.parametrize(("name", "changes", "num_views"), EXAMPLES, ids=str)
def test_number_of_views(sample, name, changes, num_views):
    noising = make_noising(name, **changes)
    assert noising.num_views(4) == num_views
    assert noising.make_views(*sample).masked.shape == (5, num_views, 4)


@pytest.mark.parametrize("weighting", ["view_mean", "token_mean"])
@pytest.mark.parametrize(("name", "changes", "num_views"), EXAMPLES, ids=str)
def test_loss_equals_a_loop_over_views(sample, weighting, name, changes, num_views):
    network, history, target = sample
    views = make_noising(name, **changes).make_views(network, history, target)
    ours = sample_losses(digit_losses(views, target, 0.1), views.masked, weighting)
    for b in range(5):
        of_views, total, count = [], 0.0, 0
        for v in range(num_views):
            p = predictions(network, history, target, views.masked[:, v])[b].detach()
            smooth = [
                -sum((0.9 * (c == target[b, k]) + 0.1 / 6) * math.log(p[k, c]) for c in range(6))
                for k in range(4)
                if views.masked[b, v, k]
            ]
            of_views.append(sum(smooth) / len(smooth))
            total, count = total + sum(smooth), count + len(smooth)
        expected = sum(of_views) / len(of_views) if weighting == "view_mean" else total / count
        assert ours[b].item() == pytest.approx(expected)


def test_loss_of_a_sample_does_not_depend_on_its_batch(sample):
    network, _, target = sample
    sids, length = torch.randint(6, (5, 7, 4)), torch.tensor([7, 1, 3, 2, 5])

    def losses(chosen, width):
        history = encode(network, sids[chosen, :width], length[chosen])
        views = make_noising("ocn").make_views(network, history, target[chosen])
        return sample_losses(digit_losses(views, target[chosen], 0.1), views.masked, "view_mean")

    together = losses(torch.arange(5), 7)
    for b in range(5):
        alone = losses(torch.tensor([b]), int(length[b]))
        assert alone.item() == pytest.approx(together[b].item(), abs=1e-10)


def test_the_probe_is_a_view(sample):
    """Gradients flow through the fully masked view, and not through a probe that is no view."""
    network, history, target = sample
    calls = []
    network.decode = lambda digits, *rest, original=network.decode: (
        calls.append((digits.shape[1], torch.is_grad_enabled())) or original(digits, *rest)
    )
    make_noising("ocn").make_views(network, history, target)
    assert calls == [(1, True), (3, True)]
    calls.clear()
    make_noising("ocn", mask_schedule=[1, 2]).make_views(network, history, target)
    assert calls == [(1, False), (2, True)]


@pytest.mark.parametrize("num_digits", [1, 2, 3, 4, 5])
def test_signals_and_configurations(num_digits):
    """n 2^(n-1) pairs of target digit and shown digits, from 2^n - 1 masks (App. D); a nested path: n (n + 1) / 2."""
    masks = [mask for mask in itertools.product([0, 1], repeat=num_digits) if any(mask)]
    assert len(masks) == 2**num_digits - 1
    signals = {(k, mask) for mask in masks for k in range(num_digits) if mask[k]}
    assert len(signals) == num_digits * 2 ** (num_digits - 1)
    covered = set()
    for order in itertools.permutations(range(num_digits)):
        path = nested_masks(torch.tensor([order]), tuple(range(1, num_digits + 1)))[0].int().tolist()
        here = {(k, tuple(mask)) for mask in path for k in range(num_digits) if mask[k]}
        assert len(here) == num_digits * (num_digits + 1) // 2
        covered |= here
    assert covered == signals


def test_schedules():
    assert [even_schedule(4, num_views) for num_views in (1, 2, 3, 4)] == [(4,), (2, 4), (2, 3, 4), (1, 2, 3, 4)]


def test_difficulty():
    even, certain = torch.zeros(1, 1, 8), torch.tensor([[[50.0] + [0.0] * 7]])
    by_entropy = make_noising("ocn", ocn_confidence="entropy")
    assert by_entropy.difficulty(even).item() == pytest.approx(1)
    assert by_entropy.difficulty(certain).item() == pytest.approx(0, abs=1e-6)
    for name in NOISINGS:
        assert make_noising(name).difficulty(even).item() == pytest.approx(7 / 8)


# Options


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("ocn", {"n_views": 0}),
        ("ocn", {"n_views": True}),
        ("ocn", {"mask_schedule": []}),
        ("ocn", {"mask_schedule": [0, 2]}),
        ("ocn", {"mask_schedule": [2, 1]}),
        ("coherent", {"mask_schedule": [2, 2]}),
        ("ocn", {"ocn_select": "all"}),
        ("ocn", {"ocn_refresh": 1}),
        ("ocn", {"ocn_confidence": "margin"}),
        ("coherent", {"coherent_paths": 0}),
        ("random", {"random_ratio": 0.0}),
        ("random", {"random_ratio": 1.5}),
        ("random", {"mask_schedule": [1]}),
        ("random", {"ocn_sample": True}),
    ],
    ids=str,
)
def test_values_out_of_range(name, changes):
    with pytest.raises(ValidationError, match=next(iter(changes))):
        make_noising(name, **changes)


def test_views_have_to_fit_the_sids():
    for name in ("ocn", "coherent"):
        for changes in ({"n_views": 5}, {"mask_schedule": [1, 5]}):
            noising = make_noising(name, **changes)
            noising.check(5)
            noising.check(None)  # digits of a SID file are not known yet
            with pytest.raises(UserError, match=r"n_views, mask_schedule.*4 digits"):
                noising.check(4)
        with pytest.raises(UserError, match="n_views and mask_schedule"):
            make_noising(name, n_views=2, mask_schedule=[1, 2]).check(None)
    make_noising("random", n_views=9).check(4)  # views are independent of each other


def test_keys_that_several_noisings_read_are_declared_once():
    declared = {}
    for noising in NOISINGS.values():
        for key, field in noising.model_fields.items():
            assert field.description
            assert repr(declared.setdefault(key, field)) == repr(field), key
    assert set(declared) == set(DEFAULTS)


def test_a_new_noising_is_one_class(sample, monkeypatch):
    monkeypatch.setitem(NOISINGS, "one_digit", None)  # removed after the test

    @register("one_digit")
    class OneDigit(Noising):
        masked_digit: int = option("The only digit that is masked.", ge=0)

        def num_views(self, num_digits):
            return 1

        def make_views(self, network, history, target):
            masked = torch.zeros_like(target, dtype=torch.bool)[:, None]
            masked[:, :, self.masked_digit] = True
            return predict_views(network, history, target, masked, 1)

    network, history, target = sample
    noising = NOISINGS["one_digit"](masked_digit=2)
    noising.check(4)
    views = noising.make_views(network, history, target)
    losses = digit_losses(views, target, 0.0)
    expected = predictions(network, history, target, views.masked[:, 0])[torch.arange(5), 2, target[:, 2]].log()
    assert torch.allclose(sample_losses(losses, views.masked, "view_mean"), -expected)
    assert noising.difficulty(views.logits[:, 0]).shape == (5, 4)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("noising", NOISINGS)
def test_absent_codes_take_no_part(options, noising, smoothing):
    """The loss of a masked digit runs over the codes that some item has together with each of the shown digits."""
    settings = {"mask_absent_codes": True, "noising": noising, "label_smoothing": smoothing, "sid_codebook_size": 8}
    _, split, model, _ = build_tiny(options, **settings)
    sids, batch = model.semantic_ids.sids.long(), split.train.inter_feat.cut(torch.arange(6))
    target = model.semantic_ids.lookup(batch["item_id"])
    history = model.network.precompute_kv(model._encode(batch), batch["item_length"])
    views = model.noising.make_views(model.network, history, target)
    losses = digit_losses(views, target, smoothing).detach()
    num_absent = 0
    for sample, view, digit in itertools.product(range(6), range(views.masked.shape[1]), range(target.shape[1])):
        if not views.masked[sample, view, digit]:
            assert losses[sample, view, digit] == 0
            continue
        shown = [d for d in range(target.shape[1]) if not views.masked[sample, view, d]]
        fits = [set(sids[sids[:, d] == target[sample, d], digit].tolist()) for d in shown]
        codes = sorted(set(sids[:, digit].tolist()).intersection(*fits))
        num_absent += 8 - len(codes)
        log_prob = views.logits[sample, view, digit][codes].detach().log_softmax(0)
        expected = -(1 - smoothing) * log_prob[codes.index(int(target[sample, digit]))] - smoothing * log_prob.mean()
        assert float(losses[sample, view, digit]) == pytest.approx(float(expected))
    assert num_absent > 0
    assert torch.isfinite(sum(model.losses(batch).parts.values()))
