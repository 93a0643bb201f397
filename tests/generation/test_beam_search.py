"""Beam search against enumeration of all SIDs and orders, and against loops over branches."""

import itertools
import math

import pytest
import torch

from recbole_diffgrm.generation import lattice as lattices
from recbole_diffgrm.generation.beam_search import beam_search
from recbole_diffgrm.generation.constraints import LatticeConstraint, NoConstraint, TrieConstraint
from recbole_diffgrm.generation.semantic_ids import MASKED, distinct_sids
from tests.generation.helpers import RandomStep, lattice_of, random_sids, trie_of

CATALOGS = [(3, 4, 12, 0), (3, 4, 40, 1), (2, 3, 9, 2), (1, 6, 4, 3), (4, 2, 7, 4)]  # n, M, items, seed


def lattice_constraint(sids, codebook_size, path_merge="max", normalize=False):
    return LatticeConstraint(lattice_of(sids, codebook_size), path_merge, normalize)


def trie_constraint(sids, codebook_size, normalize=False):
    return TrieConstraint(trie_of(sids, codebook_size), distinct_sids(sids)[0], normalize)


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
    beams = beam_search(step, trie_constraint(sids, codebook_size), [1000], 2)
    expected = sorted(set(map(tuple, sids.tolist())))
    for user in range(2):
        generated = live_sids(beams, user)
        assert sorted(generated) == expected
        for sid in expected:
            assert generated[sid] == pytest.approx(path_score(step, user, 2, sid, range(n)), abs=1e-9)
    live = beams.scores > -math.inf
    assert beams.order[live].unique(dim=0).tolist() == [list(range(n))]


@pytest.mark.parametrize("constraint", [LatticeConstraint, TrieConstraint])
@pytest.mark.parametrize("width", [1, 3, 8])
def test_users_do_not_depend_on_each_other(width, constraint):
    step, sids = RandomStep(4, 5, 6), random_sids(60, 4, 5)
    allowed = lattice_constraint(sids, 5) if constraint is LatticeConstraint else trie_constraint(sids, 5)
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
    assert beams.order[beams.scores > -math.inf].unique(dim=0).tolist() == [[1, 2, 0]]


def sids_below(partial, distinct):
    return [sid for sid in distinct if all(known in (MASKED, code) for known, code in zip(partial, sid))]


def code_log_probs(log_probs, below, digit, normalize):
    """{code: log-probability} of the codes that exist below a branch."""
    codes = {code: log_probs[digit, code].item() for code in sorted({sid[digit] for sid in below})}
    mass = math.log(sum(map(math.exp, codes.values()))) if normalize else 0.0
    return {code: log_prob - mass for code, log_prob in codes.items()}


def constrained_beam(step, user, num_users, sids, widths, path_merge=None, normalize=False, leaf_size=0):
    """A beam over existing partial SIDs, one branch and code at a time: {SID or leaf: score}. No path_merge: left to
    right."""
    n, distinct = sids.shape[1], sorted(set(map(tuple, sids.tolist())))
    beam, leaves = {(MASKED,) * n: 0.0}, {}
    for number in range(n):
        orders = math.log(math.factorial(n - number - 1)) if path_merge == "logsumexp" else 0.0
        reached = {(leaf, True): [score] for leaf, score in leaves.items()}
        for partial, score in beam.items():
            log_probs = step(torch.tensor(partial).expand(num_users, 1, n))[user, 0]
            below = sids_below(partial, distinct)
            for digit in [number] if path_merge is None else [d for d in range(n) if partial[d] == MASKED]:
                for code, log_prob in code_log_probs(log_probs, below, digit, normalize).items():
                    state = (*partial[:digit], code, *partial[digit + 1 :])
                    left = sids_below(state, distinct)
                    is_leaf = len(left) <= leaf_size or number == n - 1
                    state = left[0] if is_leaf and len(left) == 1 else state
                    reached.setdefault((state, is_leaf), []).append(score + log_prob + orders)
        scores = {
            state: math.log(sum(map(math.exp, ways))) if path_merge == "logsumexp" else max(ways)
            for state, ways in reached.items()
        }
        kept = sorted(scores, key=scores.get, reverse=True)[: widths[min(number, len(widths) - 1)]]
        leaves = {state: scores[state, is_leaf] for state, is_leaf in kept if is_leaf}
        beam = {state: scores[state, is_leaf] - orders for state, is_leaf in kept if not is_leaf}
    num_orders = math.factorial(n) if path_merge == "logsumexp" else 1
    ranked = sorted(leaves, key=leaves.get, reverse=True)
    return {leaf: leaves[leaf] - math.log(num_orders) for leaf in ranked}


def check_narrow_beam(constraint, step, sids, widths, path_merge=None, leaf_size=0):
    beams = beam_search(step, constraint, widths, 3, leaf_size=leaf_size)
    distinct = sorted(set(map(tuple, sids.tolist())))
    for user in range(3):
        expected = constrained_beam(step, user, 3, sids, widths, path_merge, constraint.normalize, leaf_size)
        generated = live_sids(beams, user)
        assert list(generated) == list(expected)
        assert list(generated.values()) == pytest.approx(list(expected.values()))
        for branch, leaf in enumerate(generated):
            begin, length = beams.below.begin[user, branch], beams.below.length[user, branch]
            rows = beams.below.rows[begin : begin + length].tolist()
            assert [distinct[row] for row in rows] == sids_below(leaf, distinct)


WIDTHS = pytest.mark.parametrize("widths", [[1], [4], [9, 5], [10, 8, 6, 2]], ids=str)
LEAVES = pytest.mark.parametrize(("normalize", "leaf_size"), [(False, 0), (True, 0), (True, 1), (False, 3), (True, 5)])
SIZES = pytest.mark.parametrize(("n", "codebook_size"), [(5, 4), (8, 2), (3, 4096)])


@pytest.mark.parametrize("path_merge", ["max", "logsumexp"])
@WIDTHS
@SIZES
@pytest.mark.parametrize("pairs_per_chunk", [lattices.PAIRS_PER_CHUNK, 20])
@LEAVES
def test_a_narrow_lattice_beam_equals_a_loop(
    n, codebook_size, widths, path_merge, pairs_per_chunk, normalize, leaf_size, monkeypatch
):
    """Long lists of SIDs below a branch, and short ones; beams that drop branches."""
    monkeypatch.setattr(lattices, "PAIRS_PER_CHUNK", pairs_per_chunk)
    sids = random_sids(50, n, codebook_size, seed=3)
    constraint = lattice_constraint(sids, codebook_size, path_merge, normalize)
    check_narrow_beam(constraint, RandomStep(n, codebook_size, 3, 1), sids, widths, path_merge, leaf_size)


@WIDTHS
@SIZES
@LEAVES
def test_a_narrow_trie_beam_equals_a_loop(n, codebook_size, widths, normalize, leaf_size):
    sids = random_sids(50, n, codebook_size, seed=3)
    constraint = trie_constraint(sids, codebook_size, normalize)
    check_narrow_beam(constraint, RandomStep(n, codebook_size, 3, 1), sids, widths, leaf_size=leaf_size)


def normalized_path_score(step, user, distinct, sid, order):
    """Like path_score, with probabilities that sum to 1 over the codes below each branch."""
    partial, total = [MASKED] * len(sid), 0.0
    for digit in order:
        log_probs = step(torch.tensor(partial).expand(2, 1, len(sid)))[user, 0]
        total += code_log_probs(log_probs, sids_below(partial, distinct), digit, True)[sid[digit]]
        partial[digit] = sid[digit]
    return total


@pytest.mark.parametrize("path_merge", ["max", "logsumexp", None])
@pytest.mark.parametrize("leaf_size", [0, 1])
@pytest.mark.parametrize(("n", "codebook_size", "num_items", "seed"), CATALOGS)
def test_normalized_probabilities_equal_enumeration(n, codebook_size, num_items, seed, path_merge, leaf_size):
    """A branch that is finished early has the score of its SID, and all SIDs together probability 1."""
    step, sids = RandomStep(n, codebook_size, 2, seed), random_sids(num_items, n, codebook_size, seed)
    distinct = sorted(set(map(tuple, sids.tolist())))
    if path_merge is None:
        constraint, orders = trie_constraint(sids, codebook_size, normalize=True), [tuple(range(n))]
    else:
        constraint = lattice_constraint(sids, codebook_size, path_merge, normalize=True)
        orders = list(itertools.permutations(range(n)))
    passes = []
    beams = beam_search(
        lambda known, parent: passes.append(known.shape[1]) or step(known), constraint, [1000], 2, leaf_size=leaf_size
    )
    for user in range(2):
        generated = live_sids(beams, user)
        assert sorted(generated) == distinct
        for sid in distinct:
            paths = [normalized_path_score(step, user, distinct, sid, order) for order in orders]
            score = max(paths) if path_merge == "max" else math.log(sum(map(math.exp, paths)) / len(paths))
            assert generated[sid] == pytest.approx(score, abs=1e-9)
        if path_merge != "max":
            assert sum(map(math.exp, generated.values())) == pytest.approx(1)
    if leaf_size and n > 2:
        assert sum(passes) < sum(self_passes(step, constraint))


def self_passes(step, constraint):
    """Branches that each step of a search has that finishes none early."""
    passes = []
    beam_search(lambda known, parent: passes.append(known.shape[1]) or step(known), constraint, [1000], 2)
    return passes


def test_normalizing_survives_probabilities_of_almost_zero():
    sids = torch.tensor([[0, 0], [1, 1], [1, 2]])

    def step(known, parent):
        return torch.tensor([0.0, -600.0, -650.0]).expand(*known.shape, 3)

    beams = beam_search(step, lattice_constraint(sids, 3, normalize=True), [10], 1, leaf_size=1)
    assert live_sids(beams, 0)[0, 0] == pytest.approx(0)
    assert all(math.isfinite(score) for score in live_sids(beams, 0).values())


def constraints():
    sids = random_sids(40, 4, 4, seed=8)
    return {
        "max": LatticeConstraint(lattice_of(sids, 4), "max"),
        "logsumexp": LatticeConstraint(lattice_of(sids, 4), "logsumexp"),
        "trie": trie_constraint(sids, 4),
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
            path = list(zip(beams.order[user, branch].tolist(), beams.log_probs[user, branch].tolist()))
            partial, total = torch.full((2, 1, 4), MASKED), 0.0
            for digit, log_prob in path:
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
