"""The network against a slow one that pads to full length and decodes one view at a time."""

import math

import pytest
import torch
import torch.nn.functional as F

from recbole_diffgrm.network.network import MASKED, REPEAT_SCALE, DiffGRMNetwork, Shape, dropout

SHAPE = Shape(
    digits=3,
    codes=5,
    width=8,
    inner_width=12,
    heads=2,
    encoder_layers=2,
    decoder_layers=2,
    dropout=0.0,
    max_length=7,
    sink=True,
)


def network(shape: Shape = SHAPE) -> DiffGRMNetwork:
    torch.manual_seed(0)
    made = DiffGRMNetwork(shape).double()
    for parameter in made.parameters():  # far from the start, where every attention is even
        torch.nn.init.normal_(parameter, std=0.5)
    return made


def reference_attention(query, key, value, heads, allowed=None):
    """[T, d], [S, d], one head after the other; `allowed` [S]."""
    outputs = []
    for q, k, v in zip(query.chunk(heads, 1), key.chunk(heads, 1), value.chunk(heads, 1)):
        logits = q @ k.T / math.sqrt(q.shape[1])
        if allowed is not None:
            logits = logits.masked_fill(~allowed, -torch.inf)
        outputs.append(logits.softmax(1) @ v)
    return torch.cat(outputs, 1)


def reference_states(net: DiffGRMNetwork, history: list[list[int]], view: list[int]) -> torch.Tensor:
    """One sample, one view, as the release does it: padded to max_length, those states zero, no mask in the decoder."""
    shape, heads = net.shape, net.shape.heads
    padded = history + [[0] * shape.digits] * (shape.max_length - len(history))
    allowed = torch.arange(shape.max_length) < len(history)
    joined = torch.stack([torch.cat([net.code_embedding[k, c] for k, c in enumerate(sid)]) for sid in padded])
    x = net.item_outer(F.relu(net.item_inner(joined))) + net.position_embedding
    for layer in net.encoder:
        q, k, v = layer.attention.query_key_value(layer.attention.norm(x)).chunk(3, 1)
        x = x + layer.attention.out(reference_attention(q, k, v, heads, allowed))
        x = x + layer.feed_forward.outer(F.gelu(layer.feed_forward.inner(layer.feed_forward.norm(x))))
    states = net.norm(x) * allowed[:, None]
    y = torch.stack(
        [net.mask_embedding[k] if code == MASKED else net.code_embedding[k, code] for k, code in enumerate(view)]
    )
    for layer in net.decoder:
        q, k, v = layer.attention.query_key_value(layer.attention.norm(y)).chunk(3, 1)
        y = y + layer.attention.out(reference_attention(q, k, v, heads))
        k, v = layer.look.key_value(states).chunk(2, 1)
        q = layer.look.query(layer.look.norm(y))
        y = y + layer.look.out(reference_attention(q, k, v, heads, None if shape.sink else allowed))
        y = y + layer.feed_forward.outer(F.gelu(layer.feed_forward.inner(layer.feed_forward.norm(y))))
    return net.norm(y)


def batch(lengths, seed=1):
    draw = torch.Generator().manual_seed(seed)
    sids = torch.randint(SHAPE.codes, (len(lengths), max(lengths), SHAPE.digits), generator=draw)
    views = torch.randint(-1, SHAPE.codes, (len(lengths), 4, SHAPE.digits), generator=draw)
    return sids, torch.tensor(lengths), views


@pytest.mark.parametrize("sink", [True, False])
@pytest.mark.parametrize(("slots", "lengths"), [(7, [1, 3, 2]), (7, [7, 7]), (7, [7, 1]), (50, [50, 1, 13])])
def test_trimmed_equals_padded(sink, slots, lengths):
    """Outputs and gradients, one view at a time."""
    net = network(Shape(**{**vars(SHAPE), "sink": sink, "max_length": slots}))
    sids, length, views = batch(lengths)
    states = net.decode(views, net.encode(sids, length))
    expected = torch.stack(
        [
            torch.stack([reference_states(net, sids[b, : lengths[b]].tolist(), view) for view in views[b].tolist()])
            for b in range(len(lengths))
        ]
    )
    assert torch.allclose(states, expected, atol=1e-10)
    weights = torch.randn(states.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    gradients = [
        torch.autograd.grad((output * weights).sum(), list(net.parameters()), retain_graph=True)
        for output in (states, expected)
    ]
    for (name, _), ours, theirs in zip(net.named_parameters(), *gradients):
        assert torch.allclose(ours, theirs, atol=1e-8), name


def test_logits():
    net = network()
    sids, length, views = batch([2, 4])
    states = net.decode(views, net.encode(sids, length))
    logits = net.logits(states)
    assert logits.shape == (2, 4, 3, 5)
    assert torch.allclose(logits[1, 2, 0, 3], states[1, 2, 0] @ net.code_embedding[0, 3])
    assert torch.allclose(logits[0, 3, 2, 1], states[0, 3, 2] @ net.code_embedding[2, 1])


def test_company_does_not_matter():
    """A sample's states depend neither on its batch nor on padding nor on the other views."""
    net = network()
    sids, length, views = batch([1, 6, 3])
    together = net.decode(views, net.encode(sids, length))
    for b, size in enumerate(length.tolist()):
        alone = net.encode(sids[b : b + 1, :size], length[b : b + 1])
        for v in range(4):
            assert torch.allclose(net.decode(views[b : b + 1, v : v + 1], alone)[0, 0], together[b, v], atol=1e-12)
    noise = sids.clone()
    noise[0, 1:] = 4  # what stands behind the end of a history
    assert torch.equal(net.decode(views, net.encode(noise, length)), together)


def test_keys_and_values_are_not_repeated_per_view():
    net = network()
    sids, length, _ = batch([3, 2])
    history = net.encode(sids, length)
    assert [tuple(key.shape) for key in history.keys] == [(2, 2, 4, 4)] * 2
    many = torch.full((2, 1000, 3), MASKED)
    assert net.decode(many, history).shape == (2, 1000, 3, 8)


def test_size_of_the_paper():
    """Sports and Beauty: 5.60 M parameters."""
    shape = Shape(4, 256, 256, 1024, 4, 1, 4, 0.1, 50, True)
    assert sum(p.numel() for p in DiffGRMNetwork(shape).parameters()) / 1e6 == pytest.approx(5.60, abs=0.01)


def test_start():
    net = DiffGRMNetwork(Shape(**{**vars(SHAPE), "width": 64, "codes": 64}))
    for name, parameter in net.named_parameters():
        if name.endswith("bias"):
            assert (parameter == 0).all(), name
        elif "norm" in name:
            assert (parameter == 1).all(), name
        elif parameter.numel() > 500:
            assert parameter.std().item() == pytest.approx(0.02, rel=0.15), name


def test_wanted_digits_alone():
    """States and gradients of some digits are those of a pass over all of them."""
    net = network()
    sids, length, views = batch([3, 1, 2])
    wanted = torch.tensor([[0, 5, 11, 7], [1, 2, 3, 4], [9, 8, 0, 6]])  # of 4 views of 3 digits
    direction = torch.randn(3, 4, SHAPE.width, dtype=torch.float64)

    def chosen(states):
        return states.flatten(1, 2).gather(1, wanted[..., None].expand_as(direction))

    gradients = []
    for some in (wanted, None):
        states = net.decode(views, net.encode(sids, length), some)
        (chosen(states) * direction).sum().backward()
        gradients.append((chosen(states).detach(), [p.grad.clone() for p in net.parameters() if p.grad is not None]))
        net.zero_grad(set_to_none=True)
    assert torch.allclose(gradients[0][0], gradients[1][0])
    assert len(gradients[0][1]) == len(gradients[1][1]) > 20
    assert all(torch.allclose(one, other) for one, other in zip(gradients[0][1], gradients[1][1]))
    others = net.decode(views, net.encode(sids, length), wanted).flatten(1, 2)
    assert (others != 0).any(dim=2).sum().item() == wanted.numel()


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_dropout(probability):
    torch.manual_seed(0)
    x = torch.rand(1001, 99) + 1
    x.requires_grad_()
    y = dropout(x, probability, training=True)
    kept = y != 0
    assert (~kept).float().mean().item() == pytest.approx(probability, abs=0.01)
    assert (~kept[:, ::7]).float().mean().item() == pytest.approx(probability, abs=0.02)  # at every place of the bits
    assert torch.allclose(y[kept], x[kept] / (1 - probability), rtol=1e-3)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(gradient != 0, kept)
    again = dropout(x, probability, training=True)
    assert not torch.equal(again, y)
    torch.manual_seed(0)
    torch.rand(1001, 99)
    assert torch.equal(dropout(x, probability, training=True), y)
    assert dropout(x, probability, training=False) is x


WITH_ITEMS = Shape(**{**vars(SHAPE), "items": 11, "causal": True})


def items_and_ids(seed=3):
    """IDs [11, n] of all items, histories [3, 6] of items, and their lengths."""
    draw = torch.Generator().manual_seed(seed)
    sids = torch.randint(SHAPE.codes, (11, SHAPE.digits), generator=draw)
    return sids, torch.randint(1, 11, (3, 6), generator=draw), torch.tensor([6, 2, 4])


def test_vectors_of_items():
    net, (sids, _, _) = network(WITH_ITEMS), items_and_ids()
    vectors = net.item_vectors(torch.arange(11), sids)
    for item in range(11):
        expected = net.item_embedding[item] + sum(net.code_embedding[k, code] for k, code in enumerate(sids[item]))
        assert torch.allclose(vectors[item], expected)
    assert torch.equal(net.item_vectors(torch.tensor([[3, 9]]), sids[[[3, 9]]])[0], vectors[[3, 9]])


def test_a_causal_encoder_reads_each_prefix_alone():
    net, (sids, items, length) = network(WITH_ITEMS), items_and_ids()
    states = net.read(net.item_vectors(items, sids[items]), length)
    for row in range(3):
        for known in range(1, int(length[row]) + 1):
            prefix = items[row : row + 1, :known]
            alone = net.read(net.item_vectors(prefix, sids[prefix]), torch.tensor([known]))
            assert torch.allclose(states[row, known - 1], alone[0, -1], atol=1e-12)


@pytest.mark.parametrize("sink", [True, False])
def test_prefixes_of_a_history_for_the_decoder(sink):
    """States are projected once for all prefixes: the same as each prefix by itself."""
    net = network(Shape(**{**vars(WITH_ITEMS), "sink": sink}))
    sids, items, length = items_and_ids()
    views = torch.randint(-1, SHAPE.codes, (4, 2, SHAPE.digits), generator=torch.Generator().manual_seed(5))
    row, known = torch.tensor([0, 0, 1, 2]), torch.tensor([1, 6, 2, 3])
    states = net.read(net.item_vectors(items, sids[items]), length)
    together = net.decode(views, net.project(states, known, row))
    for number, (r, k) in enumerate(zip(row, known)):
        prefix = items[r : r + 1, :k]
        history = net.project(net.read(net.item_vectors(prefix, sids[prefix]), k[None]), k[None])
        assert torch.allclose(together[number], net.decode(views[number : number + 1], history)[0], atol=1e-12)


@torch.no_grad()
def test_logits_of_items():
    net, (sids, _, _) = network(WITH_ITEMS), items_and_ids()
    vectors = net.item_vectors(torch.arange(11), sids)
    states = torch.randn(3, SHAPE.width, dtype=torch.double)
    seen = torch.tensor([[1, 2, 1], [7, 0, 0], [5, 6, 0]])
    logits = net.item_logits(states, vectors, seen)
    for row in range(3):
        for item in range(11):
            bias = REPEAT_SCALE * net.repeat_weight * (seen[row].tolist().count(item) if item else 0)
            assert float(logits[row, item]) == pytest.approx(float(states[row] @ vectors[item] + bias))


def test_dropout_of_the_encoder_is_its_own():
    net = network(Shape(**{**vars(WITH_ITEMS), "encoder_dropout": 0.5})).train()
    sids, items, length = items_and_ids()
    read = [net.read(net.item_vectors(items, sids[items]), length) for _ in range(2)]
    assert not torch.equal(*read)
    history, views = net.project(read[0], length), torch.full((3, 1, SHAPE.digits), MASKED)
    assert torch.equal(net.decode(views, history), net.decode(views, history))
