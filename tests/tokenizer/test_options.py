"""Keys of the tokenizer: defaults are valid, wrong values are refused."""

import pytest
from pydantic import ValidationError

from recbole_diffgrm.config.layers import properties_dir, read_yaml
from recbole_diffgrm.errors import UserError
from recbole_diffgrm.tokenizer.options import TokenizerOptions

DEFAULTS = read_yaml(properties_dir() / "tokenizer.yaml")


def test_defaults():
    assert TokenizerOptions.keys() == set(DEFAULTS)
    assert TokenizerOptions.model_validate(DEFAULTS).model_dump() == DEFAULTS
    assert TokenizerOptions.keys("nothing") == {"cache_dir"}
    assert TokenizerOptions.keys("file") == {"sid_file"}


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("sid_text_fields", [[], {}, "title", [1], {"title": 1}, [""]]),
        (
            "sid_text_template",
            ["", "{label}", "{text[a]}", "{x}", "{", 1, "{}", "{text:>99999999999}", "{text!r}", "{text.upper}"],
        ),
        ("sid_text_encoder", ["", None]),
        ("sid_trust_remote_code", ["True", 1]),
        ("sid_file", [""]),
        ("sid_quantizer", ["OPQ", "file", None]),
        ("sid_num_digits", [0, 65, 2.0, True]),
        ("sid_codebook_size", [1, 3, 48, 8192, True, "8"]),
        ("sid_pca_dim", [0, -1, 1.5]),
        ("sid_collisions", ["drop"]),
        ("sid_collision_order", ["random"]),
        ("sid_seed", [-1, 2**31]),
        ("rq_vae_epochs", [0, 1.5]),
        ("rq_vae_latent_dim", [0, "32"]),
        ("sid_hash_size", [0, None]),
        ("cache_dir", [""]),
    ],
)
def test_wrong_values(key, values):
    for value in values:
        with pytest.raises(ValidationError) as caught:
            TokenizerOptions.model_validate({**DEFAULTS, key: value})
        assert caught.value.errors()[0]["loc"][0] == key


@pytest.mark.parametrize(
    "changes",
    [
        {"sid_text_fields": ["title", "brand"]},
        {"sid_text_template": "{text}"},
        {"sid_text_template": "{{{label}}} {text} {text}"},
        {"sid_num_digits": 64, "sid_pca_dim": 64},
        {"sid_num_digits": 64, "sid_pca_dim": None},
        {"sid_codebook_size": 2},
        {"sid_codebook_size": 4096},
        {"sid_codebook_size": 8, "sid_hash_size": 64},  # not read
        {"sid_codebook_size": 64, "sid_hash_size": 64, "sid_collisions": "random_digit"},
    ],
)
def test_right_values(changes):
    TokenizerOptions.model_validate({**DEFAULTS, **changes})


def test_fewer_dimensions_than_digits():
    with pytest.raises(ValidationError) as caught:
        TokenizerOptions.model_validate({**DEFAULTS, "sid_pca_dim": 3})
    error = caught.value.errors()[0]["ctx"]["error"]
    assert isinstance(error, UserError)
    assert "sid_pca_dim (3)" in str(error)
    assert "sid_num_digits (4)" in str(error)


def test_larger_hash_than_codebook():
    with pytest.raises(ValidationError) as caught:
        TokenizerOptions.model_validate({**DEFAULTS, "sid_codebook_size": 32, "sid_collisions": "random_digit"})
    error = caught.value.errors()[0]["ctx"]["error"]
    assert isinstance(error, UserError)
    assert "sid_hash_size (64)" in str(error)
    assert "sid_codebook_size (32)" in str(error)
