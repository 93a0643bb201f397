"""Scores of IDs spread over the catalogue, and the best IDs out of scores of items, against loops."""

import math

import torch

from recbole_diffgrm.decoding.scores import best_ids, scores_of_ids


def test_an_id_that_was_not_found_counts_as_the_last_that_was():
    rows = torch.tensor([[2, 0, -1], [4, 3, 1], [-1, -1, -1]])
    score = torch.tensor([[-0.5, -1.5, -math.inf], [-0.1, -0.2, -3.0], [-math.inf] * 3])
    spread = scores_of_ids(rows, score, 5)
    assert torch.equal(
        spread,
        torch.tensor([[-1.5, -1.5, -0.5, -1.5, -1.5], [-3.0, -3.0, -3.0, -0.2, -0.1], [0.0] * 5]),
    )


def test_best_ids():
    draw = torch.Generator().manual_seed(0)
    row = torch.cat([torch.tensor([-1]), torch.randint(6, (20,), generator=draw).int()])
    row[1:7] = torch.arange(6)  # each ID has an item
    scores = torch.randn(9, 21, generator=draw)
    scores[0, 1:] = torch.where(row[1:] == 3, scores[0, 1:], -math.inf)
    scores[:, 0] = -math.inf
    assert best_ids(torch.zeros(1, 21), row, 6, 4).tolist() == [[0, 1, 2, 3]]  # equal ones in a defined order
    for count in (1, 4, 10):
        rows = best_ids(scores, row, 6, count)
        for user in range(9):
            best = {i: max(float(scores[user, item]) for item in range(1, 21) if row[item] == i) for i in range(6)}
            order = sorted((i for i in best if best[i] > -math.inf), key=lambda i: -best[i])
            expected = (order + [-1] * 7)[: min(count, 7)]
            assert rows[user].tolist() == expected
