"""The network against a slow one that pads to full length and decodes one view at a time."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from recbole_diffgrm.generation.semantic_ids import MASKED
from recbole_diffgrm.models.diffgrm.network import REPEAT_SCALE, DiffGRMConfig, DiffGRMNetwork, EncodedHistory

CONFIG = DiffGRMConfig(
    num_digits=3,
    codebook_size=5,
    hidden_size=8,
    inner_size=12,
    num_heads=2,
    encoder_layers=2,
    decoder_layers=2,
    dropout=0.0,
    max_length=7,
    attention_sink=True,
)
WITH_ITEMS = replace(CONFIG, num_items=11, causal=True)


def make_network(config: DiffGRMConfig = CONFIG) -> DiffGRMNetwork:
    torch.manual_seed(0)
    network = DiffGRMNetwork(config).double()
    for parameter in network.parameters():  # far from the initial values, where every attention is even
        torch.nn.init.normal_(parameter, std=0.5)
    return network


def encode(network: DiffGRMNetwork, sids: torch.Tensor, length: torch.Tensor) -> EncodedHistory:
    """Histories [B, L, n] of codes."""
    states = network.encode_history(network.embed_items(sids[..., 0], sids), length)
    return network.precompute_kv(states, length)


def reference_attention(query, key, value, num_heads, allowed=None):
    """[T, d], [S, d], one head after the other; `allowed` [S]."""
    outputs = []
    for q, k, v in zip(query.chunk(num_heads, 1), key.chunk(num_heads, 1), value.chunk(num_heads, 1)):
        logits = q @ k.T / math.sqrt(q.shape[1])
        if allowed is not None:
            logits = logits.masked_fill(~allowed, -torch.inf)
        outputs.append(logits.softmax(1) @ v)
    return torch.cat(outputs, 1)


def reference_states(network: DiffGRMNetwork, history: list[list[int]], view: list[int]) -> torch.Tensor:
    """One sample, one view, as the release does it: padded to max_length, those states zero, no mask in the decoder."""
    config, num_heads = network.config, network.config.num_heads
    padded = history + [[0] * config.num_digits] * (config.max_length - len(history))
    allowed = torch.arange(config.max_length) < len(history)
    joined = torch.stack([torch.cat([network.code_embedding[k, c] for k, c in enumerate(sid)]) for sid in padded])
    x = network.item_embedding.outer(F.relu(network.item_embedding.inner(joined))) + network.position_embedding
    for layer in network.encoder:
        part = layer.self_attention
        q, k, v = part.query_key_value(part.norm(x)).chunk(3, 1)
        x = x + part.out(reference_attention(q, k, v, num_heads, allowed))
        x = x + layer.feed_forward.outer(F.gelu(layer.feed_forward.inner(layer.feed_forward.norm(x))))
    states = network.norm(x) * allowed[:, None]
    y = torch.stack(
        [
            network.mask_embedding[k] if code == MASKED else network.code_embedding[k, code]
            for k, code in enumerate(view)
        ]
    )
    for layer in network.decoder:
        part = layer.self_attention
        q, k, v = part.query_key_value(part.norm(y)).chunk(3, 1)
        y = y + part.out(reference_attention(q, k, v, num_heads))
        part = layer.cross_attention
        k, v = part.key_value(states).chunk(2, 1)
        q = part.query(part.norm(y))
        y = y + part.out(reference_attention(q, k, v, num_heads, None if config.attention_sink else allowed))
        y = y + layer.feed_forward.outer(F.gelu(layer.feed_forward.inner(layer.feed_forward.norm(y))))
    return network.norm(y)


def make_batch(lengths, seed=1):
    draw = torch.Generator().manual_seed(seed)
    sids = torch.randint(CONFIG.codebook_size, (len(lengths), max(lengths), CONFIG.num_digits), generator=draw)
    views = torch.randint(-1, CONFIG.codebook_size, (len(lengths), 4, CONFIG.num_digits), generator=draw)
    return sids, torch.tensor(lengths), views


@pytest.mark.parametrize("sink", [True, False])
@pytest.mark.parametrize(("max_length", "lengths"), [(7, [1, 3, 2]), (7, [7, 7]), (7, [7, 1]), (50, [50, 1, 13])])
def test_trimmed_equals_padded(sink, max_length, lengths):
    """Outputs and gradients, one view at a time."""
    network = make_network(replace(CONFIG, attention_sink=sink, max_length=max_length))
    sids, length, views = make_batch(lengths)
    states = network.decode(views, encode(network, sids, length))
    expected = torch.stack(
        [
            torch.stack([reference_states(network, sids[b, : lengths[b]].tolist(), view) for view in views[b].tolist()])
            for b in range(len(lengths))
        ]
    )
    assert torch.allclose(states, expected, atol=1e-10)
    weights = torch.randn(states.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    gradients = [
        torch.autograd.grad((output * weights).sum(), list(network.parameters()), retain_graph=True)
        for output in (states, expected)
    ]
    for (name, _), ours, theirs in zip(network.named_parameters(), *gradients):
        assert torch.allclose(ours, theirs, atol=1e-8), name


def test_logits():
    network = make_network()
    sids, length, views = make_batch([2, 4])
    states = network.decode(views, encode(network, sids, length))
    logits = network.logits(states)
    assert logits.shape == (2, 4, 3, 5)
    assert torch.allclose(logits[1, 2, 0, 3], states[1, 2, 0] @ network.code_embedding[0, 3])
    assert torch.allclose(logits[0, 3, 2, 1], states[0, 3, 2] @ network.code_embedding[2, 1])


def test_samples_do_not_depend_on_their_batch():
    """A sample's states depend neither on its batch nor on padding nor on the other views."""
    network = make_network()
    sids, length, views = make_batch([1, 6, 3])
    together = network.decode(views, encode(network, sids, length))
    for b, size in enumerate(length.tolist()):
        alone = encode(network, sids[b : b + 1, :size], length[b : b + 1])
        for v in range(4):
            assert torch.allclose(network.decode(views[b : b + 1, v : v + 1], alone)[0, 0], together[b, v], atol=1e-12)
    noise = sids.clone()
    noise[0, 1:] = 4  # behind the end of a history
    assert torch.equal(network.decode(views, encode(network, noise, length)), together)


def test_keys_and_values_are_not_repeated_per_view():
    network = make_network()
    sids, length, _ = make_batch([3, 2])
    history = encode(network, sids, length)
    assert [tuple(key.shape) for key in history.keys] == [(2, 2, 4, 4)] * 2
    many = torch.full((2, 1000, 3), MASKED)
    assert network.decode(many, history).shape == (2, 1000, 3, 8)


def test_size_of_the_paper():
    """Sports and Beauty: 5.60 M parameters."""
    config = DiffGRMConfig(4, 256, 256, 1024, 4, 1, 4, 0.1, 50, True)
    assert sum(p.numel() for p in DiffGRMNetwork(config).parameters()) / 1e6 == pytest.approx(5.60, abs=0.01)


@pytest.mark.parametrize("extra", [{}, {"num_items": 30, "text_dim": 20}], ids=str)
def test_initial_values(extra):
    network = DiffGRMNetwork(replace(CONFIG, hidden_size=64, codebook_size=64, **extra))
    for name, parameter in network.named_parameters():
        if name.endswith("bias") or name == "repeat_weight":
            assert (parameter == 0).all(), name
        elif "norm" in name:
            assert (parameter == 1).all(), name
        elif parameter.numel() > 500:
            assert parameter.std().item() == pytest.approx(0.02, rel=0.15), name


def test_some_query_positions():
    """States and gradients of some digits are those of a pass over all of them."""
    network = make_network()
    sids, length, views = make_batch([3, 1, 2])
    positions = torch.tensor([[0, 5, 11, 7], [1, 2, 3, 4], [9, 8, 0, 6]])  # of 4 views of 3 digits
    direction = torch.randn(3, 4, CONFIG.hidden_size, dtype=torch.float64)

    def select(states):
        return states.flatten(1, 2).gather(1, positions[..., None].expand_as(direction))

    gradients = []
    for some in (positions, None):
        states = network.decode(views, encode(network, sids, length), some)
        (select(states) * direction).sum().backward()
        gradients.append(
            (select(states).detach(), [p.grad.clone() for p in network.parameters() if p.grad is not None])
        )
        network.zero_grad(set_to_none=True)
    assert torch.allclose(gradients[0][0], gradients[1][0])
    assert len(gradients[0][1]) == len(gradients[1][1]) > 20
    assert all(torch.allclose(one, other) for one, other in zip(gradients[0][1], gradients[1][1]))
    others = network.decode(views, encode(network, sids, length), positions).flatten(1, 2)
    assert (others != 0).any(dim=2).sum().item() == positions.numel()


# Items with id embeddings, and causal encoders


def items_and_sids(seed=3):
    """SIDs [11, n] of all items, histories [3, 6] of items, and their lengths."""
    draw = torch.Generator().manual_seed(seed)
    sids = torch.randint(CONFIG.codebook_size, (11, CONFIG.num_digits), generator=draw)
    return sids, torch.randint(1, 11, (3, 6), generator=draw), torch.tensor([6, 2, 4])


def test_item_vectors():
    network, (sids, _, _) = make_network(WITH_ITEMS), items_and_sids()
    vectors = network.embed_items(torch.arange(11), sids)
    for item in range(11):
        codes = sum(network.code_embedding[k, code] for k, code in enumerate(sids[item]))
        assert torch.allclose(vectors[item], network.id_embedding[item] + codes)
    pair = torch.tensor([[3, 9]])
    assert torch.equal(network.embed_items(pair, sids[pair])[0], vectors[[3, 9]])


def test_a_causal_encoder_encodes_each_prefix_alone():
    network, (sids, items, length) = make_network(WITH_ITEMS), items_and_sids()
    states = network.encode_history(network.embed_items(items, sids[items]), length)
    for row in range(3):
        for known in range(1, int(length[row]) + 1):
            prefix = items[row : row + 1, :known]
            alone = network.encode_history(network.embed_items(prefix, sids[prefix]), torch.tensor([known]))
            assert torch.allclose(states[row, known - 1], alone[0, -1], atol=1e-12)


@pytest.mark.parametrize("sink", [True, False])
def test_prefixes_of_a_history_for_the_decoder(sink):
    """States are projected once for all prefixes: the same as each prefix by itself."""
    network = make_network(replace(WITH_ITEMS, attention_sink=sink))
    sids, items, length = items_and_sids()
    draw = torch.Generator().manual_seed(5)
    views = torch.randint(-1, CONFIG.codebook_size, (4, 2, CONFIG.num_digits), generator=draw)
    row, known = torch.tensor([0, 0, 1, 2]), torch.tensor([1, 6, 2, 3])
    states = network.encode_history(network.embed_items(items, sids[items]), length)
    together = network.decode(views, network.precompute_kv(states, known, row))
    for number, (r, k) in enumerate(zip(row, known)):
        prefix = items[r : r + 1, :k]
        alone = network.encode_history(network.embed_items(prefix, sids[prefix]), k[None])
        history = network.precompute_kv(alone, k[None])
        assert torch.allclose(together[number], network.decode(views[number : number + 1], history)[0], atol=1e-12)


@torch.no_grad()
def test_logits_of_items():
    network, (sids, _, _) = make_network(WITH_ITEMS), items_and_sids()
    vectors = network.embed_items(torch.arange(11), sids)
    states = torch.randn(3, CONFIG.hidden_size, dtype=torch.double)
    seen = torch.tensor([[1, 2, 1], [7, 0, 0], [5, 6, 0]])
    logits = network.item_logits(states, vectors, seen)
    for row in range(3):
        for item in range(11):
            bias = REPEAT_SCALE * network.repeat_weight * (seen[row].tolist().count(item) if item else 0)
            assert float(logits[row, item]) == pytest.approx(float(states[row] @ vectors[item] + bias))


def test_dropout_of_the_encoder_only():
    network = make_network(replace(WITH_ITEMS, encoder_dropout=0.5)).train()
    sids, items, length = items_and_sids()
    states = [network.encode_history(network.embed_items(items, sids[items]), length) for _ in range(2)]
    assert not torch.equal(*states)
    history, views = network.precompute_kv(states[0], length), torch.full((3, 1, CONFIG.num_digits), MASKED)
    assert torch.equal(network.decode(views, history), network.decode(views, history))


def test_the_encoder_has_the_common_dropout_unless_it_is_set():
    assert DiffGRMNetwork(replace(CONFIG, dropout=0.3)).encoder_dropout == 0.3
    assert DiffGRMNetwork(replace(CONFIG, dropout=0.3, encoder_dropout=0.0)).encoder_dropout == 0.0
