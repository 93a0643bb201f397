import math

import optuna
import pytest

from recbole_diffgrm.errors import UserError
from recbole_diffgrm.experiments.tuning.space import Choice, Range, read_spaces
from recbole_diffgrm.models import MODELS, build_config, get_model
from tests.conftest import ROOT

SHIPPED = sorted(path.stem for path in (ROOT / "properties" / "tune").glob("*.yaml"))


def read(tmp_path, text, models=("SASRec",), name="space.yaml"):
    (tmp_path / name).write_text(text)
    return read_spaces(list(models), tmp_path / name)


def test_every_kind_of_a_yaml_space(tmp_path):
    text = (
        "learning_rate: {log_uniform: [1e-4, 1e-2]}\n"
        "hidden_dropout_prob: {uniform: [0.1, 0.5]}\n"
        "attn_dropout_prob: {uniform: [0, 0.5, 0.25]}\n"
        "n_layers: {int: [1, 4]}\n"
        "hidden_size: {int: [64, 256, 64]}\n"
        "loss_type: [CE, BPR]\n"
    )
    assert read(tmp_path, text)["SASRec"] == {
        "learning_rate": Range(1e-4, 1e-2, log=True),
        "hidden_dropout_prob": Range(0.1, 0.5),
        "attn_dropout_prob": Range(0.0, 0.5, 0.25),
        "n_layers": Range(1, 4, whole=True),
        "hidden_size": Range(64, 256, 64, whole=True),
        "loss_type": Choice(("CE", "BPR")),
    }


def test_hyper_test_of_recbole(tmp_path):
    """As recbole/trainer/hyper_tuning.py reads it with hyperopt."""
    text = (
        "# a comment\n\n"
        "learning_rate loguniform -8,0\n"
        "embedding_size choice [64,96 , 128]\n"
        "dropout_prob uniform 0.1,0.5\n"
        "num_layers quniform 1,3,1\n"
        "weight_decay quniform 0.04,0.5,0.1\n"
        "learner choice ['adam','adamw']\n"
    )
    space = read(tmp_path, text, ["GRU4Rec"], "hyper.test")["GRU4Rec"]
    rate = space["learning_rate"]
    assert rate.log and rate.low == pytest.approx(math.exp(-8)) and rate.high == 1
    assert space["embedding_size"] == Choice((64, 96, 128))
    assert space["dropout_prob"] == Range(0.1, 0.5)
    assert space["num_layers"] == Range(1, 3, 1, whole=True)
    assert space["weight_decay"] == Range(0.0, 0.5, 0.1)  # multiples of the step: round(0.04 / 0.1) is 0
    assert space["learner"] == Choice(("adam", "adamw"))
    listed = read(tmp_path, "reg_weight choice ['[0.0,0.0]', [0.1,0.1]]", ["HGN"], "hyper.test")["HGN"]
    assert listed["reg_weight"] == Choice(([0.0, 0.0], [0.1, 0.1]))  # RecBole evaluates texts


def test_sections_of_models_and_keys_of_some(tmp_path):
    text = (
        "hidden_size: [16, 32]\nembedding_size: [8, 16]\nmodels: {GRU4Rec: {hidden_size: [64]}, HGN: {epochs: [1]}}\n"
    )
    spaces = read(tmp_path, text, ["SASRec", "GRU4Rec"])
    assert spaces["SASRec"] == {"hidden_size": Choice((16, 32))}
    assert spaces["GRU4Rec"] == {"hidden_size": Choice((64,)), "embedding_size": Choice((8, 16))}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hidden_sise: [16]", ["unknown key 'hidden_sise'", "Did you mean hidden_size?"]),
        ("checkpoint_dir: [a]", ["unknown key 'checkpoint_dir'"]),
        ("models: {SASRec: {beam_size: [3]}}", ["SASRec", "unknown key 'beam_size'"]),
        ("models: {SASRek: {}}", ["SASRek", "SASRec"]),
        ("hidden_size: 16", ["hidden_size", "a list", "16"]),
        ("hidden_size: []", ["hidden_size", "a list"]),
        ("hidden_size: {normal: [1, 2]}", ["hidden_size", "log_uniform"]),
        ("n_layers: {int: [1, 2.5]}", ["n_layers", "whole numbers"]),
        ("n_layers: {int: [4, 1]}", ["n_layers", "below high"]),
        ("learning_rate: {log_uniform: [0, 1]}", ["learning_rate", "above 0"]),
        ("learning_rate: {uniform: [0, 1]}", ["learning_rate", "a number above 0"]),
        ("hidden_dropout_prob: {uniform: [0.1, 1.5]}", ["hidden_dropout_prob", "below 1", "1.5"]),
        ("loss_type: [CE, MSE]", ["loss_type", "CE, BPR", "MSE"]),
        ("topk: [[5], [10]]", ["topk", "cannot be compared"]),
        ("seed: [1, 2]", ["seed", "cannot be compared"]),
        ("output_dir: [a, b]", ["output_dir", "does not affect"]),
        ("", ["no key"]),
    ],
)
def test_mistakes_are_one_line(text, words, tmp_path):
    with pytest.raises(UserError) as error:
        read(tmp_path, text)
    assert all(word in str(error.value) for word in words) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "line",
    [
        "n_layers",
        "n_layers choice 3",
        "n_layers choice []",
        "n_layers choice '12'",
        "n_layers normal 1,2",
        "n_layers uniform 1",
        "n_layers quniform 1,3,0",
    ],
)
def test_mistakes_in_hyper_test(line, tmp_path):
    with pytest.raises(UserError, match="line 2"):
        read(tmp_path, f"hidden_size choice [16]\n{line}\n", name="hyper.test")


def test_what_is_contained():
    assert Range(0.1, 0.5, 0.1).contains(0.3) and not Range(0.1, 0.5, 0.1).contains(0.35)
    assert Range(1, 4, whole=True).contains(2) and not Range(1, 4, whole=True).contains(2.0)
    assert not Range(1.0, 4.0).contains(None) and not Range(0.0, 4.0).contains(True)
    assert Choice(([1], [2])).contains([2]) and not Choice((1, 2)).contains(3)


def test_choices_that_optuna_cannot_store():
    choice = Choice(([0.0, 0.1], None, "text", 3))
    stored = [choice.encode(value) for value in choice.values]
    assert stored == ["[0.0, 0.1]", None, "text", 3]
    assert [choice.decode(value) for value in stored] == list(choice.values)


def test_every_model_that_learns_has_a_space():
    """Ours, and those of RecBole that the bench is about."""
    ours = {name for name in MODELS if get_model(name).trainable}
    assert set(SHIPPED) == ours | {"SASRec", "BERT4Rec", "GRU4Rec", "HGN", "FDSA", "S3Rec"}


@pytest.mark.parametrize("model", SHIPPED)
def test_shipped_spaces_make_runs_that_are_possible(model):
    space = read_spaces([model], None)[model]
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1))
    for _ in range(15):
        trial = study.ask()
        for key, searched in space.items():
            searched.suggest(trial, key)
        values = {key: searched.decode(trial.params[key]) for key, searched in space.items()}
        assert build_config(model, "ml-100k", (), values).values[next(iter(space))] == values[next(iter(space))]


def test_a_model_without_a_space():
    with pytest.raises(UserError, match="--space=FILE"):
        read_spaces(["NARM"], None)
