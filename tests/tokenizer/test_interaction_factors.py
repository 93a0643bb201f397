"""Factors of training interactions, and SVD codes made of them, against dense linear algebra and plain loops."""

from pathlib import Path

import numpy as np
import pytest

from recbole_diffgrm import Tokenizer, UserError
from recbole_diffgrm.tokenizer.interaction_factors import item_factors, training_matrix
from recbole_diffgrm.tokenizer.split_items import SplitItems
from tests.tokenizer.conftest import IDS, load_split, run_tokenizer


@pytest.fixture
def svd(settings, data) -> dict:
    """Without .item: nothing reads text."""
    (data / "tiny" / "tiny.item").unlink()
    load_col = {"inter": ["user_id", "item_id", "timestamp"]}
    return {**settings, "load_col": load_col, "sid_quantizer": "svd", "sid_num_digits": 3}


def read_sequences(path: Path) -> dict[str, list[str]]:
    """{user: items in order of time}"""
    rows: dict[str, list] = {}
    for line in path.read_text().splitlines()[1:]:
        user, item, _, time = line.split("\t")
        rows.setdefault(user, []).append((float(time), item))
    return {user: [item for _, item in sorted(row, key=lambda one: one[0])] for user, row in rows.items()}


def dense_matrix(sequences: dict[str, list[str]], items: list[str]) -> np.ndarray:
    """Of all but the last two interactions of a user (every user of `tiny` has four or more)."""
    matrix = np.zeros((len(sequences), len(items)))
    for row, sequence in enumerate(sequences.values()):
        for item in sequence[:-2]:
            matrix[row, items.index(item)] = 1
    return matrix


def test_training_matrix(svd, data):
    inter_file = data / "tiny" / "tiny.inter"
    inter_file.write_text(inter_file.read_text() + "u0\ti1\t1\t-2\nu0\ti1\t1\t-1\nu0\tlast\t1\t9999\n")
    _, split = load_split(svd)
    items = SplitItems.from_split(split)
    assert items.item_ids[~items.in_training].tolist() == ["last"]
    matrix = training_matrix(split, items.number[items.in_training]).toarray()
    known = items.item_ids[items.in_training].tolist()
    assert (matrix == dense_matrix(read_sequences(inter_file), known)).all()


def test_codes_against_dense_svd(svd, data):
    """The noise is small next to the gaps between most factors, so ranks move by a place or two at most."""
    tokenizer = run_tokenizer(svd).tokenizer
    ids = sorted(IDS)
    matrix = dense_matrix(read_sequences(data / "tiny" / "tiny.inter"), ids)
    factors = np.linalg.svd(matrix, full_matrices=False)[2][:3]
    codes = tokenizer.table(ids)
    for digit, factor in enumerate(factors):
        factor = factor * np.sign(factor[np.abs(factor).argmax()])
        factor = (factor - factor.min()) / (factor.max() - factor.min())
        order = np.argsort(factor)
        assert np.diff(factor[order]).min() > 1e-6  # else the noise could decide
        far_apart = np.ones(40, bool)
        close = np.flatnonzero(np.diff(factor[order]) < 2e-4)
        far_apart[order[np.concatenate([close, close + 1])]] = False
        expected = np.empty(40, int)
        for rank, item in enumerate(order):
            expected[item] = next(code for code in range(8) if rank < (code + 1) * 40 // 8)
        assert far_apart.sum() > 20
        assert (codes[far_apart, digit] == expected[far_apart]).all()
        assert (np.bincount(codes[:, digit]) == 5).all()


def test_factors():
    """Scaled to 0..1, strongest first, and reproducible; equal columns differ by noise only."""
    from scipy.sparse import csr_matrix

    matrix = (np.random.default_rng(1).random((50, 30)) < 0.2).astype(float)
    matrix[:, 7] = matrix[:, 3]
    factors = item_factors(csr_matrix(matrix), 4, seed=0)
    assert (factors == item_factors(csr_matrix(matrix), 4, seed=0)).all()
    assert factors.shape == (30, 4)
    assert np.abs(factors.min(axis=0)).max() < 1e-4
    assert np.abs(factors.max(axis=0) - 1).max() < 1e-4
    difference = np.abs(factors[3] - factors[7])
    assert (difference > 0).all()
    assert (difference < 1e-4).all()
    reference = np.linalg.svd(matrix)[2][:4]
    for factor, expected in zip(factors.T, reference):
        assert abs(np.corrcoef(factor, expected)[0, 1]) == pytest.approx(1, abs=1e-6)


def test_targets_do_not_count(svd, data):
    """Other items as targets of validation and test: the same codes, from the cache."""
    first = run_tokenizer(svd).tokenizer
    inter_file = data / "tiny" / "tiny.inter"
    head, *lines = inter_file.read_text().splitlines()
    sequences = read_sequences(inter_file)
    last_time = {
        user: max(float(line.split("\t")[3]) for line in lines if line.startswith(f"{user}\t")) for user in sequences
    }
    changed = [head]
    for user, sequence in sequences.items():
        changed += [f"{user}\t{item}\t1\t{time}" for time, item in enumerate(sequence[:-2])]
        changed += [f"{user}\ti{(int(user[1:]) * 7) % 40}\t1\t{last_time[user] + 100}", f"{user}\ti3\t1\t1e9"]
    inter_file.write_text("\n".join(changed) + "\n")
    second = run_tokenizer(svd).tokenizer
    assert (first.table(IDS) == second.table(IDS)).all()
    inter_file.write_text("\n".join([*changed, "u0\ti20\t1\t-5", "u0\ti21\t1\t-4"]) + "\n")  # and in training
    third = run_tokenizer(svd).tokenizer
    assert (first.table(IDS) != third.table(IDS)).any()


def test_items_without_training_interactions(svd, data):
    """Random codes, counted in the report; so have items that come later."""
    inter_file = data / "tiny" / "tiny.inter"
    inter_file.write_text(inter_file.read_text() + "u0\tlast\t1\t99999\n")
    tokenized = run_tokenizer(svd, sid_collisions="reassign")
    assert tokenized.report["items_without_interactions"] == 1
    assert tokenized.report["text_encoder"] is None
    assert tokenized.report["distinct_sids"] == 41
    random = run_tokenizer(svd, sid_quantizer="random").tokenizer
    kept = run_tokenizer(svd).tokenizer
    assert (kept.table(["last"]) == random.table(["last"])).all()
    loaded = Tokenizer.load(tokenized.folder / "tokenizer.npz")
    loaded.assign(["new1", "new2"])
    assert len(np.unique(loaded.sids, axis=0)) == 43
    assert (kept.assign(["new"]) == random.assign(["new"])).all()


def test_too_many_digits(svd):
    with pytest.raises(UserError, match=r"sid_num_digits: .* 60 users and 40 items .* 40 factors"):
        run_tokenizer(svd, sid_num_digits=40)
