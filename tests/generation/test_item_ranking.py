"""Items from SIDs, and SIDs from scores of items, against loops."""

import math

import pytest
import torch

from recbole_diffgrm.generation.beam_search import Beams, beam_search
from recbole_diffgrm.generation.constraints import LatticeConstraint, NoConstraint
from recbole_diffgrm.generation.item_ranking import (
    GeneratedSids,
    best_score_per_sid,
    compact_left,
    concat,
    dense_scores,
    has_unseen_item,
    keep_existing,
    mask_scores,
    rank_items,
    top_items,
)
from recbole_diffgrm.generation.semantic_ids import SemanticIds
from tests.generation.helpers import RandomStep, make_catalog

# Generated SIDs


@pytest.mark.parametrize("kind", ["constrained", "unconstrained", "greedy_last", "fixed_order"])
def test_sids_exist_and_appear_once(kind):
    ids = make_catalog()
    constraint = {
        "constrained": LatticeConstraint(ids.lattice),
        "unconstrained": NoConstraint(3, 5),
        "greedy_last": NoConstraint(3, 5, greedy_last=True),
        "fixed_order": NoConstraint(3, 5, order=[2, 0, 1]),
    }[kind]
    beams = beam_search(RandomStep(3, 5, 5), constraint, [12], 5)
    generated = keep_existing(beams, ids)
    existing = ids.sids.tolist()
    for user in range(5):
        live = [index for index in range(beams.sids.shape[1]) if beams.scores[user, index] > -math.inf]
        sids = [tuple(beams.sids[user, index].tolist()) for index in live]
        expected = [sid for sid in dict.fromkeys(sids) if list(sid) in existing]
        rows = [row for row in generated.rows[user].tolist() if row >= 0]
        assert [tuple(existing[row]) for row in rows] == expected
        assert generated.num_generated[user] == len(sids) and generated.num_distinct[user] == len(set(sids))
        scores = [beams.scores[user, sids.index(sid)].item() for sid in expected]
        assert generated.scores[user][: len(rows)].tolist() == scores
        assert scores == sorted(scores, reverse=True)
        if kind == "constrained":
            assert len(rows) == len(sids) == len(set(sids)) == 12


def test_a_sid_generated_twice_counts_where_it_is_best():
    ids = make_catalog()
    one, other = ids.sids[3].tolist(), ids.sids[7].tolist()
    sids = torch.tensor([[one, [4, 4, 9], other, one, [4, 4, 9], other]])
    scores = torch.tensor([[-1.0, -2.0, -3.0, -4.0, -5.0, -torch.inf]])
    generated = keep_existing(Beams(sids, scores, sids, sids), ids)
    assert generated.rows.tolist() == [[3, 7, -1, -1, -1, -1]]
    assert generated.scores[0, :2].tolist() == [-1.0, -3.0]
    assert generated.num_generated.tolist() == [5] and generated.num_distinct.tolist() == [3]


def test_chunks_of_users_are_padded_to_the_widest():
    narrow = GeneratedSids(*map(torch.tensor, ([[4], [2]], [[-1.0], [-2.0]], [1, 1], [1, 1])))
    wide = GeneratedSids(*map(torch.tensor, ([[0, 1, -1]], [[-0.5, -0.7, -math.inf]], [5], [3])))
    together = concat([narrow, wide])
    assert together.rows.tolist() == [[4, -1, -1], [2, -1, -1], [0, 1, -1]]
    assert torch.allclose(
        together.scores, torch.tensor([[-1, -math.inf, -math.inf], [-2, -math.inf, -math.inf], [-0.5, -0.7, -math.inf]])
    )
    assert together.num_generated.tolist() == [1, 1, 5] and together.num_distinct.tolist() == [1, 1, 3]


# Items of ranked SIDs


def catalog(codebook_size, collision_order="popularity", num_items=30):
    draw = torch.Generator().manual_seed(codebook_size)
    sids = torch.randint(codebook_size, (num_items + 1, 2), generator=draw)
    popularity = torch.randint(4, (num_items + 1,), generator=draw)  # with ties
    return SemanticIds.build(sids, max(codebook_size, 2), popularity, collision_order), sids, popularity


def rank_slowly(rows, sids, popularity, k, seen, collision_order):
    """The items of each SID in their order, then the others by popularity."""
    distinct = sorted(set(map(tuple, sids[1:].tolist())))
    every = range(1, len(sids))
    popular = sorted(every, key=lambda item: (-popularity[item].item(), item))
    ranked = []
    for user, mine in enumerate(rows.tolist()):
        items = []
        for row in mine:
            members = [item for item in every if row >= 0 and tuple(sids[item].tolist()) == distinct[row]]
            items += [item for item in (popular if collision_order == "popularity" else every) if item in members]
        items += [item for item in popular if item not in items]
        items = [item for item in items if (user, item) not in seen][:k]
        ranked.append(items + [0] * (k - len(items)))
    return ranked


def ranked_sids(num_sids, seed):
    """Of six users: some have few SIDs, one has none."""
    draw = torch.Generator().manual_seed(seed)
    rows = torch.stack([torch.randperm(num_sids, generator=draw) for _ in range(6)])[:, :8]
    rows[2, rows.shape[1] // 2 :] = -1
    rows[3] = -1
    return rows


@pytest.mark.parametrize("collision_order", ["popularity", "number"])
@pytest.mark.parametrize(("codebook_size", "k"), [(2, 5), (3, 20), (50, 4), (50, 12), (1, 7), (3, 40)])
def test_items_equal_a_loop(codebook_size, k, collision_order):
    """Many items per SID, few, and all with the same; lists longer than the SIDs' items, and than the catalog."""
    ids, sids, popularity = catalog(codebook_size, collision_order)
    rows = ranked_sids(ids.num_sids, seed=1)
    pairs = {(user, item) for user in (0, 2, 5) for item in range(1, 31, 3)} | {(4, item) for item in range(1, 31)}
    seen = tuple(torch.tensor(column) for column in zip(*sorted(pairs)))
    for hidden, hidden_pairs in ((None, set()), (seen, pairs)):
        ranked, num_generated = rank_items(rows, ids.groups, ids.popular, k, hidden)
        assert ranked.tolist() == rank_slowly(rows, sids, popularity, k, hidden_pairs, collision_order)
        for user, mine in enumerate(rows.tolist()):
            generated = [ids.sids[row].tolist() for row in mine if row >= 0]
            members = [i for i in range(1, 31) if sids[i].tolist() in generated and (user, i) not in hidden_pairs]
            assert num_generated[user] == min(k, len(members))


@pytest.mark.parametrize("codebook_size", [1, 3, 50])
def test_scores_of_all_items_give_the_same_lists(codebook_size):
    ids, *_ = catalog(codebook_size)
    rows = ranked_sids(ids.num_sids, seed=2)
    seen = (torch.tensor([0, 0, 2, 5]), torch.tensor([4, 7, 1, 30]))
    for hidden in (None, seen):
        scores = dense_scores(rows, ids.groups, ids.popular)
        assert all(len(set(row.tolist())) == 30 for row in scores[:, 1:])
        ranked, _ = rank_items(rows, ids.groups, ids.popular, 12, hidden)
        assert top_items(mask_scores(scores, hidden), 12).tolist() == ranked.tolist()


def test_sids_without_an_unseen_item():
    ids, sids, _ = catalog(3)
    rows = torch.tensor([[0, 3, 5], [2, 0, -1]])
    of_first = [item for item in range(1, 31) if sids[item].tolist() == ids.sids[0].tolist()]
    seen = (torch.tensor([0] * len(of_first) + [1]), torch.tensor([*of_first, of_first[0]]))
    has_unseen = has_unseen_item(rows, ids.groups, seen)
    assert has_unseen.tolist() == [[False, True, True], [True, len(of_first) > 1, False]]
    assert compact_left(rows, has_unseen, -1)[0].tolist() == [3, 5, -1]


# Scores of items


def test_equal_scores_are_ranked_by_item():
    scores = torch.tensor([[0.0, 2, 1, 2, 1, 1], [0, 1, 1, 1, 1, 1], [0, 3, -math.inf, -math.inf, 5, -math.inf]])
    mask_scores(scores, (torch.tensor([0]), torch.tensor([1])))
    assert top_items(scores, 3).tolist() == [[3, 2, 4], [1, 2, 3], [4, 1, 0]]
    assert top_items(scores, 9).tolist()[0] == [3, 2, 4, 5, 0, 0]


def test_best_score_per_sid():
    draw = torch.Generator().manual_seed(0)
    sid_index = torch.cat([torch.tensor([-1]), torch.randint(6, (20,), generator=draw).int()])
    sid_index[1:7] = torch.arange(6)  # each SID has an item
    scores = torch.randn(9, 21, generator=draw)
    scores[0, 1:] = torch.where(sid_index[1:] == 3, scores[0, 1:], -math.inf)
    scores[:, 0] = -math.inf
    equal = torch.zeros(1, 21)
    equal[:, 0] = -math.inf
    # Ties in a defined order
    assert (top_items(best_score_per_sid(equal, sid_index, 6), 4) - 1).tolist() == [[0, 1, 2, 3]]
    for k in (1, 4, 10):
        rows = top_items(best_score_per_sid(scores, sid_index, 6), k) - 1
        for user in range(9):
            best = {i: max(float(scores[user, j]) for j in range(1, 21) if sid_index[j] == i) for i in range(6)}
            order = sorted((i for i in best if best[i] > -math.inf), key=lambda i: -best[i])
            expected = (order + [-1] * 7)[: min(k, 7)]
            assert rows[user].tolist() == expected
