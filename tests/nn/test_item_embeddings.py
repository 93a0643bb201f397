"""Item embeddings against one item at a time."""

import pytest
import torch
import torch.nn.functional as F

from recbole_diffgrm.nn.item_embeddings import TEXT_SCALE, ConcatenatedCodes, SummedEmbeddings, sum_codes
from tests.nn.test_attention import initialized

N, M, D = 3, 5, 8


@pytest.fixture
def tables():
    """SIDs [11, n], code embeddings [n, M, d], id embeddings [11, d], text vectors [11, 6]."""
    draw = torch.Generator().manual_seed(0)
    sids = torch.randint(M, (11, N), generator=draw)
    return sids, *(torch.randn(shape, dtype=torch.double, generator=draw) for shape in ((N, M, D), (11, D), (11, 6)))


def test_sum_of_codes(tables):
    sids, codes, *_ = tables
    for item in range(11):
        expected = sum(codes[k, code] for k, code in enumerate(sids[item]))
        assert torch.allclose(sum_codes(sids, codes)[item], expected)


def test_concatenated_codes(tables):
    """The first layer, applied to the table of codes, equals an MLP on the concatenated embeddings of each item."""
    sids, codes, *_ = tables
    codes.requires_grad_()
    module = initialized(ConcatenatedCodes(N, D))
    joined = torch.stack([torch.cat([codes[k, code] for k, code in enumerate(sid)]) for sid in sids])
    expected = module.outer(F.relu(module.inner(joined)))
    output = module(sids, codes)
    assert torch.allclose(output, expected)
    assert torch.equal(module(sids[torch.tensor([[1, 2], [3, 4]])], codes)[1, 0], output[3])
    inputs = [codes, *module.parameters()]
    gradients = [torch.autograd.grad(x.square().sum(), inputs, retain_graph=True) for x in (output, expected)]
    assert all(torch.allclose(one, other) for one, other in zip(*gradients))


def test_summed_embeddings(tables):
    sids, codes, ids, text = tables
    items = torch.arange(11)
    module = initialized(SummedEmbeddings(D, text_dim=6))
    output, without = module(items, sids, ids, codes, text), module(items, sids, ids, codes)
    for item in range(11):
        expected = ids[item] + sum(codes[k, code] for k, code in enumerate(sids[item]))
        assert torch.allclose(without[item], expected)
        assert torch.allclose(output[item], expected + module.text_projection.weight @ (TEXT_SCALE * text[item]))
    pair = torch.tensor([[3, 9]])
    assert torch.equal(module(pair, sids[pair], ids, codes)[0], without[[3, 9]])


def test_text_needs_a_projection(tables):
    sids, codes, ids, text = tables
    module = SummedEmbeddings(D)
    assert not list(module.parameters())
    with pytest.raises(ValueError, match="text_dim"):
        module(torch.arange(11), sids, ids, codes, text)
