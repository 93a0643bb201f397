"""Every key of ours has a default in YAML, a declaration in Options, and refuses wrong values by name."""

import json
import math

import jsonschema
import pytest
import yaml

from recbole_diffgrm import UserError
from recbole_diffgrm.cli import reference
from recbole_diffgrm.config import layers
from recbole_diffgrm.config.options import GeneralOptions, Options, PositiveFloat, PositiveInt, expected_words, option
from recbole_diffgrm.models import MODELS, build_config, get_model
from recbole_diffgrm.tokenizer.options import TokenizerOptions
from tests.conftest import ROOT

OVERALL = layers.read_yaml(ROOT / "properties" / "overall.yaml")
TOKENIZER = layers.read_yaml(ROOT / "properties" / "tokenizer.yaml")
DIFFGRM = layers.read_yaml(ROOT / "properties" / "model" / "DiffGRM.yaml")


def test_yaml_and_options_declare_the_same_keys():
    """YAML holds the default (RecBole's its own), Options all else."""
    assert set(OVERALL) <= GeneralOptions.keys()
    assert GeneralOptions.keys() - set(OVERALL) <= set(layers.recbole_defaults(""))
    assert set(TOKENIZER) == TokenizerOptions.keys()
    for name in MODELS:
        options = get_model(name).Options
        has_sids = issubclass(options, TokenizerOptions)
        inherited = GeneralOptions.keys() | (TokenizerOptions.keys() if has_sids else set())
        path = ROOT / "properties" / "model" / f"{name}.yaml"
        defaults = set(layers.read_yaml(path)) if path.exists() else set()
        assert options.keys() - inherited <= defaults, f"{name}: keys without a default"
        assert defaults <= options.keys(), f"{name}: defaults of keys that nothing declares"


def test_every_key_is_described():
    for key in reference.collect_keys():
        description = key.schema.get("description", "")
        assert len(description) > 3 and description.endswith("."), f"{key.name}: {description!r}"


PLANS_AND_SPACES = {path for folder in ("study", "tune") for path in (ROOT / "properties" / folder).glob("*")}
CONFIGURATIONS = sorted(set((ROOT / "properties").rglob("*.yaml")) - PLANS_AND_SPACES)


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=lambda path: path.stem)
def test_our_files_follow_the_editor_schema(path):
    jsonschema.validate(layers.read_yaml(path), json.loads((ROOT / "properties" / "schema.json").read_text()))


def test_the_editor_schema_finds_mistakes():
    schema = reference.build_schema()
    for text in ("epohs: 3", "epochs: many", "models: {SASRek: {}}", "models: {SASRec: {n_layers: 0}}"):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(yaml.safe_load(text), schema)


def test_generated_files_are_up_to_date():
    """`make docs` writes them."""
    assert (ROOT / "docs" / "configuration.md").read_text() == reference.render_page()
    assert (ROOT / "docs" / "models.md").read_text() == reference.render_models()
    assert json.loads((ROOT / "properties" / "schema.json").read_text()) == reference.build_schema()


def _numbers(schema, path=()):
    """(where, schema) of every number that a schema allows."""
    if isinstance(schema, dict):
        if schema.get("type") in ("integer", "number") and not schema.keys() & {"enum", "const"}:
            yield path, schema
        for name, part in schema.items():
            yield from _numbers(part, (*path, name))
    elif isinstance(schema, list):
        for part in schema:
            yield from _numbers(part, path)


def test_every_number_has_limits():
    for key in reference.collect_keys():
        for path, schema in _numbers(key.schema):
            lowest = schema.get("minimum", schema.get("exclusiveMinimum"))
            highest = schema.get("maximum", schema.get("exclusiveMaximum"))
            assert lowest is not None and highest is not None, (key.name, path, schema)
            assert -1000 <= lowest <= highest <= 2**32, (key.name, schema)


class _Two(Options):
    number: PositiveFloat = option("A number.")
    count: PositiveInt | None = option("A count.", affects="nothing")


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"number": True, "count": 1}, "number"),
        ({"number": "1", "count": 1}, "number"),
        ({"number": math.inf, "count": 1}, "number"),
        ({"number": math.nan, "count": 1}, "number"),
        ({"number": 1, "count": True}, "count"),
        ({"number": 1, "count": 1.0}, "count"),
        ({"number": 1, "count": 0}, "count"),
    ],
)
def test_options_are_strict(values, key):
    with pytest.raises(ValueError) as caught:
        _Two.model_validate(values)
    assert caught.value.errors()[0]["loc"][0] == key
    assert _Two.model_validate({"number": 1, "count": None}).number == 1


def test_expected_values_in_words():
    schemas = _Two.model_json_schema()["properties"]
    assert expected_words(schemas["number"]) == "a number above 0 and at most 1000000000"
    assert expected_words(schemas["count"]) == "a whole number from 1 to 1000000000, or ~"
    assert (_Two.keys(), _Two.keys("nothing"), _Two.keys("training")) == ({"number", "count"}, {"count"}, {"number"})


BAD_VALUES = {
    "data_path": 3,
    "amazon_url": "",
    "amazon_2023_url": "ftp://x",
    "recbole_url": 3,
    "MAX_ITEM_LIST_LENGTH": 0,
    "sliding_window": "off",
    "min_history": 0,
    "max_history": 0,
    "load_col": [1],
    "filter_inter_by_user_or_item": "yes please",
    "user_inter_num_interval": "[five,inf)",
    "item_inter_num_interval": [5],
    "normalize_all": 1,
    "eval_args": "LS",
    "repeatable": 1,
    "metrics": [],
    "topk": [0],
    "valid_metric": "",
    "eval_batch_size": 0,
    "epochs": 1.5,
    "stopping_step": 0,
    "eval_step": 0,
    "eval_from": 0,
    "train_batch_size": -1,
    "learner": "adamm",
    "learning_rate": 0,
    "scheduler": "cosinus",
    "warmup_steps": -1,
    "clip_grad_norm": 0,
    "weight_decay": -0.1,
    "train_neg_sample_args": "uniform",
    "ema_decay": 1.0,
    "enable_amp": "on",
    "compile": "yes",
    "seed": -1,
    "output_dir": "",
    "checkpoint_seconds": 0,
    "save_topk": True,
    "show_progress": 2,
    "log_wandb": "yes",
    "wandb_project": 3,
    "log_mlflow": 1,
    "sid_text_fields": [],
    "sid_text_template": "{label} {txt}",
    "sid_text_encoder": 3,
    "sid_trust_remote_code": "yes",
    "sid_file": "",
    "sid_quantizer": "opqq",
    "sid_num_digits": 65,
    "sid_codebook_size": 100,
    "sid_pca_dim": 0,
    "sid_collisions": "drop",
    "sid_seed": -1,
    "cache_dir": "",
    "hidden_size": 0,
    "inner_size": 1.5,
    "n_heads": 0,
    "encoder_layers": 0,
    "decoder_layers": 0,
    "dropout_prob": 1.0,
    "cross_attention_sink": 1,
    "encoder_dropout_prob": 1.0,
    "item_head": 1,
    "item_text": "title",
    "code_prior": 1,
    "sample_unit": "all",
    "train_repeat": 0,
    "rq_vae_epochs": 0,
    "rq_vae_latent_dim": 0,
    "sid_hash_size": 0,
    "decoder_targets": 0,
    "item_scoring": "some",
    "leaf_size": 0,
    "item_softmax": "some",
    "softmax_items": 0,
    "mask_absent_codes": 1,
    "normalize_codes": "existing",
    "num_valid_users": 0,
    "num_test_users": 0,
    "noising": "OCN",
    "n_views": 0,
    "mask_schedule": [2, 1],
    "ocn_select": "hardest",
    "ocn_refresh": "every step",
    "ocn_sample": 1,
    "ocn_confidence": "margin",
    "coherent_paths": 0,
    "random_ratio": 0,
    "loss_weighting": "mean",
    "label_smoothing": 1.0,
    "decoding": "beam",
    "path_merge": "sum",
    "beam_size": [16, 32],
    "valid_beam_size": 0,
    "decoding_memory": 0,
    "sid_collision_order": "title",
}


@pytest.mark.parametrize("key", list(OVERALL | TOKENIZER | DIFFGRM))
def test_wrong_values_are_refused(key):
    with pytest.raises(UserError, match=f"{key} must be|{key}: "):
        build_config("SASRec" if key in OVERALL else "DiffGRM", "ml-100k", overrides={key: BAD_VALUES[key]})
