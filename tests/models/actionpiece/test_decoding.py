"""Labels as outputs of the decoder, and the ensemble of rankings against plain Python."""

import math

import numpy as np
import pytest
import torch

from recbole_diffgrm.models.actionpiece.decoding import EOS_OUTPUT, PAD_OUTPUT, Labels, combine_rankings
from recbole_diffgrm.models.actionpiece.segmentation import MergeRules, label_tokens
from recbole_diffgrm.models.actionpiece.vocabulary import build_vocabulary
from tests.models.actionpiece import reference


def test_labels():
    sids, rows, user = reference.random_data(3, num_sids=30)
    vocabulary = build_vocabulary(sids, 4, rows, user, 30)
    tokens = label_tokens(vocabulary, MergeRules(vocabulary), sids)
    labels = Labels(vocabulary, tokens)
    assert labels.outputs[:2].tolist() == [0, vocabulary.eos]
    assert set(labels.outputs[2:].tolist()) == set(tokens[tokens > 0].tolist())
    for codes, expected in zip(labels.codes.tolist(), tokens.tolist()):
        end = codes.index(EOS_OUTPUT)
        assert labels.outputs[codes[:end]].tolist() == [token for token in expected if token]
        assert all(code == PAD_OUTPUT for code in codes[end + 1 :])
    assert labels.find(labels.codes).tolist() == list(range(len(sids)))
    assert labels.find(torch.zeros_like(labels.codes[:1])).tolist() == [-1]
    assert not labels.state_dict()


@pytest.mark.parametrize("seed", range(3))
def test_ensemble_equals_plain_python(seed):
    draw = np.random.default_rng(seed)
    num_users, q, width = 6, 4, 5
    rows = np.stack([[draw.permutation(9)[:width] for _ in range(q)] for _ in range(num_users)])
    rows[np.arange(width) >= draw.integers(1, width + 1, (num_users, q))[..., None]] = -1
    combined = combine_rankings(torch.from_numpy(rows))
    for user in range(num_users):
        score, best = {}, {}
        for ranking in rows[user].tolist():
            for rank, row in enumerate(ranking):
                if row >= 0:
                    score[row] = score.get(row, 0) + 1 / math.log2(rank + 2)
                    best[row] = min(best.get(row, width), rank)
        expected = sorted(score, key=lambda row: (-round(score[row], 9), best[row], row))
        count = len(expected)
        assert combined.rows[user].tolist() == expected + [-1] * (combined.rows.shape[1] - count)
        assert combined.scores[user, :count].tolist() == pytest.approx([score[row] for row in expected])
        assert (combined.scores[user, count:] == -math.inf).all()
        assert combined.num_distinct[user] == count and combined.num_generated[user] == (rows[user] >= 0).sum()


def test_ties_of_the_ensemble():
    """Sums of the same ranks in another order are equal; then the best rank decides, then the row."""
    rows = torch.tensor([[[7, 2, 4], [4, 7, 2], [2, 4, 7]]])
    assert combine_rankings(rows).rows.tolist() == [[2, 4, 7]]


def test_users_without_any():
    combined = combine_rankings(torch.full((2, 3, 4), -1))
    assert combined.rows.tolist() == [[-1], [-1]] and combined.num_generated.tolist() == [0, 0]
