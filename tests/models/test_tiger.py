"""TIGER's network against Hugging Face's T5, its size and its user tokens. The rest: test_autoregressive.py."""

import pytest
import torch
from recbole.data.interaction import Interaction

from tests.conftest import build_tiny
from tests.nn.test_t5 import copy_weights

SIDS = {"sid_quantizer": "random", "sid_num_digits": 3, "sid_codebook_size": 8}
SMALL = {"hidden_size": 16, "inner_size": 32, "n_heads": 2, "head_size": 6, "encoder_layers": 2, "decoder_layers": 2}
PAPER = {
    "hidden_size": 128,
    "inner_size": 1024,
    "n_heads": 6,
    "head_size": 64,
    "encoder_layers": 4,
    "decoder_layers": 4,
}


@pytest.fixture
def settings(options, tmp_path):
    return {**options, **SIDS, "cache_dir": str(tmp_path / "cache")}


def test_parameters(settings):
    """The paper's network by hand, with 1,024 codes, 2,000 users and the decoder's start: 4.85 M."""
    model = build_tiny(settings, "TIGER", std=None, sid_codebook_size=256, user_tokens=2000, **PAPER).model
    d, inner, width = 128, 1024, 6 * 64
    attention, feed_forward = d + 4 * d * width, d + 2 * d * inner  # with their norms
    stack_ends = 32 * 6 + d  # position biases, last norm
    encoder, decoder = 4 * (attention + feed_forward), 4 * (2 * attention + feed_forward)
    expected = 3025 * d + encoder + decoder + 2 * stack_ends
    assert sum(parameter.numel() for parameter in model.parameters()) == expected == 4_846_848


def test_equals_the_library(settings):
    transformers = pytest.importorskip("transformers")
    _, split, model, _ = build_tiny(settings, "TIGER", std=0.3, **SMALL)
    vocabulary = 4 * 8 + 1
    theirs = transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            vocab_size=vocabulary,
            d_model=16,
            d_kv=6,
            d_ff=32,
            num_layers=2,
            num_heads=2,
            pad_token_id=vocabulary - 1,
            decoder_start_token_id=vocabulary - 1,
            tie_word_embeddings=True,
        )
    )
    theirs = theirs.double().eval()
    with torch.no_grad():
        copy_weights(model.encoder, theirs.encoder)
        copy_weights(model.decoder, theirs.decoder)
        theirs.shared.weight.copy_(model.token_embedding)
        batch = split.train.inter_feat.cut(torch.arange(12))
        offset = 8 * torch.arange(4)
        tokens = (model.semantic_ids.lookup(batch["item_id_list"]) + offset).flatten(1)
        mask = (torch.arange(tokens.shape[1]) < 4 * batch["item_length"][:, None]).long()
        sids = model.semantic_ids.lookup(batch["item_id"])
        expected = theirs(input_ids=tokens, attention_mask=mask, labels=sids + offset, use_cache=False).logits
        logits = model._logits(batch, sids)  # [B, n, M]
    for digit in range(4):  # of the current digit's codes only
        of_digit = expected[:, digit, 8 * digit : 8 * digit + 8]
        torch.testing.assert_close(logits[:, digit], of_digit)


def test_weights_begin_as_in_t5(settings):
    model = build_tiny(settings, "TIGER", std=None, sid_codebook_size=256, **PAPER).model
    assert model.token_embedding.std().item() == pytest.approx(1, rel=0.02)
    assert model.logit_scale == 128**-0.5


@torch.inference_mode()
def test_user_tokens(settings):
    _, split, model, _ = build_tiny(settings, "TIGER", **SMALL, user_tokens=7)
    batch = split.test.inter_feat.cut(torch.arange(5))
    sids = model.semantic_ids.lookup(batch["item_id"])

    def logits(**columns):
        changed = {name: batch[name] for name in ("item_id_list", "item_length")}
        return model._logits(Interaction({**changed, **columns}), sids)

    user = torch.tensor([1, 2, 3, 4, 5])
    assert torch.equal(logits(user_id=user), logits(user_id=user + 7))
    assert not torch.allclose(logits(user_id=user), logits(user_id=user + 1))
    nobody = logits()  # as in serving
    assert not torch.allclose(nobody, logits(user_id=user))
    model.user_tokens = 0
    assert torch.equal(nobody, logits(user_id=user))
