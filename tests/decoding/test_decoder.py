"""IDs of the catalogue out of a search, against loops."""

import math

import pytest
import torch

from recbole_diffgrm.decoding.beam import Ranked
from recbole_diffgrm.decoding.catalogue import Catalogue
from recbole_diffgrm.decoding.decoder import Policy, digit_order, existing, predictor, search, users_at_once
from recbole_diffgrm.network.network import MASKED
from tests.decoding.test_beam import network

POLICIES = [Policy("catalogue", "logsumexp", 0), Policy("catalogue", "max", 0)] + [
    Policy(kind, "logsumexp", 5) for kind in ("paper", "released", "fixed_order")
]


def catalogue(items=40, digits=3, codes=5, seed=0):
    sids = torch.randint(codes, (items + 1, digits), generator=torch.Generator().manual_seed(seed))
    return Catalogue.build(sids, codes, torch.zeros(items + 1))


def histories(net, users=5, seed=1):
    draw = torch.Generator().manual_seed(seed)
    sids = torch.randint(net.shape.codes, (users, 6, net.shape.digits), generator=draw)
    return sids, torch.randint(1, 7, (users,), generator=draw)


@torch.no_grad()
def test_predictions_for_open_digits():
    """The last layer is spared known digits; what is left is the same, also beside empty places of a beam."""
    net = network(3, 5, 0)
    history = net.encode(*histories(net))
    known = torch.full((5, 4, 3), MASKED)
    draw = torch.Generator().manual_seed(2)
    known[:, :3].scatter_(2, torch.randint(3, (5, 3, 1), generator=draw), torch.randint(5, (5, 3, 1), generator=draw))
    expected = net.logits(net.decode(known, history)).log_softmax(-1)
    found = predictor(net, history)(known)
    is_open = (known == MASKED)[:, :3]
    assert torch.allclose(found[:, :3][is_open], expected[:, :3][is_open])


@torch.no_grad()
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: f"{policy.kind}-{policy.merge}")
def test_ids_exist_and_appear_once(policy):
    known, net = catalogue(), network(3, 5, 0)
    ranked = search(net, net.encode(*histories(net)), known, [12], policy)
    found = existing(ranked, known)
    written = known.lattice_ids.tolist()
    for user in range(5):
        live = [place for place in range(ranked.ids.shape[1]) if ranked.score[user, place] > -math.inf]
        ids = [tuple(ranked.ids[user, place].tolist()) for place in live]
        expected = [one for one in dict.fromkeys(ids) if list(one) in written]
        rows = [row for row in found.rows[user].tolist() if row >= 0]
        assert [tuple(written[row]) for row in rows] == expected
        assert found.generated[user] == len(ids) and found.distinct[user] == len(set(ids))
        scores = [ranked.score[user, ids.index(one)].item() for one in expected]
        assert found.score[user][: len(rows)].tolist() == scores
        assert scores == sorted(scores, reverse=True)
        if policy.kind == "catalogue":
            assert len(rows) == len(ids) == len(set(ids)) == 12


def test_ids_found_twice_count_where_they_are_best():
    known = catalogue()
    one, other = known.lattice_ids[3].tolist(), known.lattice_ids[7].tolist()
    ids = torch.tensor([[one, [4, 4, 9], other, one, [4, 4, 9], other]])
    score = torch.tensor([[-1.0, -2.0, -3.0, -4.0, -5.0, -torch.inf]])
    found = existing(Ranked(ids, score, []), known)
    assert found.rows.tolist() == [[3, 7, -1, -1, -1, -1]]
    assert found.score[0, :2].tolist() == [-1.0, -3.0]
    assert found.generated.tolist() == [5] and found.distinct.tolist() == [3]


@torch.no_grad()
def test_a_fixed_order_is_kept_to():
    known, net = catalogue(), network(3, 5, 0)
    ranked = search(net, net.encode(*histories(net)), known, [4], Policy("fixed_order", "logsumexp", 5))
    order = digit_order(3, 5)
    assert sorted(order.tolist()) == [0, 1, 2]
    assert [step.digit.unique().tolist() for step in ranked.steps] == [[digit] for digit in order.tolist()]
    assert len({tuple(digit_order(4, seed).tolist()) for seed in range(20)}) > 5


def test_chunks_follow_the_memory():
    shape = network(3, 5, 0).shape
    chunk = users_at_once(shape, 32, 10, 64)
    assert users_at_once(shape, 32, 10, 128) == pytest.approx(2 * chunk, abs=1)
    assert users_at_once(shape, 64, 10, 64) < chunk
    assert users_at_once(shape, 10_000, 50, 0.001) == 1
