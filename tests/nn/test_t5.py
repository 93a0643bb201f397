"""The T5 stacks, against Hugging Face's and against the formulas."""

import math

import pytest
import torch

from recbole_diffgrm.nn.kv_cache import BranchCache
from recbole_diffgrm.nn.t5 import T5Config, T5Decoder, T5Encoder, position_buckets

CONFIG = T5Config(
    hidden_size=8, inner_size=20, num_heads=3, head_size=5, encoder_layers=2, decoder_layers=3, dropout=0.1
)


@pytest.mark.parametrize("distance, near, far", [(0, 0, 0), (7, 7, 7), (8, 8, 8), (127, 15, 31), (500, 15, 31)])
def test_buckets_of_distances(distance, near, far):
    offset = torch.tensor([-distance, distance])  # the key lies before the query, and after it
    after = near + 16 if distance else 0
    assert position_buckets(offset, bidirectional=True).tolist() == [near, after]
    assert position_buckets(offset, bidirectional=False).tolist() == [far, 0]


@pytest.mark.parametrize("bidirectional", [True, False])
def test_buckets_follow_the_formula(bidirectional):
    exact = 8 if bidirectional else 16
    for distance in range(600):
        if distance < exact:
            bucket = distance
        else:  # the rounding of the logarithm does not matter where the distance is a power of 2: 1e-6
            share = math.log(distance / exact) / math.log(128 / exact)
            bucket = min(exact + math.floor(exact * share + 1e-6), 2 * exact - 1)
        assert position_buckets(torch.tensor([-distance]), bidirectional).tolist() == [bucket], distance


def test_equals_the_library():
    transformers = pytest.importorskip("transformers")
    theirs = transformers.T5Model(
        transformers.T5Config(
            vocab_size=50,
            d_model=CONFIG.hidden_size,
            d_kv=CONFIG.head_size,
            d_ff=CONFIG.inner_size,
            num_layers=CONFIG.encoder_layers,
            num_decoder_layers=CONFIG.decoder_layers,
            num_heads=CONFIG.num_heads,
            dropout_rate=0.1,
        )
    ).eval()
    torch.manual_seed(0)
    encoder, decoder = T5Encoder(CONFIG).eval(), T5Decoder(CONFIG).eval()
    with torch.no_grad():
        for parameter in (*encoder.parameters(), *decoder.parameters()):
            parameter.normal_()  # norms and position biases too
        copy_weights(encoder, theirs.encoder)
        copy_weights(decoder, theirs.decoder)
        x, y, length = torch.randn(2, 150, 8), torch.randn(2, 20, 8), torch.tensor([150, 41])
        mask = (torch.arange(150) < length[:, None]).long()
        expected = theirs(inputs_embeds=x, attention_mask=mask, decoder_inputs_embeds=y, use_cache=False)
        states = encoder(x, length)
        output = decoder(y, decoder.precompute_kv(states, length))
    torch.testing.assert_close(states[1, :41], expected.encoder_last_hidden_state[1, :41], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(output, expected.last_hidden_state, atol=1e-4, rtol=1e-4)


def copy_weights(ours, theirs):
    theirs.block[0].layer[0].SelfAttention.relative_attention_bias.weight.copy_(ours.position_bias.table)
    theirs.final_layer_norm.weight.copy_(ours.norm.weight)
    for layer, block in zip(ours.layers, theirs.block):
        attention = block.layer[0].SelfAttention
        projections = (attention.q, attention.k, attention.v)
        for linear, weight in zip(projections, layer.self_attention.query_key_value.weight.chunk(3)):
            linear.weight.copy_(weight)
        attention.o.weight.copy_(layer.self_attention.out.weight)
        block.layer[0].layer_norm.weight.copy_(layer.self_attention.norm.weight)
        if len(block.layer) == 3:
            cross, attention = layer.cross_attention, block.layer[1].EncDecAttention
            attention.q.weight.copy_(cross.query.weight)
            for linear, weight in zip((attention.k, attention.v), cross.key_value.weight.chunk(2)):
                linear.weight.copy_(weight)
            attention.o.weight.copy_(cross.out.weight)
            block.layer[1].layer_norm.weight.copy_(cross.norm.weight)
        block.layer[-1].DenseReluDense.wi.weight.copy_(layer.feed_forward.inner.weight)
        block.layer[-1].DenseReluDense.wo.weight.copy_(layer.feed_forward.outer.weight)
        block.layer[-1].layer_norm.weight.copy_(layer.feed_forward.norm.weight)


def test_steps_equal_teacher_forcing():
    torch.manual_seed(0)
    decoder = T5Decoder(CONFIG).eval()
    num_users, length = 3, torch.tensor([4, 6, 1])
    memory = decoder.precompute_kv(torch.randn(num_users, 6, 8), length)
    cache, tokens, parent = BranchCache(), torch.empty(num_users, 1, 0, 8), None
    for width in (1, 4, 2):
        x = torch.randn(num_users, width, 8)
        if tokens.shape[2]:
            parent = torch.randint(tokens.shape[1], (num_users, width))
            tokens = torch.stack([tokens[user, parent[user]] for user in range(num_users)])
        tokens = torch.cat([tokens, x[:, :, None]], dim=2)  # [U, W, t, d]
        with torch.no_grad():
            states = decoder.step(x, memory, cache, parent)
            for branch in range(width):
                expected = decoder(tokens[:, branch], memory)[:, -1]
                torch.testing.assert_close(states[:, branch], expected)


def test_padding_changes_nothing():
    torch.manual_seed(0)
    encoder, decoder = T5Encoder(CONFIG).eval(), T5Decoder(CONFIG).eval()
    x, y, length = torch.randn(2, 6, 8), torch.randn(2, 3, 8), torch.tensor([6, 2])
    with torch.no_grad():
        states = encoder(x, length)
        alone = encoder(x[1:, :2], length[1:])
        output = decoder(y, decoder.precompute_kv(states, length))
        torch.testing.assert_close(states[1:, :2], alone)
        torch.testing.assert_close(output[1:], decoder(y[1:], decoder.precompute_kv(alone, length[1:])))


def test_initial_weights():
    config = T5Config(
        hidden_size=64, inner_size=256, num_heads=4, head_size=32, encoder_layers=1, decoder_layers=1, dropout=0
    )
    torch.manual_seed(0)
    layer = T5Decoder(config).layers[0]
    query, key, value = layer.self_attention.query_key_value.weight.chunk(3)
    expected = {
        (64 * 32) ** -0.5: [query, layer.cross_attention.query.weight],
        64**-0.5: [key, value, layer.cross_attention.key_value.weight, layer.feed_forward.inner.weight],
        128**-0.5: [layer.self_attention.out.weight, layer.cross_attention.out.weight],
        256**-0.5: [layer.feed_forward.outer.weight],
    }
    for std, weights in expected.items():
        for weight in weights:
            assert weight.std().item() == pytest.approx(std, rel=0.05)
