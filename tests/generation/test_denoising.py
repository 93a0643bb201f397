"""The denoising of recommended SIDs against a slow reference: one forward pass per step, and a loop over the items."""

import json
import math
from dataclasses import asdict

import pytest
import torch

from recbole_diffgrm.generation.denoising import Choice, find_branches, trace
from recbole_diffgrm.generation.semantic_ids import MASKED
from tests.conftest import build_tiny

CASES = [
    ("DiffGRM", {"beam_size": 12}),
    ("DiffGRM", {"beam_size": 12, "normalize_codes": True}),
    ("DiffGRM", {"beam_size": 12, "path_merge": "logsumexp", "normalize_codes": False}),
    ("DiffGRM", {"beam_size": 200, "decoding": "unconstrained"}),
    ("DiffGRM", {"beam_size": 200, "decoding": "unconstrained_greedy_last"}),
    ("DiffGRM", {"beam_size": 200, "decoding": "fixed_order"}),
    ("DiffGRM", {"beam_size": 12, "item_head": True, "item_scoring": "generated", "leaf_size": 4}),
    ("TIGER", {}),
    ("ARM", {"normalize_codes": True}),
]


@pytest.mark.parametrize(("name", "changes"), CASES, ids=lambda case: case if isinstance(case, str) else str(case))
def test_every_step_is_as_a_slow_search_finds_it(options, name, changes):
    config, split, model, loader = build_tiny(options, name, **changes)
    titles = [f"Item {number}" for number in range(split.dataset.item_num)]
    batch = loader.samples.cut(torch.tensor([3]))
    item_sids = [tuple(sid) for sid in model.semantic_ids.lookup(torch.arange(1, len(titles))).tolist()]
    with torch.inference_mode():
        beams = model.generate_beams(batch)
    branches = find_branches(beams, model.semantic_ids)
    asked = [[sid for sid in item_sids if (sid in branches) == is_generated][:4] for is_generated in (True, False)]
    assert all(asked)  # both kinds are tested
    asked = asked[0] + asked[1]
    traces = trace(model, batch, titles, asked, num_alternatives=4, num_titles=3)
    assert [one.is_generated for one in traces] == [sid in branches for sid in asked]
    popular = model.semantic_ids.popular.tolist()
    for sid, one in zip(asked, traces):
        assert tuple(one.sid) == sid and one.num_items == len(item_sids)
        filled: dict[int, int] = {}
        for step in one.steps:
            expected = _weigh(config, model, batch, item_sids, filled)
            chosen = (step.chosen.digit, step.chosen.code)
            assert sid[chosen[0]] == chosen[1]
            others = sorted((choice for key, choice in expected.items() if key != chosen), key=lambda c: -c.probability)
            _assert_same([step.chosen, *step.alternatives], [expected[chosen], *others[:4]])
            if not one.is_generated:  # the most probable digit first
                own = [choice.probability for (digit, code), choice in expected.items() if sid[digit] == code]
                assert step.chosen.probability == pytest.approx(max(own))
            filled[chosen[0]] = chosen[1]
            left = [number for number in popular if _has(item_sids[number - 1], filled)]
            assert len(left) == step.chosen.items_left
            assert step.titles_left == [titles[number] for number in left[:3]]
        if one.is_generated:
            branch = branches[sid]
            assert [step.chosen.digit for step in one.steps] == [d for d in beams.order[0, branch].tolist() if d >= 0]
            if changes.get("path_merge") != "logsumexp":
                total = sum(math.log(step.chosen.probability) for step in one.steps)
                assert total == pytest.approx(float(beams.scores[0, branch]), abs=1e-9)
        else:
            assert dict(enumerate(sid)) == filled


def test_it_is_json(options):
    _, split, model, loader = build_tiny(options)
    titles = [f"Item {number}" for number in range(split.dataset.item_num)]
    sid = tuple(model.semantic_ids.lookup(torch.tensor(1)).tolist())
    (one,) = trace(model, loader.samples.cut(torch.tensor([0])), titles, [sid])
    again = json.loads(json.dumps(asdict(one)))
    assert again["sid"] == list(sid) and set(again["steps"][0]["chosen"]) == set(Choice.__dataclass_fields__)


def _has(sid, filled) -> bool:
    return all(sid[digit] == code for digit, code in filled.items())


def _weigh(config, model, batch, item_sids, filled) -> dict[tuple[int, int], Choice]:
    """All ways to fill one more digit."""
    n, size = model.semantic_ids.num_digits, model.semantic_ids.codebook_size
    probabilities = _predict(model, batch, filled)
    left = [sid for sid in item_sids if _has(sid, filled)]
    decoding = config.values.get("decoding", "constrained")
    digits = [digit for digit in range(n) if digit not in filled]
    if config.model != "DiffGRM":
        digits = digits[:1]
    elif decoding == "fixed_order":
        generator = torch.Generator().manual_seed(config["seed"])
        digits = torch.randperm(n, generator=generator).tolist()[len(filled) :][:1]
    choices = {}
    for digit in digits:
        codes = range(size) if decoding != "constrained" else sorted({sid[digit] for sid in left})
        mass = sum(probabilities[digit][code] for code in codes)
        for code in codes:
            count = sum(sid[digit] == code for sid in left)
            normalized = decoding == "constrained" and config["normalize_codes"]
            choices[digit, code] = Choice(digit, code, probabilities[digit][code] / (mass if normalized else 1), count)
    return choices


@torch.inference_mode()
def _predict(model, batch, filled) -> list[list[float]]:
    """[n][M], without the step function of the search."""
    n = model.semantic_ids.num_digits
    if not hasattr(model, "network"):
        sid = torch.tensor([[filled.get(digit, 0) for digit in range(n)]])
        return model._logits(batch, sid)[0].softmax(dim=-1).tolist()
    known = torch.tensor([[[filled.get(digit, MASKED) for digit in range(n)]]])
    history = model.network.precompute_kv(model._encode(batch), batch[model.ITEM_SEQ_LEN])
    logits = model.network.logits(model.network.decode(known, history, torch.arange(n)[None]))
    return logits.view(n, -1).softmax(dim=-1).tolist()


def _assert_same(choices: list[Choice], expected: list[Choice]) -> None:
    assert [one.probability for one in choices] == pytest.approx([one.probability for one in expected], abs=1e-9)
    assert [(c.digit, c.code, c.items_left) for c in choices] == [(c.digit, c.code, c.items_left) for c in expected]
