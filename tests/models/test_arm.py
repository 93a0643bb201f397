"""ARM's size. What it shares with TIGER: test_autoregressive.py."""

import pytest

from tests.conftest import build_tiny

RANDOM_SIDS = {"sid_quantizer": "random", "sid_num_digits": 4, "sid_codebook_size": 256, "MAX_ITEM_LIST_LENGTH": 50}


@pytest.mark.parametrize("encoder_layers, release", [(1, 5_601_280), (2, 6_390_272)])
def test_parameters(options, tmp_path, encoder_layers, release):
    """The release's, without the embeddings of its special tokens: padding, BOS (there is another one) and EOS."""
    settings = {**options, **RANDOM_SIDS, "cache_dir": str(tmp_path)}
    sizes = {
        "hidden_size": 256,
        "inner_size": 1024,
        "n_heads": 8,
        "encoder_layers": encoder_layers,
        "decoder_layers": 4,
    }
    model = build_tiny(settings, "ARM", std=None, **sizes).model
    assert sum(parameter.numel() for parameter in model.parameters()) == release - 3 * 256
