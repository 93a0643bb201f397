"""The JPQ layer: code scores add up to products with items, and the pruned search finds what scoring all items does."""

import pytest
import torch

from recbole_diffgrm.nn.jpq import JPQEmbedding, build_inverted_lists, score_codes, score_items, search_pruned


def random_sids(num_items: int, num_digits: int, codebook_size: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(codebook_size, (num_items, num_digits), generator=generator)


def test_items_are_concatenated_code_embeddings():
    layer = JPQEmbedding(num_digits=3, codebook_size=5, hidden_size=12)
    assert layer.weight.shape == (3, 5, 4)
    assert layer.weight.abs().max() <= 0.05
    sids = random_sids(7, 3, 5)
    for row, sid in zip(layer(sids), sids.tolist()):
        assert row.tolist() == [value for digit, code in enumerate(sid) for value in layer.weight[digit, code].tolist()]
    assert layer(sids.view(7, 1, 3)).shape == (7, 1, 12)


def test_pqtopk_is_the_dense_product():
    torch.manual_seed(1)
    layer = JPQEmbedding(num_digits=4, codebook_size=16, hidden_size=32).double()
    sids, states = random_sids(200, 4, 16), torch.randn(6, 32).double()
    torch.testing.assert_close(score_items(score_codes(states, layer.weight), sids), layer(sids) @ states.T)


def test_pqtopk_gives_gradients_as_the_dense_product_does():
    torch.manual_seed(1)
    layer = JPQEmbedding(num_digits=4, codebook_size=16, hidden_size=32).double()
    sids, states = random_sids(50, 4, 16), torch.randn(6, 32).double()
    score_items(score_codes(states, layer.weight), sids).logsumexp(dim=0).sum().backward()
    gradient, layer.weight.grad = layer.weight.grad, None
    (layer(sids) @ states.T).logsumexp(dim=0).sum().backward()
    torch.testing.assert_close(gradient, layer.weight.grad)


def test_inverted_lists():
    sids = torch.tensor([[1, 0], [0, 0], [1, 2]])
    lists = build_inverted_lists(sids, codebook_size=3)
    for digit in range(2):
        start = lists.start[digit].tolist()
        for code in range(3):
            found = lists.rows[digit, start[code] : start[code + 1]].tolist()
            assert found == [row for row in range(3) if sids[row, digit] == code]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("hides", [False, True])
def test_pruned_search_is_exact(dtype, ties, hides):
    """In a random table of code scores, with skewed codes; ties go by row."""
    sids = random_sids(2000, 4, 64)
    sids[:300, 1] = 7
    lists = build_inverted_lists(sids, 64)
    for seed in range(10):
        generator = torch.Generator().manual_seed(seed)
        code_scores = torch.randn(4, 64, 1, generator=generator, dtype=dtype)
        if ties:
            code_scores = code_scores.round()
        is_hidden = torch.rand(2000, generator=generator) < 0.3 if hides else None
        scores = score_items(code_scores, sids).squeeze(1).tolist()
        order = sorted(range(2000), key=lambda row: (-scores[row], row))
        expected = [row for row in order if is_hidden is None or not is_hidden[row]][:20]
        rows, found = search_pruned(code_scores.squeeze(2), sids, lists, 20, is_hidden)
        assert rows.tolist() == expected
        assert found.tolist() == [scores[row] for row in expected]


def test_pruned_search_stops_early(monkeypatch):
    from recbole_diffgrm.nn import jpq

    scored = []

    def counting(sids, table):
        scored.append(len(sids))
        return original(sids, table)

    original = jpq.sum_codes
    monkeypatch.setattr(jpq, "sum_codes", counting)
    sids = random_sids(5000, 2, 64)
    code_scores = torch.linspace(0, 8, 64).square().repeat(2, 1)  # few codes are far better than the others
    search_pruned(code_scores, sids, build_inverted_lists(sids, 64), 3)
    assert sum(scored) < 2500


def test_pruned_search_of_few_items():
    sids = random_sids(4, 3, 8)
    lists = build_inverted_lists(sids, 8)
    code_scores = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    assert sorted(search_pruned(code_scores, sids, lists, 10)[0].tolist()) == [0, 1, 2, 3]
    hidden = torch.ones(4, dtype=torch.bool)
    assert len(search_pruned(code_scores, sids, lists, 10, hidden)[0]) == 0
