"""Names of models, their classes, and configurations by name."""

import pytest

from recbole_diffgrm import UserError
from recbole_diffgrm.models import (
    MODELS,
    OPTIONS,
    build_config,
    find_readers,
    get_model,
    get_options,
    model_names,
    preset_names,
)
from recbole_diffgrm.models.base import Model, ModelInterface
from tests.conftest import run_python


def test_names_are_ours_and_recboles_sequential_models():
    names = model_names()
    assert names == sorted(set(names))
    assert {*MODELS, "SASRec", "BERT4Rec", "GRU4Rec", "HGN", "FDSA", "S3Rec"} <= set(names)
    assert not {"KSR", "DIN", "BPR", "LightGCN"} & set(names)  # they need other data, or are not sequential


def test_names_are_known_without_loading_torch():
    code = "import sys; from recbole_diffgrm.models import model_names; model_names(); print('torch' in sys.modules)"
    done = run_python("-c", code)
    assert done.stdout.strip() == "False", done.stderr


@pytest.mark.parametrize("name", [*MODELS, "SASRec", "S3Rec"])
def test_classes(name):
    model = get_model(name)
    assert model.__name__ == name and model is get_model(name)
    assert issubclass(model, ModelInterface) and issubclass(model, Model) == (name in MODELS)
    assert build_config(name, "ml-100k").model_class is model


@pytest.mark.parametrize("name", [*MODELS, "SASRec", "S3Rec"])
def test_options_are_known_without_the_class(name):
    assert name in OPTIONS or name not in MODELS
    assert get_options(name) is get_model(name).Options


def test_readers_of_a_key():
    assert {"DiffGRM", "TIGER", "HistoryCopy"} <= set(find_readers("sid_num_digits"))
    assert not {"SASRec", "Pop"} & set(find_readers("sid_num_digits"))
    assert {"SASRec", "BERT4Rec", "DiffGRM"} <= set(find_readers("hidden_size"))
    assert find_readers("epochs").keys() == set(model_names()) and find_readers("epohs") == {}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("SASREC", ["SASREC", "SASRec"]),
        ("DiffGRMM", ["DiffGRMM", "DiffGRM?"]),
        ("KSR", ["KSR", "knowledge graph"]),
        ("BPR", ["BPR", "SASRec"]),
        ("", ["''"]),
        (None, ["None"]),
    ],
)
def test_unknown_names(name, words):
    for use in (get_model, lambda name: build_config(name, "ml-100k")):
        with pytest.raises(UserError) as error:
            use(name)
        assert all(word in str(error.value) for word in words)


def test_an_unknown_name_in_a_file(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("models: {SASREC: {n_layers: 1}}\n")
    with pytest.raises(UserError, match=r"mine\.yaml.*SASREC.*SASRec"):
        build_config("Pop", "ml-100k", path)


def test_presets():
    assert preset_names("DiffGRM") == ["cpu", "item", "item-small"] and preset_names("Pop") == []
    by_text = build_config("DiffGRM", "ml-100k", presets="item, item-small")
    assert by_text.values == build_config("DiffGRM", "ml-100k", presets=["item", "item-small"]).values
    assert (by_text["item_head"], by_text["hidden_size"]) == (True, 64)  # the later one wins
    assert build_config("DiffGRM", "ml-100k", presets="item-small,item", overrides={"beam_size": 20})["beam_size"] == 20
    for model, preset in (("DiffGRM", "nothing"), ("Pop", "item")):
        with pytest.raises(UserError, match=f"preset.*{preset}.*{model}"):
            build_config(model, "ml-100k", presets=preset)
    passed_over = build_config("Pop", "ml-100k", presets="item", compared_with=["Pop", "DiffGRM"])
    assert passed_over.values == build_config("Pop", "ml-100k").values
