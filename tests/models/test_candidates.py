"""Rankings of items and SIDs, with and without seen items, against loops."""

import math

import pytest
import torch

from recbole_diffgrm.evaluation.evaluator import evaluate
from recbole_diffgrm.generation.item_ranking import GeneratedSids, RankedPairs, mask_scores
from recbole_diffgrm.models.candidates import (
    NOT_RANKED,
    GeneratedItems,
    ItemScores,
    RankedItems,
    SidItemScores,
    rank_in_list,
    unique_pairs,
)
from tests.conftest import build_tiny
from tests.generation.helpers import make_catalog


def rank_slowly(scores: list[float], seen: set[int]) -> list[int]:
    """Items, best first: the higher score, then the smaller number. Padding, -inf, NaN and seen ones are not ranked."""
    ranked = [item for item in range(1, len(scores)) if scores[item] > -math.inf and item not in seen]
    return sorted(ranked, key=lambda item: (-scores[item], item))


def rank_of(entry, ranked: list) -> int:
    return ranked.index(entry) + 1 if entry in ranked else NOT_RANKED


def random_scores(levels: int, num_users: int = 40, num_items: int = 22) -> torch.Tensor:
    """With ties if there are few levels, and with some scores of -inf."""
    draw = torch.Generator().manual_seed(levels)
    scores = torch.randint(levels, (num_users, num_items + 1), generator=draw).float()
    return scores.masked_fill(torch.rand(scores.shape, generator=draw) < 0.1, -math.inf)


def random_targets(num_users: int = 40, num_items: int = 22) -> torch.Tensor:
    return torch.randint(1, num_items + 1, (num_users,), generator=torch.Generator().manual_seed(1))


def histories(target: torch.Tensor, num_items: int = 22) -> tuple[torch.Tensor, torch.Tensor]:
    """Seen pairs in random order: items that occur several times, users who have seen their target, users with no
    history and one who has seen everything."""
    draw = torch.Generator().manual_seed(2)
    row = torch.randint(len(target) - 5, (300,), generator=draw)
    item = torch.randint(1, num_items + 1, (300,), generator=draw)
    row = torch.cat([row, torch.tensor([0, 0, 7]), torch.full((num_items,), 3)])
    item = torch.cat([item, target[[0, 0, 7]], torch.arange(1, num_items + 1)])
    order = torch.randperm(len(row), generator=draw)
    return row[order], item[order]


def seen_by(user: int, exclude: tuple[torch.Tensor, torch.Tensor] | None) -> set[int]:
    return set() if exclude is None else set(exclude[1][exclude[0] == user].tolist())


# Scores of all items


@pytest.mark.parametrize("is_filtered", [False, True])
@pytest.mark.parametrize("levels", [2, 4, 1000])
def test_item_scores_rank_as_a_loop_does(levels, is_filtered):
    scores, target = random_scores(levels), random_targets()
    exclude = histories(target) if is_filtered else None
    candidates = ItemScores(scores.clone())
    ranks = candidates.target_rank(target, exclude)
    expected = [rank_slowly(row, seen_by(user, exclude)) for user, row in enumerate(scores.tolist())]
    assert ranks.dtype == torch.int32
    assert ranks.tolist() == [rank_of(int(item), ranked) for item, ranked in zip(target, expected)]
    assert NOT_RANKED in ranks and (ranks < NOT_RANKED).any()
    for k in (1, 5, 22, 23, 50):
        top = candidates.top_k(k, exclude)
        assert top.items.tolist() == [(ranked + [0] * 23)[: min(k, 23)] for ranked in expected]
        for user, (items, values) in enumerate(zip(top.items.tolist(), top.scores.tolist())):
            assert values == [scores[user, item].item() if item else -math.inf for item in items]
    assert torch.equal(candidates.dense_scores()[:, 1:], scores[:, 1:])  # filtering does not change them


@pytest.mark.parametrize("levels", [2, 4, 1000])
def test_target_rank_equals_that_of_masked_scores(levels):
    scores, target = random_scores(levels), random_targets()
    draw = torch.Generator().manual_seed(3)
    scores[torch.rand(scores.shape, generator=draw) < 0.1] = math.nan
    scores[5, target[5]] = math.nan
    exclude = histories(target)
    ranks = ItemScores(scores.clone()).target_rank(target, exclude)
    masked = ItemScores(mask_scores(scores.clone(), exclude)).target_rank(target)
    assert ranks.tolist() == masked.tolist()
    expected = [rank_slowly(row, seen_by(user, exclude)) for user, row in enumerate(scores.tolist())]
    assert ranks.tolist() == [rank_of(int(item), ranked) for item, ranked in zip(target, expected)]
    assert (ranks[[0, 3, 5, 7]] == NOT_RANKED).all()  # seen (twice, with everything, once) and NaN


def test_nothing_to_filter():
    scores, target = random_scores(1000), random_targets()
    none = torch.empty(0, dtype=torch.int64)
    candidates = ItemScores(scores)
    assert candidates.target_rank(target, (none, none)).tolist() == candidates.target_rank(target).tolist()
    assert torch.equal(candidates.top_k(5, (none, none)).items, candidates.top_k(5).items)


def test_item_scores_have_no_sids():
    candidates, target = ItemScores(random_scores(4)), random_targets()
    assert candidates.sid_target_rank(target) is None
    assert candidates.count_sids(target, 10) == {}


# Scores of all items, with SIDs


def generate(semantic_ids, num_users: int, width: int, seed: int = 0) -> GeneratedSids:
    """Random SIDs; some users have fewer, one has none."""
    draw = torch.Generator().manual_seed(seed)
    rows = torch.stack([torch.randperm(semantic_ids.num_sids, generator=draw) for _ in range(num_users)])[:, :width]
    rows[1, width // 2 :], rows[2] = -1, -1
    scores = -torch.rand(rows.shape, generator=draw).cumsum(1)
    num_distinct = (rows >= 0).sum(1)
    return GeneratedSids(rows, scores.masked_fill(rows < 0, -math.inf), num_distinct + 3, num_distinct + 1)


@pytest.mark.parametrize("ranking", ["all", "unseen"])
@pytest.mark.parametrize("levels", [3, 1000])
@pytest.mark.parametrize("codebook_size", [2, 3, 30])
def test_a_sid_ranks_where_its_best_item_does(codebook_size, levels, ranking):
    """Against a loop. A SID without a ranked item is not ranked; of equal scores the smaller SID comes first."""
    semantic_ids = make_catalog(22, 2, codebook_size)
    scores, target = random_scores(levels), random_targets()
    exclude = histories(target) if ranking == "unseen" else None
    candidates = SidItemScores(scores.clone(), semantic_ids)
    ranks = candidates.sid_target_rank(target, exclude)
    sids = semantic_ids.lookup(torch.arange(23)).tolist()
    expected = []
    for user, item in enumerate(target.tolist()):
        best: dict[tuple[int, ...], float] = {}
        for ranked in rank_slowly(scores[user].tolist(), seen_by(user, exclude)):
            best.setdefault(tuple(sids[ranked]), scores[user, ranked].item())
        expected.append(rank_of(tuple(sids[item]), sorted(best, key=lambda sid: (-best[sid], sid))))
    assert ranks.tolist() == expected
    ranked = [rank_slowly(row, seen_by(user, exclude)) for user, row in enumerate(scores.tolist())]
    assert candidates.target_rank(target, exclude).tolist() == [
        rank_of(item, of_user) for item, of_user in zip(target.tolist(), ranked)
    ]
    shared = sum(sids[1:].count(sids[item]) > 1 for item in target.tolist())
    assert candidates.count_sids(target, 10, exclude) == {"users": 40, "shared_targets": shared}


# Items of generated SIDs


@pytest.mark.parametrize("is_filtered", [False, True])
def test_lists_deeper_than_the_depth(is_filtered):
    """A list may be asked for that is longer than the ranking of targets goes."""
    semantic_ids, target = make_catalog(22, 2, 4), random_targets()
    exclude = histories(target) if is_filtered else None
    generated = generate(semantic_ids, 40, 3)
    shallow, deep = (GeneratedItems(generated, semantic_ids, depth) for depth in (5, 22))
    for k in (3, 5, 6, 22):
        top, expected = shallow.top_k(k, exclude), deep.top_k(22, exclude)
        assert torch.equal(top.items, expected.items[:, :k])
        assert torch.equal(top.scores, expected.scores[:, :k])
    ranks, deep_ranks = shallow.target_rank(target, exclude), deep.target_rank(target, exclude)
    assert torch.equal(ranks, deep_ranks.masked_fill(deep_ranks > 5, NOT_RANKED))
    assert (deep_ranks > 5).any() and (deep_ranks <= 5).any()


def test_generated_items_against_a_loop():
    """Items, their scores, ranks of items and of SIDs, counts; questions about two rankings in turn."""
    semantic_ids, target = make_catalog(22, 2, 4), random_targets()
    seen = histories(target)
    candidates = GeneratedItems(generate(semantic_ids, 40, 3), semantic_ids, 22)
    rows, scores = candidates.generated.rows.tolist(), candidates.generated.scores.tolist()
    row_of = semantic_ids.sid_index.tolist()
    for exclude in (None, seen, None, seen):
        items, item_ranks = candidates.top_k(22, exclude), candidates.target_rank(target, exclude).tolist()
        sid_ranks, num_generated = candidates.sid_target_rank(target, exclude).tolist(), 0
        for user in range(40):
            unseen = sorted(set(range(1, 23)) - seen_by(user, exclude))
            sids = [row for row in rows[user] if row >= 0 and any(row_of[item] == row for item in unseen)]
            of_sids = [item for row in sids for item in unseen if row_of[item] == row]
            ranked = of_sids + [item for item in unseen if item not in of_sids]  # all are equally popular
            assert [item for item in items.items[user].tolist() if item] == ranked
            score_of = dict(zip(rows[user], scores[user]))
            of_items = [score_of.get(row_of[item], -math.inf) for item in ranked]
            assert items.scores[user].tolist() == of_items + [-math.inf] * (22 - len(ranked))
            assert item_ranks[user] == rank_of(int(target[user]), ranked)
            assert sid_ranks[user] == rank_of(row_of[target[user]], sids)
            num_generated += min(10, len(of_sids))
        assert candidates.count_sids(target, 10, exclude)["generated_items"] == num_generated


@torch.inference_mode()
@pytest.mark.parametrize("model", ["DiffGRM", "HistoryCopy"])
@pytest.mark.parametrize("ranking", ["all", "unseen"])
@pytest.mark.parametrize("changes", [{}, {"sid_codebook_size": 2, "sid_num_digits": 2}, {"sid_num_digits": 1}], ids=str)
def test_dense_scores_rank_as_the_lists_do(options, model, ranking, changes):
    """SIDs shared by one item or two, by ten, and of a single digit."""
    config, _, model, loader = build_tiny(options, model, repeatable=ranking == "all", **changes)
    ranks = []
    for _, batch in loader:
        exclude = batch.seen if ranking == "unseen" else None
        items = model.candidates(batch.interaction, depth=40).top_k(40, exclude).items
        scores = model.full_sort_predict(batch.interaction)
        assert scores.shape == (len(batch.target), 41)
        assert all(len(set(row.tolist())) == 41 for row in scores), "a tie"
        dense = ItemScores(scores)
        assert torch.equal(dense.top_k(40, exclude).items, items)
        ranks.append(dense.target_rank(batch.target, exclude))
        if exclude is None:
            assert (items > 0).all()
        else:
            pairs = set(zip(*(part.tolist() for part in exclude)))
            assert not any((row, item) in pairs for row, listed in enumerate(items.tolist()) for item in listed)
    ranks = torch.cat(ranks)
    expected = torch.where(ranks <= 10, ranks, NOT_RANKED)  # evaluation goes down to max(topk)
    evaluation = evaluate(config, model, loader)[ranking]
    assert evaluation.ranks[loader.order].tolist() == expected.tolist()


# Helpers


def test_rank_in_list():
    lists = torch.tensor([[3, 1, 2], [1, 2, 0], [2, 3, 2]])
    assert rank_in_list(lists, torch.tensor([2, 3, 2])).tolist() == [3, NOT_RANKED, 1]


@pytest.mark.parametrize(("score", "is_finite"), [(-2.0, True), (math.nan, False), (math.inf, False)])
def test_scores_of_some_items_are_looked_at(score, is_finite):
    """Their ranks are numbers whatever the scores are."""
    pairs = RankedPairs(torch.tensor([0, 0, 1]), torch.tensor([2, 3, 1]), torch.tensor([-0.5, score, 0.0]))
    assert RankedItems(pairs, 2, make_catalog(num_items=6), depth=3).is_finite() == is_finite


def test_unique_pairs():
    row, item = unique_pairs((torch.tensor([2, 0, 2, 0, 2]), torch.tensor([4, 1, 4, 4, 3])), 5)
    assert list(zip(row.tolist(), item.tolist())) == [(0, 1), (0, 4), (2, 3), (2, 4)]


# Among sampled items, and of all items


@pytest.mark.parametrize("levels", [3, 1000])
@pytest.mark.parametrize("filters", [False, True])
def test_rank_among_sampled_items(levels, filters):
    scores, target = random_scores(levels), random_targets()
    negatives = torch.stack([(target - 1 + step) % 22 + 1 for step in (3, 9, 11, 20)], 1)
    exclude = histories(target) if filters else None
    ranks = ItemScores(scores.clone()).sampled_target_rank(target, negatives, exclude)
    for user, row in enumerate(scores.tolist()):
        offered = {int(target[user]), *negatives[user].tolist()}
        is_filtered = int(target[user]) in seen_by(user, exclude)
        ranked = [] if is_filtered else [item for item in rank_slowly(row, set()) if item in offered]
        assert int(ranks[user]) == rank_of(int(target[user]), ranked)


def test_generators_rank_sampled_items_as_their_lists_do():
    """Generated items first, the others by popularity: the order of a list that holds all items."""
    ids, target = make_catalog(num_items=22), random_targets()
    draw = torch.Generator().manual_seed(4)
    rows = torch.stack([torch.randperm(ids.num_sids, generator=draw)[:4] for _ in target])
    ones = torch.ones(len(target), dtype=torch.int64)
    generated = GeneratedSids(rows, -torch.arange(4.0).expand(rows.shape), 4 * ones, 4 * ones)
    candidates = GeneratedItems(generated, ids, depth=5)
    whole = GeneratedItems(generated, ids, depth=22).top_k(22).items.tolist()
    negatives = torch.stack([(target - 1 + step) % 22 + 1 for step in range(1, 20)], 1)
    ranks = candidates.sampled_target_rank(target, negatives)
    exclude = histories(target)
    of_all, of_unseen = candidates.full_target_rank(target), candidates.full_target_rank(target, exclude)
    for user, ranked in enumerate(whole):
        offered = {int(target[user]), *negatives[user].tolist()}
        assert int(ranks[user]) == rank_of(int(target[user]), [item for item in ranked if item in offered])
        assert int(of_all[user]) == rank_of(int(target[user]), ranked)
        unseen = [item for item in ranked if item not in seen_by(user, exclude)]
        assert int(of_unseen[user]) == rank_of(int(target[user]), unseen)
    assert (candidates.target_rank(target) == NOT_RANKED).any()  # its list is shorter
