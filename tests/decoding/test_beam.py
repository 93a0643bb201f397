"""Beam search against enumeration of all IDs and orders."""

import itertools
import math

import pytest
import torch

from recbole_diffgrm.decoding import lattice as lattices
from recbole_diffgrm.decoding.beam import search_all, search_catalogue
from recbole_diffgrm.network.network import MASKED, DiffGRMNetwork, Shape
from tests.decoding.test_lattice import built


def network(digits, codes, seed):
    torch.manual_seed(seed)
    net = DiffGRMNetwork(Shape(digits, codes, 8, 12, 2, 1, 2, 0.0, 6, True)).double().eval()
    for parameter in net.parameters():
        torch.nn.init.normal_(parameter, std=0.6)
    return net


def predictor(net, users, seed=1):
    draw = torch.Generator().manual_seed(seed)
    sids = torch.randint(net.shape.codes, (users, 6, net.shape.digits), generator=draw)
    history = net.encode(sids, torch.randint(1, 7, (users,), generator=draw))
    return lambda partial: net.logits(net.decode(partial, history)).log_softmax(-1)


def enumerated(predict, user, users, sid, merge):
    """log of the mean (or largest) probability of an ID over all orders of its digits."""
    paths = []
    for order in itertools.permutations(range(len(sid))):
        partial, total = torch.full((users, 1, len(sid)), MASKED), 0.0
        for digit in order:
            total += predict(partial)[user, 0, digit, sid[digit]].item()
            partial[:, 0, digit] = sid[digit]
        paths.append(total)
    return max(paths) if merge == "max" else math.log(sum(map(math.exp, paths)) / len(paths))


@torch.no_grad()
@pytest.mark.parametrize("merge", ["max", "logsumexp"])
@pytest.mark.parametrize(
    ("digits", "codes", "items", "seed"), [(3, 4, 12, 0), (3, 4, 40, 1), (2, 3, 9, 2), (1, 6, 4, 3), (4, 2, 7, 4)]
)
def test_a_wide_beam_equals_enumeration(digits, codes, items, seed, merge):
    predict = predictor(network(digits, codes, seed), users=2)
    sids = torch.randint(codes, (items, digits), generator=torch.Generator().manual_seed(seed))
    ranked = search_catalogue(predict, 2, built(sids, codes), [1000], merge)
    expected = sorted(set(map(tuple, sids.tolist())))
    for user in range(2):
        live = ranked.score[user] > -math.inf
        found = dict(zip(map(tuple, ranked.ids[user][live].tolist()), ranked.score[user][live].tolist()))
        assert sorted(found) == expected
        assert ranked.score[user].tolist() == sorted(ranked.score[user].tolist(), reverse=True)
        for sid in expected:
            assert found[sid] == pytest.approx(enumerated(predict, user, 2, sid, merge), abs=1e-9)


@torch.no_grad()
@pytest.mark.parametrize("width", [1, 3, 8])
def test_users_do_not_depend_on_each_other(width):
    net = network(4, 5, 0)
    draw = torch.Generator().manual_seed(0)
    lattice = built(torch.randint(5, (60, 4), generator=draw), 5)
    histories, lengths = torch.randint(5, (6, 6, 4), generator=draw), torch.tensor([6, 1, 3, 2, 5, 4])

    def search(chosen):
        history = net.encode(histories[chosen], lengths[chosen])
        return search_catalogue(
            lambda partial: net.logits(net.decode(partial, history)).log_softmax(-1), len(chosen), lattice, [width]
        )

    together = search(torch.arange(6))
    for user in range(6):
        alone = search(torch.tensor([user]))
        live = alone.score[0] > -math.inf
        assert together.ids[user, : live.sum()].tolist() == alone.ids[0][live].tolist()
        assert torch.allclose(together.score[user, : live.sum()], alone.score[0][live])
    existing = set(map(tuple, lattice.ids.tolist()))
    assert all(tuple(sid) in existing for sid in together.ids[together.score > -math.inf].tolist())


def transcribed(predict, user, users, shape, widths, order=None, greedy_end=False):
    """The paper's equations, one branch, digit and code at a time: [(score, ID)], best first."""
    n, codes = shape
    beam = [(0.0, (MASKED,) * n)]
    for step in range(n):
        reached = []
        for score, partial in beam:
            predicted = predict(torch.tensor(partial).expand(users, 1, n))[user, 0]
            ways = [
                (score + predicted[digit, code].item(), (*partial[:digit], code, *partial[digit + 1 :]))
                for digit in range(n)
                if partial[digit] == MASKED and (order is None or digit == order[step])
                for code in range(codes)
            ]
            reached += [max(ways)] if greedy_end and step == n - 1 else ways
        beam = sorted(reached, reverse=True)[: widths[min(step, len(widths) - 1)]]
    return beam


@torch.no_grad()
@pytest.mark.parametrize("how", [{}, {"greedy_end": True}, {"order": torch.tensor([2, 0, 1])}], ids=str)
@pytest.mark.parametrize("widths", [[1], [5], [12], [9, 4], [6, 6, 3]], ids=str)
def test_all_ids_equal_a_transcription_of_the_paper(how, widths):
    predict = predictor(network(3, 4, 0), users=2)
    ranked = search_all(predict, 2, (3, 4), widths, **how)
    for user in range(2):
        expected = transcribed(predict, user, 2, (3, 4), widths, **how)
        assert ranked.score[user].tolist() == pytest.approx([score for score, _ in expected])
        assert sorted(map(tuple, ranked.ids[user].tolist())) == sorted(sid for _, sid in expected)


def looped(predict, user, users, lattice, widths, merge):
    """The catalogue's beam, one branch and code at a time: {ID: score}."""
    n, ids = lattice.ids.shape[1], lattice.ids.tolist()
    beam = {(MASKED,) * n: 0.0}
    for step in range(n):
        reached = {}
        for partial, score in beam.items():
            predicted = predict(torch.tensor(partial).expand(users, 1, n))[user, 0]
            below = [one for one in ids if all(known in (MASKED, code) for known, code in zip(partial, one))]
            for digit in [digit for digit in range(n) if partial[digit] == MASKED]:
                for code in {one[digit] for one in below}:
                    state = (*partial[:digit], code, *partial[digit + 1 :])
                    reached.setdefault(state, []).append(score + predicted[digit, code].item())
        scores = {
            state: max(ways) if merge == "max" else math.log(sum(map(math.exp, ways)))
            for state, ways in reached.items()
        }
        kept = sorted(scores, key=scores.get, reverse=True)[: widths[min(step, len(widths) - 1)]]
        beam = {state: scores[state] for state in kept}
    orders = 0 if merge == "max" else math.log(math.factorial(n))
    return {state: score - orders for state, score in beam.items()}


@torch.no_grad()
@pytest.mark.parametrize("merge", ["max", "logsumexp"])
@pytest.mark.parametrize("widths", [[1], [4], [9, 5], [10, 8, 6, 2]], ids=str)
@pytest.mark.parametrize(("digits", "codes"), [(5, 4), (8, 2), (3, 4096)])
@pytest.mark.parametrize("at_once", [lattices.PAIRS_AT_ONCE, 20])
def test_a_narrow_beam_equals_a_loop(digits, codes, widths, merge, at_once, monkeypatch):
    """Long lists of IDs below a branch, and short ones; beams that drop branches."""
    monkeypatch.setattr(lattices, "PAIRS_AT_ONCE", at_once)
    sids = torch.randint(codes, (50, digits), generator=torch.Generator().manual_seed(3))
    lattice = built(sids, codes)
    predict = predictor(network(digits, codes, 1), users=3)
    ranked = search_catalogue(predict, 3, lattice, widths, merge)
    for user in range(3):
        expected = looped(predict, user, 3, lattice, widths, merge)
        live = ranked.score[user] > -math.inf
        assert list(map(tuple, ranked.ids[user][live].tolist())) == list(expected)
        assert ranked.score[user][live].tolist() == pytest.approx(list(expected.values()))


@torch.no_grad()
@pytest.mark.parametrize("policy", ["max", "logsumexp", "all"])
def test_steps_lead_to_the_ids(policy):
    """Following a branch back gives each digit once, and the probabilities that the network gives along that way."""
    predict = predictor(network(4, 4, 5), users=2)
    sids = torch.randint(4, (40, 4), generator=torch.Generator().manual_seed(8))
    if policy == "all":
        ranked = search_all(predict, 2, (4, 4), [6])
    else:
        ranked = search_catalogue(predict, 2, built(sids, 4), [6], policy)
    for user in range(2):
        for branch in torch.nonzero(ranked.score[user] > -math.inf).flatten().tolist():
            way, place = [], branch
            for step in reversed(ranked.steps):
                way.append((step.digit[user, place].item(), step.sure[user, place].item()))
                place = step.parent[user, place].item()
            partial, total = torch.full((2, 1, 4), MASKED), 0.0
            for digit, sure in reversed(way):
                code = ranked.ids[user, branch, digit]
                assert predict(partial)[user, 0, digit, code].item() == pytest.approx(sure)
                partial[user, 0, digit] = code
                total += sure
            assert sorted(digit for digit, _ in way) == [0, 1, 2, 3]
            if policy == "logsumexp":  # one order of 24, all of which count
                assert total <= ranked.score[user, branch].item() + math.log(24) + 1e-9
            else:
                assert total == pytest.approx(ranked.score[user, branch].item())
