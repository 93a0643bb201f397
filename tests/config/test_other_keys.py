"""RecBole's files and those of its sister projects: accepted where they say nothing new, named where they do."""

import logging
import re

import pytest

from recbole_diffgrm import UserError, run
from recbole_diffgrm.config import layers, other_keys
from recbole_diffgrm.models import build_config, check_config
from recbole_diffgrm.recbole_compat import recbole_dir
from tests.conftest import ROOT

RECBOLE_FILES = [
    "dataset/ml-100k",
    "dataset/sample",
    "quick_start_config/sequential",
    "quick_start_config/special_sequential_on_ml-100k",
    "model/SASRec",
    "model/S3Rec",
    "model/BERT4Rec",
]


@pytest.fixture(autouse=True)
def warnings_again():
    other_keys.warn_once.cache_clear()


def file_with(tmp_path, text):
    path = tmp_path / "theirs.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", RECBOLE_FILES)
@pytest.mark.parametrize("model", ["SASRec", "DiffGRM"])
def test_recbole_files_load_as_they_are(name, model, caplog):
    path = recbole_dir() / "properties" / f"{name}.yaml"
    settings = layers.read_yaml(path)
    values = check_config(model, "ml-100k", path)
    assert not caplog.records  # they say what RecBole does anyway
    for key in ("MAX_ITEM_LIST_LENGTH", "normalize_all", "filter_inter_by_user_or_item", "repeatable"):
        assert key not in settings or values[key] == settings[key]
    assert {"user_id", "item_id", "timestamp"} <= set(values["load_col"]["inter"])
    assert set(settings.get("load_col", {}).get("inter", [])) <= set(values["load_col"]["inter"])


@pytest.mark.parametrize("key", [key for key in other_keys.WITHOUT_EFFECT if key in layers.recbole_defaults("S3Rec")])
def test_a_default_of_recbole_says_nothing(key, caplog):
    plain = check_config("S3Rec", "ml-100k")
    for value in (layers.recbole_defaults("S3Rec")[key], None):
        assert check_config("S3Rec", "ml-100k", overrides={key: value}) == plain
    assert not caplog.records


@pytest.mark.parametrize("key", other_keys.WITHOUT_EFFECT)
def test_other_values_are_named_or_refused(key, caplog, tmp_path):
    path = file_with(tmp_path, f"{key}: [something, else]\n")
    if other_keys.WITHOUT_EFFECT[key].refused:
        with pytest.raises(UserError, match=rf"theirs\.yaml: {key} has no effect here: ."):
            check_config("SASRec", "ml-100k", path)
    else:
        plain = check_config("SASRec", "ml-100k")
        for _ in range(2):  # as in a comparison: one line all the same
            assert check_config("SASRec", "ml-100k", path) == plain
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        assert f"{key} has no effect here" in caplog.text


@pytest.mark.parametrize("key", other_keys.RENAMED)
def test_names_of_earlier_versions(key):
    plain = check_config("SASRec", "ml-100k")
    assert check_config("SASRec", "ml-100k", overrides={key: None}) == plain
    with pytest.raises(UserError, match=f"{key} is a name of earlier versions of RecBole; write "):
        check_config("SASRec", "ml-100k", overrides={key: 1})


def test_the_documentation_names_every_key_without_effect():
    page = (ROOT / "docs" / "recbole-differences.md").read_text()
    warned, refused = re.findall(r"^\| (`worker`.*)$|^\| (`field_separator`.*)$", page, re.M)
    for key, entry in other_keys.WITHOUT_EFFECT.items():
        assert f"`{key}`" in (refused[1] if entry.refused else warned[0])


def test_new_names_are_keys():
    known = set(layers.recbole_defaults("")) | {"gpu_id"}
    for new in other_keys.RENAMED.values():
        assert new.split(":")[0].split(",")[0] in known


@pytest.mark.parametrize(
    ("model", "key", "meant"),
    [
        ("SASRec", "lr", "learning_rate"),
        ("SASRec", "batch_size", "train_batch_size"),
        ("SASRec", "max_len", "MAX_ITEM_LIST_LENGTH"),
        ("SASRec", "max_seq_length", "MAX_ITEM_LIST_LENGTH"),
        ("SASRec", "n_epochs", "epochs"),
        ("SASRec", "gpu", "gpu_id"),
        ("SASRec", "dropout", "hidden_dropout_prob"),
        ("DiffGRM", "dropout", "dropout_prob"),
        ("SASRec", "embedding_size", "hidden_size"),
        ("GRU4Rec", "hidden_dim", "embedding_size"),
        ("SASRec", "num_layers", "n_layers"),
        ("GRU4Rec", "n_layers", "num_layers"),
        ("SASRec", "learning-rate", "learning_rate"),
        ("SASRec", "Learning_Rate", "learning_rate"),
        ("DiffGRM", "codebook_size", "sid_codebook_size"),
        ("DiffGRM", "num_beams", "beam_size"),
        ("SASRec", "train_bach_size", "train_batch_size"),
    ],
)
def test_hints_fit_the_model(model, key, meant):
    with pytest.raises(UserError, match=rf"{key}.* Did you mean {meant}\?$"):
        check_config(model, "ml-100k", overrides={key: 1})


def test_every_hint_names_a_key_and_no_key_is_hinted_away():
    known = {"config_files", "resume"}  # words of the command line
    for model in ("SASRec", "GRU4Rec", "DiffGRM", "TIGER"):
        known |= set(check_config(model, "ml-100k"))
    for names, meant in other_keys.SYNONYMS.items():
        assert set(meant) <= known and not set(names) & set(check_config("Pop", "ml-100k"))


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("eval_args: {mode: {valid: full, test: full}}", {}),
        ("eval_args: {mode: full}", {}),
        ("eval_args: {order: TO}", {}),
        ("eval_args: {group_by: ~}", {}),
        ("eval_args: {split: {'LS': 'valid_and_test'}, group_by: none, order: TO, mode: full}", {}),
        ("clip_grad_norm: {max_norm: 5, norm_type: 2}", {"clip_grad_norm": 5.0}),
        ("clip_grad_norm: {max_norm: 5}", {"clip_grad_norm": 5.0}),
        ("metrics: NDCG", {"metrics": ["NDCG"]}),
        ("topk: 10", {"topk": [10]}),
        (
            "loss_type: BPR\ntrain_neg_sample_args:\n  {distribution: uniform, sample_num: 1, alpha: 1.0, "
            "dynamic: False, candidate_num: 0}",
            {
                "loss_type": "BPR",
                "train_neg_sample_args": {"distribution": "uniform", "sample_num": 1, "alpha": 1.0},
            },
        ),
        ("model: SASRec\ndataset: ml-100k", {}),
        ("models: {SASRec: {worker: 0}}", {}),
    ],
)
def test_documented_equivalents(theirs, ours, tmp_path):
    found = build_config("SASRec", "ml-100k", file_with(tmp_path, theirs))
    assert found.values == build_config("SASRec", "ml-100k", overrides=ours).values


@pytest.mark.parametrize(
    ("theirs", "words"),
    [
        ("clip_grad_norm: {max_norm: 5, norm_type: 1}", "clip_grad_norm must be"),
        ("eval_args: {mode: {valid: full, test: labeled}}", "eval_args: mode must be"),
        ("eval_args: {order: RO}", "eval_args: order must be TO"),
        ("model: BPR", "model is 'BPR', but this run is of SASRec"),
        ("dataset: ml-1m", "dataset is 'ml-1m', but this run is of ml-100k"),
        ("eval_type: value", "eval_type"),
    ],
)
def test_what_would_change_the_result_is_refused(theirs, words, tmp_path):
    with pytest.raises(UserError, match=words):
        check_config("SASRec", "ml-100k", file_with(tmp_path, theirs))


def test_other_atomic_files_are_named(caplog):
    columns = {"inter": ["user_id", "item_id"], "net": ["source_id", "target_id"]}
    values = check_config("SASRec", "ml-100k", overrides={"load_col": columns})
    assert values["load_col"] == {"inter": ["user_id", "item_id", "timestamp"]}
    assert "load_col: .net is not loaded" in caplog.text


# Settings as RecBole-GNN's results page of session data has them.
SESSIONS = """\
field_separator: "\\t"
seq_separator: " "
USER_ID_FIELD: session_id
ITEM_ID_FIELD: item_id
TIME_FIELD: timestamp
NEG_PREFIX: neg_
ITEM_LIST_LENGTH_FIELD: item_length
LIST_SUFFIX: _list
MAX_ITEM_LIST_LENGTH: 10
POSITION_FIELD: position_id
load_col: {inter: [session_id, item_id, timestamp]}
user_inter_num_interval: "[3,inf)"
item_inter_num_interval: "[1,inf)"
epochs: 1
train_batch_size: 64
eval_batch_size: 2000
valid_metric: MRR@10
eval_args: {split: {'LS': "valid_and_test"}, mode: full, order: TO}
neg_sampling: ~
"""


def test_renamed_columns_run(tiny, tmp_path):
    """A file of a sister project, as it is; the same data under our names give the same metrics."""
    lines = (tiny / "tiny" / "tiny.inter").read_text().splitlines()
    lines[0] = lines[0].replace("user_id", "session_id")
    (tmp_path / "sessions").mkdir()
    (tmp_path / "sessions" / "sessions.inter").write_text("\n".join(lines) + "\n")
    theirs = run(
        "SASRec",
        "sessions",
        file_with(tmp_path, SESSIONS),
        data_path=str(tmp_path),
        output_dir=str(tmp_path / "runs"),
        show_progress=False,
    )
    settings = {key: value for key, value in layers.read_yaml(tmp_path / "theirs.yaml").items() if key.islower()}
    ours = run(
        "SASRec",
        "tiny",
        **{key: value for key, value in settings.items() if key not in ("load_col", "field_separator", "neg_sampling")},
        MAX_ITEM_LIST_LENGTH=10,
        data_path=str(tiny),
        output_dir=str(tmp_path / "runs"),
        show_progress=False,
    )
    assert theirs.test == ours.test
