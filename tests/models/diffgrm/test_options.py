"""Keys of DiffGRM: which of them fit each other, what they affect, and the paper's values."""

import pytest

from recbole_diffgrm import UserError
from recbole_diffgrm.models import build_config
from recbole_diffgrm.models.diffgrm.model import DiffGRM
from recbole_diffgrm.models.diffgrm.noising import NOISINGS
from recbole_diffgrm.models.diffgrm.options import make_noising, noising_keys

ALL_POSITIONS = {"sample_unit": "sequence", "min_history": 1}

CONFLICTS = [  # overrides, what the message must name
    ({"hidden_size": 20, "n_heads": 8}, ["hidden_size", "20", "n_heads", "8"]),
    # Samples
    ({"sample_unit": "sequence"}, ["sample_unit", "min_history: 1"]),
    ({**ALL_POSITIONS, "sliding_window": False}, ["sample_unit", "sliding_window: True"]),
    ({**ALL_POSITIONS, "max_history": 50}, ["sample_unit", "max_history: ~"]),
    ({"decoder_targets": 2}, ["decoder_targets", "sample_unit"]),
    # Item head
    ({"code_prior": True}, ["code_prior", "item_head"]),
    ({"item_scoring": "full"}, ["item_scoring", "item_head"]),
    ({"item_head": True, "item_scoring": "none", "leaf_size": 9}, ["leaf_size", "item_scoring"]),
    ({"item_text": True}, ["item_text", "item_head"]),
    ({"item_head": True, "decoding": "unconstrained"}, ["item_head", "decoding: constrained"]),
    ({"item_head": True, "sid_collision_order": "number"}, ["sid_collision_order", "item_head"]),
    # Noising
    ({"noising": "noisy"}, ["noising", "ocn, coherent, random", "noisy"]),
    ({"coherent_paths": 2}, ["coherent_paths", "coherent", "ocn"]),
    ({"random_ratio": 0.5}, ["random_ratio", "random", "ocn"]),
    ({"noising": "random", "ocn_refresh": True}, ["ocn_refresh", "ocn", "random"]),
    ({"noising": "coherent", "ocn_select": "most"}, ["ocn_select", "ocn", "coherent"]),
    ({"noising": "coherent", "ocn_sample": True}, ["ocn_sample", "ocn", "coherent"]),
    ({"noising": "random", "ocn_confidence": "entropy"}, ["ocn_confidence", "ocn", "random"]),
    ({"noising": "random", "mask_schedule": [1, 2]}, ["mask_schedule", "ocn and coherent", "random"]),
    ({"n_views": 2, "mask_schedule": [1, 2]}, ["n_views", "mask_schedule"]),
    ({"n_views": 5}, ["n_views", "4 digits"]),
    ({"mask_schedule": [1, 5]}, ["mask_schedule", "4 digits"]),
    ({"mask_schedule": [2, 1]}, ["mask_schedule", "[2, 1]"]),
    ({"n_views": 6, "sid_collisions": "extra_digit"}, ["n_views", "5 digits"]),
    # Decoding
    ({"decoding": "paper"}, ["decoding", "unconstrained_greedy_last", "paper"]),
    ({"beam_size": 8}, ["beam_size", "8", "topk 10"]),
    ({"valid_beam_size": [32, 8]}, ["valid_beam_size", "8", "topk 10"]),
    ({"beam_size": 15, "topk": [5, 20]}, ["beam_size", "15", "topk 20"]),
    ({"beam_size": [16, 32]}, ["beam_size", "[16, 32]"]),
    ({"beam_size": []}, ["beam_size", "[]"]),
    ({"beam_size": [32, 16, 12, 12, 12]}, ["beam_size", "5 widths", "4 digits"]),
    ({"valid_beam_size": [12] * 6, "sid_collisions": "extra_digit"}, ["valid_beam_size", "6 widths", "5 digits"]),
    ({"decoding": "unconstrained", "path_merge": "logsumexp"}, ["path_merge", "constrained", "unconstrained"]),
]


@pytest.mark.parametrize(("overrides", "words"), CONFLICTS, ids=str)
def test_keys_that_do_not_fit(overrides, words):
    with pytest.raises(UserError) as error:
        build_config("DiffGRM", "ml-100k", overrides=overrides)
    message = str(error.value)
    assert all(word in message for word in words), message
    assert "\n" not in message


@pytest.mark.parametrize(
    "overrides",
    [
        {**ALL_POSITIONS, "decoder_targets": 2},
        {"item_head": True, "item_text": True, "item_scoring": "generated", "leaf_size": 9},
        {"sid_collision_order": "number"},
        {"noising": "coherent", "coherent_paths": 2, "mask_schedule": [1, 4]},
        {"noising": "random", "random_ratio": 0.5, "n_views": 9},
        {"n_views": 5, "sid_collisions": "extra_digit"},
        {"beam_size": [50, 40, 30, 20, 10], "sid_collisions": "extra_digit"},
        {"n_views": 9, "beam_size": [12] * 9, "sid_file": "some.sid"},  # its digits are known when it is read
        {"decoding": "fixed_order", "path_merge": "max"},  # not read, but it has its default
        {"beam_size": 3, "valid_beam_size": 3, "topk": [3], "valid_metric": "NDCG@3"},
    ],
    ids=str,
)
def test_keys_that_fit(overrides):
    config = build_config("DiffGRM", "ml-100k", overrides=overrides)
    assert {key: config[key] for key in overrides} == overrides


def test_keys_of_every_noising_are_keys_of_diffgrm():
    assert noising_keys() <= DiffGRM.Options.keys()
    for name, noising in NOISINGS.items():
        config = build_config("DiffGRM", "ml-100k", overrides={"noising": name, "n_views": 2})
        made = make_noising(config)
        assert type(made) is noising and made.n_views == 2


def test_what_keys_affect():
    """A finished run recommends with other keys of evaluation, and is tested again with others of validation too."""
    keys = DiffGRM.Options.keys
    of_decoding = {"decoding", "path_merge", "beam_size", "decoding_memory", "item_scoring"}
    assert of_decoding <= keys("evaluation") and "valid_beam_size" in keys("validation")
    assert not (of_decoding | {"valid_beam_size"}) & keys("training")
    of_training = {"hidden_size", "item_head", "noising", "sid_num_digits", "learning_rate"}
    assert noising_keys() | of_training <= keys("training")


def test_hyper_parameters_of_the_paper():
    """Its table, per dataset."""
    table = {
        "Amazon_Sports_and_Outdoors": (0.003, 256, 1024, 4, 0.1),
        "Amazon_Beauty": (0.01, 256, 1024, 4, 0.1),
        "Amazon_Toys_and_Games": (0.003, 1024, 1024, 8, 0.15),
    }
    keys = ("learning_rate", "hidden_size", "inner_size", "n_heads", "label_smoothing")
    common = {
        "warmup_steps": 10_000,
        "dropout_prob": 0.1,
        "sid_num_digits": 4,
        "sid_codebook_size": 256,
        "encoder_layers": 1,
        "decoder_layers": 4,
        "MAX_ITEM_LIST_LENGTH": 50,
        "epochs": 100,
        "stopping_step": 15,
        "train_batch_size": 1024,
        "learner": "adamw",
        "weight_decay": 0.0,
        "clip_grad_norm": 1.0,
        "valid_metric": "0.8*NDCG@10+0.2*Recall@10",
        "min_history": 2,
        "max_history": 50,
    }
    for dataset, values in table.items():
        config = build_config("DiffGRM", dataset)
        assert tuple(config[key] for key in keys) == values
        assert {key: config.values[key] for key in common} == common
        # The baselines beside it keep their own settings.
        assert build_config("SASRec", dataset)["train_batch_size"] == 256
