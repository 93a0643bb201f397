"""GPT-2's layer against transformers', which has the same weights in another layout."""

import pytest
import torch

from recbole_diffgrm.nn.gpt2 import GPT2Layer, causal_bias


def test_the_bias_hides_what_comes_later():
    bias = causal_bias(4, torch.device("cpu"))
    for query in range(4):
        for key in range(4):
            assert bias[query, key] == (0 if key <= query else -torch.inf)


def test_against_transformers():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    layer = GPT2Layer(24, 40, 3, attention_dropout=0.0, eps=1e-12).eval()
    layer.initialize(num_layers=2)
    config = transformers.GPT2Config(n_embd=24, n_inner=40, n_head=3, n_layer=1, vocab_size=2, layer_norm_epsilon=1e-12)
    config._attn_implementation = "eager"
    reference = transformers.GPT2Model(config).eval()
    block, identity = reference.h[0], torch.nn.Identity()
    pairs = {
        "ln_1": layer.attention_norm,
        "attn.c_attn": layer.query_key_value,
        "attn.c_proj": layer.attention_out,
        "ln_2": layer.norm,
        "mlp.c_fc": layer.inner,
        "mlp.c_proj": layer.outer,
    }
    with torch.no_grad():
        for name, ours in pairs.items():
            theirs = block.get_submodule(name)
            theirs.weight.copy_(ours.weight.T if "c_" in name else ours.weight)
            theirs.bias.copy_(ours.bias.normal_())
        reference.wpe.weight.zero_()
        reference.ln_f = identity
        x = torch.randn(2, 5, 24)
        expected = reference(inputs_embeds=x).last_hidden_state
        assert torch.allclose(layer(x, causal_bias(5, x.device)), expected, atol=1e-5)


def test_initial_weights():
    torch.manual_seed(0)
    layer = GPT2Layer(64, 128, 4, 0.0)
    layer.initialize(num_layers=8)
    assert layer.inner.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert layer.outer.weight.std().item() == pytest.approx(0.02 / 4, rel=0.05)
    assert not any(linear.bias.any() for linear in (layer.inner, layer.outer, layer.query_key_value))
