"""DiffGRM in a beam search: predictions of open digits, names of decodings, memory."""

from typing import get_args

import pytest
import torch

from recbole_diffgrm.generation.beam_search import beam_search
from recbole_diffgrm.generation.item_ranking import keep_existing
from recbole_diffgrm.generation.semantic_ids import MASKED
from recbole_diffgrm.models.diffgrm.decoding import (
    CONSTRAINTS,
    digit_order,
    make_constraint,
    make_step,
    users_per_chunk,
)
from recbole_diffgrm.models.diffgrm.network import DiffGRMConfig
from recbole_diffgrm.models.diffgrm.options import DiffGRMOptions
from tests.generation.helpers import make_catalog
from tests.models.diffgrm.test_network import encode, make_network

CONFIG = DiffGRMConfig(3, 5, 8, 12, 2, 1, 2, 0.0, 6, True)
USERS = 5


@pytest.fixture
def network():
    return make_network(CONFIG).eval()


def histories(seed=1):
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(5, (USERS, 6, 3), generator=draw), torch.randint(1, 7, (USERS,), generator=draw)


def test_decodings_are_the_values_of_the_option():
    assert set(get_args(DiffGRMOptions.model_fields["decoding"].annotation)) == set(CONSTRAINTS)


@torch.no_grad()
def test_predictions_of_open_digits(network):
    """The last layer skips known digits; the others are the same, also beside empty entries of a beam."""
    history = encode(network, *histories())
    known = torch.full((USERS, 4, 3), MASKED)
    draw = torch.Generator().manual_seed(2)
    digit, code = (torch.randint(size, (USERS, 3, 1), generator=draw) for size in (3, 5))
    known[:, :3].scatter_(2, digit, code)
    expected = network.logits(network.decode(known, history)).log_softmax(-1)
    log_probs = make_step(network, history)(known, None)
    is_open = (known == MASKED)[:, :3]
    assert torch.allclose(log_probs[:, :3][is_open], expected[:, :3][is_open])


@torch.no_grad()
@pytest.mark.parametrize("path_merge", ["max", "logsumexp"])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("decoding", CONSTRAINTS)
def test_every_decoding_generates_sids(network, decoding, normalize, path_merge):
    ids, history = make_catalog(), encode(network, *histories())
    constraint = make_constraint(decoding, path_merge, normalize, ids, seed=5)
    beams = beam_search(make_step(network, history), constraint, [12], USERS, leaf_size=int(normalize))
    generated = keep_existing(beams, ids)
    assert (generated.rows >= 0).any(dim=1).all()
    if decoding == "constrained":
        assert (generated.num_generated == 12).all() and (generated.rows >= 0).all()


@torch.no_grad()
@pytest.mark.parametrize("width", [1, 3, 8])
@pytest.mark.parametrize("normalize", [False, True])
def test_users_do_not_depend_on_each_other(network, width, normalize):
    sids, length = histories()
    constraint = make_constraint("constrained", "max", normalize, make_catalog(60), seed=0)

    def search(chosen):
        history = encode(network, sids[chosen], length[chosen])
        return beam_search(make_step(network, history), constraint, [width], len(chosen), leaf_size=int(normalize))

    together = search(torch.arange(USERS))
    for user in range(USERS):
        alone = search(torch.tensor([user]))
        assert together.sids[user].tolist() == alone.sids[0].tolist()
        assert torch.allclose(together.scores[user], alone.scores[0])


@torch.no_grad()
def test_a_fixed_order_is_kept_to(network):
    history = encode(network, *histories())
    constraint = make_constraint("fixed_order", "max", False, make_catalog(), seed=5)
    beams = beam_search(make_step(network, history), constraint, [4], USERS)
    assert beams.order.flatten(0, 1).unique(dim=0).tolist() == [digit_order(3, 5)]


def test_greedy_last_and_plain_are_different_searches():
    ids = make_catalog()
    assert make_constraint("unconstrained_greedy_last", "max", False, ids, 0).greedy_last
    assert not make_constraint("unconstrained", "max", False, ids, 0).greedy_last


def test_fixed_orders():
    assert sorted(digit_order(4, 0)) == [0, 1, 2, 3]
    assert digit_order(4, 7) == digit_order(4, 7)
    assert len({tuple(digit_order(4, seed)) for seed in range(20)}) > 5


def test_chunks_follow_the_memory():
    chunk = users_per_chunk(CONFIG, 32, 10, 64)
    assert users_per_chunk(CONFIG, 32, 10, 128) == pytest.approx(2 * chunk, abs=1)
    assert users_per_chunk(CONFIG, 64, 10, 64) < chunk
    assert users_per_chunk(CONFIG, 10_000, 50, 0.001) == 1
