"""Layers, precedence and refusals."""

import shutil
import subprocess
import sys
import zipfile

import pytest

from recbole_diffgrm import UserError
from recbole_diffgrm.cli import main, parse_arguments
from recbole_diffgrm.config import layers, schema
from recbole_diffgrm.config.config import build_config
from tests.conftest import ROOT

OVERALL = layers.read_yaml(ROOT / "properties" / "overall.yaml")
TOKENIZER = layers.read_yaml(ROOT / "properties" / "tokenizer.yaml")
DIFFGRM = layers.read_yaml(ROOT / "properties" / "model" / "DiffGRM.yaml")


@pytest.fixture
def properties(tmp_path, monkeypatch):
    """A copy of properties/ that a test may edit."""
    copy = tmp_path / "properties"
    shutil.copytree(ROOT / "properties", copy)
    monkeypatch.setattr(layers, "properties_dir", lambda: copy)
    return copy


def test_each_layer_beats_the_one_below(properties, tmp_path):
    def rate(config_files=(), **overrides):
        return build_config("SASRec", "mine", config_files, overrides)["learning_rate"]

    def set_rate(path, value):
        path.write_text((path.read_text() if path.exists() else "") + f"\nlearning_rate: {value}\n")
        return path

    overall = properties / "overall.yaml"
    overall.write_text(overall.read_text().replace("learning_rate: 0.001", "learning_rate: 0.1"))
    assert layers.recbole_defaults("SASRec")["learning_rate"] == 0.001
    assert rate() == 0.1
    set_rate(properties / "model" / "SASRec.yaml", 0.2)
    assert rate() == 0.2
    set_rate(properties / "dataset" / "mine.yaml", 0.3)
    assert rate() == 0.3
    first, second = set_rate(tmp_path / "a.yaml", 0.4), set_rate(tmp_path / "b.yaml", 0.5)
    assert rate([first]) == 0.4
    assert rate([first, second]) == 0.5
    assert rate([second, first]) == 0.4
    assert rate([first, second], learning_rate=0.6) == 0.6


def test_recbole_files_do_not_beat_the_data_set(properties):
    """In RecBole sample.yaml beats the model's file, and sequential.yaml the data set's."""
    (properties / "dataset" / "mine.yaml").write_text(
        "topk: [3]\nvalid_metric: MRR@3\neval_args: {split: {LS: test_only}}\n"
    )
    config = build_config("SASRec", "mine")
    assert config["topk"] == [3]
    assert config["eval_args"]["split"] == {"LS": "test_only"}
    assert config["eval_args"]["order"] == "TO"  # the rest of eval_args stays


def test_section_for_one_model(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("hidden_size: 32\nmodels: {SASRec: {hidden_size: 16}}\n")
    assert build_config("SASRec", "x", [path])["hidden_size"] == 16
    assert build_config("BERT4Rec", "x", [path])["hidden_size"] == 32
    assert build_config("SASRec", "x", [path], {"hidden_size": 8})["hidden_size"] == 8


@pytest.mark.parametrize("name", ["ml-100k", "Amazon_Beauty", "Amazon_Sports_and_Outdoors", "Amazon_Toys_and_Games"])
@pytest.mark.parametrize(
    "model", ["DiffGRM", "SASRec", "BERT4Rec", "GRU4Rec", "HGN", "FDSA", "S3Rec", "HistoryCopy", "Pop"]
)
def test_data_sets_serve_every_model(name, model):
    config = build_config(model, name)
    assert config["eval_args"] == {
        "split": {"LS": "valid_and_test"},
        "group_by": "user",
        "order": "TO",
        "mode": {"valid": "full", "test": "full"},
    }
    assert config["MAX_ITEM_LIST_LENGTH"] == 50
    assert config["metrics"] == ["Recall", "NDCG", "Hit", "MRR"]
    assert config["topk"] == [5, 10]
    assert "timestamp" in config["load_col"]["inter"]


@pytest.mark.parametrize(("name", "keys"), [("overall", OVERALL), ("tokenizer", TOKENIZER), ("model/DiffGRM", DIFFGRM)])
def test_every_key_of_ours_is_documented_and_checked(name, keys):
    text = (ROOT / "properties" / f"{name}.yaml").read_text()
    for key in keys:
        assert key in schema.RULES, f"{key} is not validated"
        line = next(line for line in text.splitlines() if line.startswith(f"{key}:"))
        assert "#" in line or key == "eval_args" or (key in OVERALL and keys is not OVERALL), f"{key} is not documented"


BAD_VALUES = {
    "data_path": 3,
    "amazon_url": "",
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
    "sid_text_fields": [],
    "sid_text_template": "{label} {txt}",
    "sid_encoder": 3,
    "sid_trust_remote_code": "yes",
    "sid_file": "",
    "sid_quantiser": "opqq",
    "sid_digits": 33,
    "sid_codes": 100,
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
    "id_weight": -0.1,
    "every_position": "all",
    "id_targets": 0,
    "valid_users": 0,
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
    "merge": "sum",
    "beam_size": [16, 32],
    "valid_beam_size": 0,
    "decoding_memory": 0,
    "shared_id_order": "title",
}


@pytest.mark.parametrize("key", list(OVERALL | TOKENIZER | DIFFGRM))
def test_wrong_values_are_refused(key):
    with pytest.raises(UserError, match=f"{key} must be|{key}: "):
        build_config("SASRec" if key in OVERALL else "DiffGRM", "ml-100k", overrides={key: BAD_VALUES[key]})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("sid_codes", 1),
        ("sid_codes", 8192),
        ("sid_codes", 2.0),
        ("sid_digits", 0),
        ("sid_text_fields", {"title": 3}),
        ("sid_text_fields", "title"),
        ("sid_text_template", "{text"),
        ("sid_text_template", "no field"),
        ("sid_text_template", "{text.nothing}"),
        ("sid_encoder", ""),
    ],
)
def test_wrong_tokenizer_values_are_refused(key, value):
    with pytest.raises(UserError, match=f"{key} must be"):
        build_config("DiffGRM", "ml-100k", overrides={key: value})


def test_keys_of_the_tokenizer_are_for_models_with_semantic_ids():
    plain = build_config("SASRec", "ml-100k")
    assert not any(key.startswith("sid_") for key in plain.values)
    with pytest.raises(UserError, match="no one reads the key 'sid_digits'"):
        build_config("SASRec", "ml-100k", overrides={"sid_digits": 3})
    with_sids = build_config("DiffGRM", "ml-100k")
    assert with_sids["sid_text_fields"] == {"movie_title": "Title", "release_year": "Year", "class": "Genres"}
    assert with_sids["sid_encoder"] == "bundled"
    for name in ("Amazon_Beauty", "Amazon_Sports_and_Outdoors", "Amazon_Toys_and_Games"):
        amazon = build_config("DiffGRM", name)
        assert amazon["sid_encoder"] == "sentence-transformers/sentence-t5-base"
        assert list(amazon["sid_text_fields"]) == ["title", "price", "brand", "categories", "description"]
        assert (amazon["sid_digits"], amazon["sid_codes"], amazon["sid_pca_dim"]) == (4, 256, 256)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"n_layer": 3}, "Did you mean n_layers"),
        ({"Learning_rate": 3}, "Did you mean learning_rate"),
        ({"worker": 2}, "no effect"),
        ({"hidden_size": 33}, "multiple of n_heads"),
        ({"min_history": 3, "max_history": 2}, "below min_history"),
        ({"hidden_dropout_prob": 1.0}, "below 1"),
        ({"initializer_range": "wide"}, "initializer_range"),
        ({"valid_metric": "NDCG@7"}, "not among metrics x topk"),
        ({"valid_metric": "0.5*NDCG@10 0.5*Recall@10"}, "cannot read"),
        ({"valid_metric": "NDCG"}, "cannot read"),
        ({"topk": [20]}, "not among metrics x topk"),
        ({"metrics": ["NDGC"]}, "Did you mean NDCG"),
        ({"metrics": ["AUC"]}, "not available"),
        ({"eval_args": {"split": {"RS": [0.8, 0.1, 0.1]}}}, "split must be"),
        ({"eval_args": {"mode": "uni100"}}, "mode must be full"),
        ({"eval_args": {"splits": 1}}, "eval_args"),
        ({"train_neg_sample_args": {"distribution": "uniform", "sample_num": 1}}, "loss_type CE"),
        ({"models": {"SasRec": {}}}, "Did you mean SASRec"),
        ({"models": [1]}, "models"),
        ({"load_col": {"item": ["item_id"]}}, "load_col"),
        ({"load_col": {"inter": "user_id,item_id"}}, "load_col"),
        ({"user_inter_num_interval": "5"}, "interval such as"),
        ({"train_neg_sample_args": {"distribution": "foo"}, "loss_type": "BPR"}, "train_neg_sample_args"),
        ({"train_neg_sample_args": {"samples": 3}, "loss_type": "BPR"}, "train_neg_sample_args"),
        ({"clip_grad_norm": {"max_norm": "x"}}, "clip_grad_norm"),
        ({"clip_grad_norm": {"max_norm": 1.0, "norm_type": 1}}, "clip_grad_norm"),
        ({"transform": "foo"}, "transform"),
        ({"field_separator": ","}, "no effect"),
        ({"amazon_url": "foo"}, "amazon_url"),
        ({1: 2}, "keys are names"),
        ({"metrics": ["GiniIndex"], "valid_metric": "GiniIndex@10"}, "write -GiniIndex@10"),
    ],
)
def test_mistakes_are_named(overrides, words):
    with pytest.raises(UserError, match=words) as caught:
        build_config("SASRec", "ml-100k", overrides=overrides)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("model", "words"), [("SasRek", "Did you mean SASRec"), ("BPR", "not a sequential"), ("KSR", "knowledge graph")]
)
def test_models_that_cannot_run(model, words):
    with pytest.raises(UserError, match=words):
        build_config(model, "ml-100k")


def test_in_a_comparison_one_reader_is_enough():
    overrides = {"n_layers": 1, "num_layers": 2}  # SASRec reads the first, GRU4Rec the second
    for model in ("SASRec", "GRU4Rec"):
        build_config(model, "ml-100k", overrides=overrides, compared_with=["SASRec", "GRU4Rec"])
    with pytest.raises(UserError, match="num_layers"):
        build_config("SASRec", "ml-100k", overrides=overrides)


def test_command_line_values_are_yaml_and_never_evaluated(tmp_path):
    touched = tmp_path / "touched"
    text = f"__import__('pathlib').Path({str(touched)!r}).touch()"
    parsed = parse_arguments(
        ["--a=1e-3", "--b=[5, 10]", "--c", "x=y", f"--d={text}", "--e=~", "--resume", "--model=1,2", "--f={p: True}"]
    )
    assert parsed == {
        "a": 0.001,
        "b": [5, 10],
        "c": "x=y",
        "d": text,
        "e": None,
        "resume": True,
        "model": "1,2",
        "f": {"p": True},
    }
    assert not touched.exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["SASRec"],
        ["--topk=[5"],
        ["--epochs=1", "--epochs=2"],
        ["--epoch=1"],
        ["--seeds=one"],
        ["--resume=maybe"],
        ["--model="],
        ["--model=SASRec,SASRec"],
        ["--seeds=1,1"],
        ["--seeds=1,2", "--seed=3"],
        ["--seeds=1", "--seed=3"],
        ["--resume", "--rerun"],
        ["--epochs=2024-02-30"],
        ["--user_inter_num_interval=[5,x)"],
        ["--model=SASRec,GRU4Rec", "--eval_args={split: {LS: valid_only}}"],
        ["--model=SASRec,FDSA", "--load_col={inter: [user_id, item_id, timestamp]}"],
        ["--config_files=does_not_exist.yaml"],
        ["--dataset=does_not_exist"],
        ["--dataset=../up"],
        ["--dataset=Amazon_Bauty"],
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(arguments, capsys, tmp_path):
    assert main([*arguments, f"--output_dir={tmp_path / 'runs'}"]) == 2
    written = capsys.readouterr()
    assert written.out == ""
    assert written.err.startswith("error: ") and written.err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("content", ["a: [1", "- 1\n- 2", b"\xff\xfe"])
def test_broken_configuration_files(content, tmp_path):
    path = tmp_path / "broken.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=r"broken\.yaml"):
        build_config("SASRec", "ml-100k", [path])


def test_help_names_what_people_use_without_loading_torch():
    code = "import sys; from recbole_diffgrm.cli import main; main(['--help']); assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    for option in (
        "--model",
        "--dataset",
        "--config_files",
        "--seeds",
        "--resume",
        "--rerun",
        "--save_topk",
        "Precedence",
    ):
        assert option in done.stdout


def test_identity_changes_with_what_decides_the_outcome(tmp_path):
    def identity(data="d", **overrides):
        return build_config("SASRec", "ml-100k", overrides=overrides).identity(data)

    assert identity() == identity(output_dir=str(tmp_path), show_progress=False, save_topk=3)
    assert len({identity(), identity(seed=1), identity(epochs=1), identity(data="e"), identity(repeatable=False)}) == 5


def test_arguments_as_people_type_them():
    assert parse_arguments(["--user_inter_num_interval=[5,inf)"]) == {"user_inter_num_interval": "[5,inf)"}
    config = build_config("SASRec", "ml-100k", overrides={"topk": (5, 10), "output_dir": ROOT})
    assert config["topk"] == [5, 10] and config["output_dir"] == str(ROOT)


def test_no_gpu_on_request():
    assert build_config("SASRec", "ml-100k", overrides={"use_gpu": False})["device"].type == "cpu"


def test_properties_ship_in_the_wheel(tmp_path):
    source = tmp_path / "source"  # without build/, whose leftovers setuptools would pack
    source.mkdir()
    for name in ("recbole_diffgrm", "properties"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", tmp_path, source]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    files = set(zipfile.ZipFile(wheel).namelist())
    expected = {f"recbole_diffgrm/{path.relative_to(ROOT)}" for path in (ROOT / "properties").rglob("*.yaml")}
    expected |= {str(path.relative_to(ROOT)) for path in (ROOT / "recbole_diffgrm").rglob("*.py")}
    assert expected <= files
    assert any(name.endswith("properties/dataset/Amazon.yaml") for name in files)

    unpacked = tmp_path / "unpacked"
    zipfile.ZipFile(wheel).extractall(unpacked)
    code = "from recbole_diffgrm.config.layers import properties_dir; print(properties_dir())"
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={"PYTHONPATH": str(unpacked)}, capture_output=True, text=True
    )
    assert found.stdout.strip() == str(unpacked / "recbole_diffgrm" / "properties"), found.stderr
