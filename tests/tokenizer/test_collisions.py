"""SIDs as keys, and numbering items that share one."""

import numpy as np
import pytest

from recbole_diffgrm import UserError
from recbole_diffgrm.tokenizer.collisions import from_keys, group_sizes, number_members, shuffle_members, to_keys


@pytest.mark.parametrize(
    ("num_digits", "codebook_size"),
    [(1, 2), (4, 256), (5, 4096), (8, 256), (32, 4096), (3, 3), (33, 4), (64, 2), (64, 4), (64, 4096)],
)
def test_keys(num_digits, codebook_size):
    codes = np.random.default_rng(0).integers(0, codebook_size, (500, num_digits)).astype(np.uint16)
    codes[:20] = 0
    codes[20:40, 1:] = 0
    codes[40:60, -1] = 0
    key = to_keys(codes, codebook_size)
    assert (from_keys(key, num_digits, codebook_size) == codes).all()
    assert (codes[np.argsort(key, kind="stable")] == codes[np.lexsort(codes.T[::-1])]).all()
    assert len(np.unique(key)) == len(np.unique(codes, axis=0))
    sizes = group_sizes(codes, codebook_size)
    assert all(sizes[i] == (codes == codes[i]).all(axis=1).sum() for i in range(0, 500, 25))


def test_number_members():
    codes = np.array([[1, 2], [3, 0], [1, 2], [1, 2]], np.uint16)
    empty = np.zeros((0, 3), np.uint16)
    numbered = number_members(codes, 4, empty)
    assert numbered.tolist() == [[1, 2, 0], [3, 0, 0], [1, 2, 1], [1, 2, 2]]
    more = number_members(np.array([[3, 0], [0, 0], [3, 0]], np.uint16), 4, numbered)
    assert more.tolist() == [[3, 0, 1], [0, 0, 0], [3, 0, 2]]
    with pytest.raises(UserError, match=r"sid_collisions: 4 items .* extra_digit with sid_codebook_size 3"):
        number_members(np.array([[1, 2]], np.uint16), 3, numbered)


@pytest.mark.parametrize(("num_digits", "codebook_size"), [(40, 16), (63, 4096)])
def test_number_members_of_long_sids(num_digits, codebook_size):
    codes = np.random.default_rng(0).integers(0, codebook_size, (30, num_digits)).astype(np.uint16)
    codes[10:20] = codes[:10]
    codes[10:20, -1] += codes[10:20, -1] == 0
    codes[20:30] = codes[:10]
    numbered = number_members(codes, codebook_size, np.zeros((0, num_digits + 1), np.uint16))
    assert len(np.unique(numbered, axis=0)) == 30
    assert (numbered[:, :-1] == codes).all()
    for i, row in enumerate(codes):
        assert numbered[i, -1] == (codes[:i] == row).all(axis=1).sum()


def test_shuffle_members():
    codes = np.array([[1, 2], [3, 0], [1, 2], [1, 2]], np.uint16)
    empty = np.zeros((0, 3), np.uint16)
    shuffled = shuffle_members(codes, 8, empty, 5, seed=0)
    assert (shuffled[:, :2] == codes).all()
    # whatever comes with it, and all at once or one after the other
    assert (shuffle_members(codes[[1]], 8, empty, 5, seed=0) == shuffled[[1]]).all()
    table = empty
    for row in codes:
        table = np.concatenate([table, shuffle_members(row[None], 8, table, 5, seed=0)])
    assert (table == shuffled).all()
    assert shuffle_members(codes[:0], 8, empty, 5, seed=0).shape == (0, 3)
    whole_group = shuffle_members(np.repeat(codes[:1], 5, axis=0), 8, empty, 5, seed=0)
    assert sorted(whole_group[:, 2].tolist()) == [0, 1, 2, 3, 4]
    with pytest.raises(UserError, match=r"6 items .* sid_hash_size 5"):
        shuffle_members(codes[:1], 8, whole_group, 5, seed=0)


def test_random_digits_are_uniform():
    codes = np.stack(np.divmod(np.arange(4096), 64), axis=1).astype(np.uint16)
    empty = np.zeros((0, 3), np.uint16)
    digit = shuffle_members(codes, 64, empty, 16, seed=0)[:, 2]
    counts = np.bincount(digit, minlength=16)
    assert counts.min() > 256 - 5 * 16
    assert counts.max() < 256 + 5 * 16
    assert (shuffle_members(codes, 64, empty, 16, seed=1)[:, 2] != digit).mean() > 0.8
