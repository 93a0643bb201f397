"""Beam search against enumeration of all SIDs and orders, and against loops over branches."""

import itertools
import math

import pytest
import torch

from recbole_diffgrm.generation import lattice as lattices
from recbole_diffgrm.generation.beam_search import LatticeConstraint, NoConstraint, TrieConstraint, beam_search
from recbole_diffgrm.generation.semantic_ids import MASKED
from tests.generation.helpers import RandomStep, lattice_of, random_sids, trie_of

CATALOGS = [(3, 4, 12, 0), (3, 4, 40, 1), (2, 3, 9, 2), (1, 6, 4, 3), (4, 2, 7, 4)]  # n, M, items, seed


def path_score(step, user, num_users, sid, order):
    """Log-probability of a SID whose digits are filled in the order given."""
    partial, total = torch.full((num_users, 1, len(sid)), MASKED), 0.0
    for digit in order:
        total += step(partial)[user, 0, digit, sid[digit]].item()
        partial[:, 0, digit] = sid[digit]
    return total


def live_sids(beams, user):
    """{SID: score} of a user, best first."""
    live = beams.scores[user] > -math.inf
    assert beams.scores[user].tolist() == sorted(beams.scores[user].tolist(), reverse=True)
    sids = list(map(tuple, beams.sids[user][live].tolist()))
    assert len(set(sids)) == len(sids)
    return dict(zip(sids, beams.scores[user][live].tolist()))


@pytest.mark.parametrize("path_merge", ["max", "logsumexp"])
@pytest.mark.parametrize(("n", "codebook_size", "num_items", "seed"), CATALOGS)
def test_a_wide_lattice_beam_equals_enumeration(n, codebook_size, num_items, seed, path_merge):
    """The mean (or largest) probability of each SID over all orders of its digits."""
    step = RandomStep(n, codebook_size, 2, seed)
    sids = random_sids(num_items, n, codebook_size, seed)
    beams = beam_search(step, LatticeConstraint(lattice_of(sids, codebook_size), path_merge), [1000], 2)
    expected = sorted(set(map(tuple, sids.tolist())))
    for user in range(2):
        generated = live_sids(beams, user)
        assert sorted(generated) == expected
        for sid in expected:
            paths = [path_score(step, user, 2, sid, order) for order in itertools.permutations(range(n))]
            score = max(paths) if path_merge == "max" else math.log(sum(map(math.exp, paths)) / len(paths))
            assert generated[sid] == pytest.approx(score, abs=1e-9)


@pytest.mark.parametrize(
    ("n", "codebook_size", "num_items", "seed"), [*CATALOGS, (5, 3, 60, 5), (3, 4096, 50, 6), (8, 2, 90, 7)]
)
def test_a_wide_trie_beam_equals_enumeration(n, codebook_size, num_items, seed):
    step = RandomStep(n, codebook_size, 2, seed)
    sids = random_sids(num_items, n, codebook_size, seed)
    beams = beam_search(step, TrieConstraint(trie_of(sids, codebook_size)), [1000], 2)
    expected = sorted(set(map(tuple, sids.tolist())))
    for user in range(2):
        generated = live_sids(beams, user)
        assert sorted(generated) == expected
        for sid in expected:
            assert generated[sid] == pytest.approx(path_score(step, user, 2, sid, range(n)), abs=1e-9)
    assert [beam_step.digit.unique().tolist() for beam_step in beams.steps] == [[digit] for digit in range(n)]


@pytest.mark.parametrize("constraint", [LatticeConstraint, TrieConstraint])
@pytest.mark.parametrize("width", [1, 3, 8])
def test_users_do_not_depend_on_each_other(width, constraint):
    step, sids = RandomStep(4, 5, 6), random_sids(60, 4, 5)
    allowed = constraint((lattice_of if constraint is LatticeConstraint else trie_of)(sids, 5))
    together = beam_search(step, allowed, [width], 6)
    existing = set(map(tuple, sids.tolist()))
    for user in range(6):
        alone = beam_search(lambda *known: step(*known, users=torch.tensor([user])), allowed, [width], 1)  # noqa: B023
        expected, generated = live_sids(alone, 0), live_sids(together, user)
        assert list(generated) == list(expected)
        assert list(generated.values()) == pytest.approx(list(expected.values()))
        assert set(generated) <= existing


def paper_beam(step, user, num_users, shape, widths, order=None, greedy_last=False):
    """The paper's equations (Sec. 3.4), one branch, digit and code at a time: [(score, SID)], best first."""
    n, codebook_size = shape
    beam = [(0.0, (MASKED,) * n)]
    for number in range(n):
        reached = []
        for score, partial in beam:
            log_probs = step(torch.tensor(partial).expand(num_users, 1, n))[user, 0]
            ways = [
                (score + log_probs[digit, code].item(), (*partial[:digit], code, *partial[digit + 1 :]))
                for digit in range(n)
                if partial[digit] == MASKED and (order is None or digit == order[number])
                for code in range(codebook_size)
            ]
            reached += [max(ways)] if greedy_last and number == n - 1 else ways
        beam = sorted(reached, reverse=True)[: widths[min(number, len(widths) - 1)]]
    return beam


@pytest.mark.parametrize("how", [{}, {"greedy_last": True}, {"order": [2, 0, 1]}], ids=str)
@pytest.mark.parametrize("widths", [[1], [5], [12], [9, 4], [6, 6, 3]], ids=str)
def test_without_a_constraint_it_equals_the_paper(how, widths):
    step = RandomStep(3, 4, 2)
    beams = beam_search(step, NoConstraint(3, 4, **how), widths, 2)
    for user in range(2):
        expected = paper_beam(step, user, 2, (3, 4), widths, **how)
        live = beams.scores[user] > -math.inf  # a fixed order reaches only M branches in its first step
        assert beams.scores[user][live].tolist() == pytest.approx([score for score, _ in expected])
        assert sorted(map(tuple, beams.sids[user][live].tolist())) == sorted(sid for _, sid in expected)


def test_a_fixed_order_is_kept_to():
    beams = beam_search(RandomStep(3, 5, 5), NoConstraint(3, 5, order=[1, 2, 0]), [4], 5)
    assert [beam_step.digit.unique().tolist() for beam_step in beams.steps] == [[1], [2], [0]]


def constrained_beam(step, user, num_users, sids, widths, path_merge=None):
    """A beam over existing partial SIDs, one branch and code at a time: {SID: score}. No path_merge: left to right."""
    n, distinct = sids.shape[1], sorted(set(map(tuple, sids.tolist())))
    beam = {(MASKED,) * n: 0.0}
    for number in range(n):
        reached = {}
        for partial, score in beam.items():
            log_probs = step(torch.tensor(partial).expand(num_users, 1, n))[user, 0]
            below = [sid for sid in distinct if all(known in (MASKED, code) for known, code in zip(partial, sid))]
            for digit in [number] if path_merge is None else [d for d in range(n) if partial[d] == MASKED]:
                for code in {sid[digit] for sid in below}:
                    state = (*partial[:digit], code, *partial[digit + 1 :])
                    reached.setdefault(state, []).append(score + log_probs[digit, code].item())
        scores = {
            state: math.log(sum(map(math.exp, ways))) if path_merge == "logsumexp" else max(ways)
            for state, ways in reached.items()
        }
        kept = sorted(scores, key=scores.get, reverse=True)[: widths[min(number, len(widths) - 1)]]
        beam = {state: scores[state] for state in kept}
    num_orders = math.factorial(n) if path_merge == "logsumexp" else 1
    return {state: score - math.log(num_orders) for state, score in beam.items()}


def check_narrow_beam(constraint, step, sids, widths, path_merge=None):
    beams = beam_search(step, constraint, widths, 3)
    for user in range(3):
        expected = constrained_beam(step, user, 3, sids, widths, path_merge)
        generated = live_sids(beams, user)
        assert list(generated) == list(expected)
        assert list(generated.values()) == pytest.approx(list(expected.values()))


WIDTHS = pytest.mark.parametrize("widths", [[1], [4], [9, 5], [10, 8, 6, 2]], ids=str)
SIZES = pytest.mark.parametrize(("n", "codebook_size"), [(5, 4), (8, 2), (3, 4096)])


@pytest.mark.parametrize("path_merge", ["max", "logsumexp"])
@WIDTHS
@SIZES
@pytest.mark.parametrize("pairs_per_chunk", [lattices.PAIRS_PER_CHUNK, 20])
def test_a_narrow_lattice_beam_equals_a_loop(n, codebook_size, widths, path_merge, pairs_per_chunk, monkeypatch):
    """Long lists of SIDs below a branch, and short ones; beams that drop branches."""
    monkeypatch.setattr(lattices, "PAIRS_PER_CHUNK", pairs_per_chunk)
    sids = random_sids(50, n, codebook_size, seed=3)
    constraint = LatticeConstraint(lattice_of(sids, codebook_size), path_merge)
    check_narrow_beam(constraint, RandomStep(n, codebook_size, 3, 1), sids, widths, path_merge)


@WIDTHS
@SIZES
def test_a_narrow_trie_beam_equals_a_loop(n, codebook_size, widths):
    sids = random_sids(50, n, codebook_size, seed=3)
    constraint = TrieConstraint(trie_of(sids, codebook_size))
    check_narrow_beam(constraint, RandomStep(n, codebook_size, 3, 1), sids, widths)


def constraints():
    sids = random_sids(40, 4, 4, seed=8)
    return {
        "max": LatticeConstraint(lattice_of(sids, 4), "max"),
        "logsumexp": LatticeConstraint(lattice_of(sids, 4), "logsumexp"),
        "trie": TrieConstraint(trie_of(sids, 4)),
        "none": NoConstraint(4, 4),
        "greedy_last": NoConstraint(4, 4, greedy_last=True),
    }


@pytest.mark.parametrize("kind", constraints())
def test_steps_lead_to_the_sids(kind):
    """Following a branch back gives each digit once, and the log-probabilities that the step gives along that path."""
    step = RandomStep(4, 4, 2, seed=5)
    beams = beam_search(step, constraints()[kind], [6], 2)
    for user in range(2):
        for branch in torch.nonzero(beams.scores[user] > -math.inf).flatten().tolist():
            path, index = [], branch
            for beam_step in reversed(beams.steps):
                path.append((beam_step.digit[user, index].item(), beam_step.log_prob[user, index].item()))
                index = beam_step.parent[user, index].item()
            partial, total = torch.full((2, 1, 4), MASKED), 0.0
            for digit, log_prob in reversed(path):
                code = beams.sids[user, branch, digit]
                assert step(partial)[user, 0, digit, code].item() == pytest.approx(log_prob)
                partial[user, 0, digit] = code
                total += log_prob
            assert sorted(digit for digit, _ in path) == [0, 1, 2, 3]
            if kind == "logsumexp":  # one order of 24, all of which count
                assert total <= beams.scores[user, branch].item() + math.log(24) + 1e-9
            else:
                assert total == pytest.approx(beams.scores[user, branch].item())


@pytest.mark.parametrize("kind", constraints())
def test_a_cache_reordered_by_parent_follows_its_branches(kind):
    """The step gets each branch with the index of the branch that it extends by one digit."""
    step, cache = RandomStep(4, 4, 2, seed=5), []

    def caching_step(known, parent):
        assert (parent is None) == (not cache)
        if cache:
            before = cache[-1].gather(1, parent[..., None].expand_as(known))
            differs = known != before
            assert (differs.sum(2) == 1).all() and (before[differs] == MASKED).all()
            assert parent.shape == known.shape[:2]
        cache.append(known)
        return step(known)

    constraint = constraints()[kind]
    beam_search(caching_step, constraint, [3], 2)  # narrow: every user has as many branches as the beam is wide
    assert len(cache) == constraint.num_digits


@pytest.mark.parametrize("kind", constraints())
def test_equal_scores_are_ranked_in_a_fixed_order(kind):
    def step(known, parent):
        return torch.zeros(*known.shape, 4)

    first, again = (beam_search(step, constraints()[kind], [5], 3) for _ in range(2))
    assert torch.equal(first.sids, again.sids)
    if kind in ("max", "trie"):
        assert torch.equal(first.sids[0], first.sids[2])
