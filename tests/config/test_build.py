"""Merging layers, checking them, and what they make together."""

from datetime import date

import numpy as np
import pytest

from recbole_diffgrm import UserError
from recbole_diffgrm.config import layers
from recbole_diffgrm.config.build import check_changes, metric_names
from recbole_diffgrm.config.protocol import held_out_parts, to_seconds
from recbole_diffgrm.models import build_config, check_config, get_options


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


def test_recbole_files_do_not_beat_the_dataset(properties):
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
def test_dataset_files_serve_every_model(name, model):
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


def test_keys_of_the_tokenizer_are_for_models_with_semantic_ids():
    plain = build_config("SASRec", "ml-100k")
    assert not any(key.startswith("sid_") for key in plain.values)
    with pytest.raises(UserError, match=r"SASRec does not read 'sid_num_digits'.*DiffGRM"):
        build_config("SASRec", "ml-100k", overrides={"sid_num_digits": 3})
    with_sids = build_config("DiffGRM", "ml-100k")
    assert with_sids["sid_text_fields"] == {"movie_title": "Title", "release_year": "Year", "class": "Genres"}
    assert with_sids["sid_text_encoder"] == "bundled"
    for name in ("Amazon_Beauty", "Amazon_Sports_and_Outdoors", "Amazon_Toys_and_Games"):
        amazon = build_config("DiffGRM", name)
        assert amazon["sid_text_encoder"] == "sentence-transformers/sentence-t5-base"
        assert list(amazon["sid_text_fields"]) == ["title", "price", "brand", "categories", "description"]
        assert (amazon["sid_num_digits"], amazon["sid_codebook_size"], amazon["sid_pca_dim"]) == (4, 256, 256)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"n_layer": 3}, "Did you mean n_layers"),
        ({"Learning_rate": 3}, "Did you mean learning_rate"),
        ({"hidden_size": 33}, "multiple of n_heads"),
        ({"min_history": 3, "max_history": 2}, "below min_history"),
        ({"hidden_dropout_prob": 1.0}, "below 1"),
        ({"initializer_range": "wide"}, "initializer_range"),
        ({"valid_metric": "NDCG@7"}, "not among metrics x topk"),
        ({"valid_metric": "0.5*NDCG@10 0.5*Recall@10"}, "cannot read"),
        ({"valid_metric": "NDCG"}, "not among metrics x topk"),
        ({"valid_metric": "GAUC"}, "not among metrics x topk"),
        ({"topk": [20]}, "not among metrics x topk"),
        ({"metrics": ["NDGC"]}, "Did you mean NDCG"),
        ({"metrics": ["AUC"]}, "not available"),
        ({"eval_args": {"split": {"RS": [0.8, 0.2]}}}, "split must be"),
        ({"eval_args": {"split": {"RS": [0.8, 0.1, -0.1]}}}, "split must be"),
        ({"eval_args": {"split": {"RS": [1, 0, 0]}}}, "split must be"),
        ({"eval_args": {"split": {"TS": [0, 0.5, 0.5]}}}, "split must be"),
        ({"eval_args": {"split": {"TS": 0.5}}}, "split must be"),
        ({"eval_args": {"split": {"LS": [0.8, 0.1, 0.1]}}}, "split must be"),
        ({"eval_args": {"split": {"TS": [1, "2014-01-01"]}}}, "two numbers or two ISO dates"),
        ({"eval_args": {"split": {"TS": ["last year", "now"]}}}, "two numbers or two ISO dates"),
        ({"eval_args": {"split": {"TS": [date(2014, 2, 1), "2014-01-01"]}}}, "2014-02-01.*before the test"),
        ({"eval_args": {"split": {"LS": "valid_and_test", "TS": [1, 2]}}}, "split must be"),
        ({"eval_args": {"split": {"RS": [8, 1, 1]}, "group_by": "none"}}, "group_by must be user"),
        ({"eval_args": {"mode": "uni"}}, "mode must be full"),
        ({"eval_args": {"mode": "labeled"}}, "mode must be full"),
        ({"eval_args": {"mode": {"train": "full"}}}, "mode must be full"),
        ({"eval_args": {"mode": "uni100"}, "metrics": ["NDCG", "ItemCoverage"]}, "ItemCoverage reads whole lists"),
        ({"benchmark_filename": ["train", "test"]}, "three names"),
        ({"benchmark_filename": ["a", "b", "c"], "eval_args": {"split": {"TS": [1, 2]}}}, "leave split out"),
        ({"benchmark_filename": ["a", "b", "c"], "user_inter_num_interval": "[5,inf)"}, "taken as they are"),
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
        ({"metrics": ["ND\nCG"]}, "metrics: ND CG is not available"),
        ({"epochs": 10**5000}, "epochs must be .*, not a number of thousands of digits"),
        ({"require_pow": 1}, "require_pow must be True or False"),
        ({"RATING_FIELD": 3}, "RATING_FIELD must be text"),
        ({"load_col": {"inter": ["user_id", "user_id_list"]}}, "LIST_SUFFIX: user_id_list would be"),
        ({"load_col": {"inter": ["item_length"]}}, "ITEM_LIST_LENGTH_FIELD: item_length would be"),
        ({"load_col": {"inter": ["neg_item_id"]}}, "NEG_PREFIX: neg_item_id would be"),
        ({"seq_len": {"class": 0}}, "seq_len must be"),
        ({"val_interval": {"rating": [1, 2]}}, "val_interval must be"),
        ({"val_interval": {"rating": "[1,2];"}}, "val_interval must be"),
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


def test_presets_are_named_and_come_before_config_files(properties, tmp_path):
    folder = properties / "preset" / "SASRec"
    folder.mkdir()
    (folder / "small.yaml").write_text("hidden_size: 8\nn_layers: 1\n")
    (folder / "wide.yaml").write_text("hidden_size: 96\n")
    file = tmp_path / "c.yaml"
    file.write_text("n_layers: 3\n")
    config = build_config("SASRec", "ml-100k", [file], presets="small,wide")
    assert (config["hidden_size"], config["n_layers"]) == (96, 3)
    assert build_config("SASRec", "ml-100k", presets=["wide", "small"])["hidden_size"] == 8
    with pytest.raises(UserError, match=r"'huge'.*small, wide"):
        build_config("SASRec", "ml-100k", presets="huge")
    with pytest.raises(UserError, match=r"'small'.*none"):
        build_config("GRU4Rec", "ml-100k", presets="small")
    # In a comparison the preset is for the model that has it.
    assert build_config("GRU4Rec", "ml-100k", presets="small", compared_with=["GRU4Rec", "SASRec"])["num_layers"] == 1


@pytest.mark.parametrize("presets", ["item", "item,item-small", "cpu"])
def test_presets_of_diffgrm(presets):
    config = build_config("DiffGRM", "ml-100k", presets=presets)
    assert config["item_head"] == ("item" in presets)


def test_in_a_comparison_one_reader_is_enough():
    overrides = {"n_layers": 1, "num_layers": 2}  # SASRec reads the first, GRU4Rec the second
    for model in ("SASRec", "GRU4Rec"):
        build_config(model, "ml-100k", overrides=overrides, compared_with=["SASRec", "GRU4Rec"])
    with pytest.raises(UserError, match="num_layers"):
        build_config("SASRec", "ml-100k", overrides=overrides)


ALL_MODELS = "sid_num_digits: 3\nbeam_size: 16\nnum_layers: 2\nhidden_size: 32\ncache_dir: elsewhere\n"


def test_one_file_serves_all_models_or_one_of_them(tmp_path):
    path = tmp_path / "all.yaml"
    path.write_text(ALL_MODELS)
    alone = build_config("SASRec", "ml-100k", [path])
    assert alone.values == build_config("SASRec", "ml-100k", overrides={"hidden_size": 32}).values
    assert build_config("DiffGRM", "ml-100k", [path])["sid_num_digits"] == 3
    assert build_config("GRU4Rec", "ml-100k", [path])["num_layers"] == 2
    path.write_text(ALL_MODELS + "hidden_sizes: 3\n")
    with pytest.raises(UserError, match=r"all\.yaml: unknown key 'hidden_sizes'. Did you mean hidden_size"):
        build_config("SASRec", "ml-100k", [path])


def test_what_is_set_for_a_model_must_be_read_by_it(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("models: {SASRec: {beam_size: 16}}\n")
    assert build_config("DiffGRM", "ml-100k", [path])["beam_size"] == 32  # another model's section
    with pytest.raises(UserError, match=r"SASRec does not read 'beam_size', which is for .*DiffGRM"):
        build_config("SASRec", "ml-100k", [path])
    with pytest.raises(UserError, match=r"SASRec does not read 'num_layers'.* Did you mean n_layers"):
        build_config("SASRec", "ml-100k", overrides={"num_layers": 1})
    # What affects nothing may be said to every model.
    config = build_config("SASRec", "ml-100k", overrides={"cache_dir": "elsewhere"})
    assert config.values == build_config("SASRec", "ml-100k").values


@pytest.mark.parametrize("content", ["a: [1", "- 1\n- 2", b"\xff\xfe"])
def test_broken_configuration_files(content, tmp_path):
    path = tmp_path / "broken.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=r"broken\.yaml"):
        build_config("SASRec", "ml-100k", [path])


def test_run_hash_changes_with_what_decides_the_outcome(tmp_path):
    def run_hash(data="d", **overrides):
        return build_config("SASRec", "ml-100k", overrides=overrides).run_hash(data)

    assert run_hash() == run_hash(output_dir=str(tmp_path), show_progress=False, save_topk=3)
    assert run_hash() == run_hash(log_wandb=True, wandb_project="mine", log_mlflow=True)
    assert len({run_hash(), run_hash(seed=1), run_hash(epochs=1), run_hash(data="e"), run_hash(repeatable=False)}) == 5


def test_runs_from_before_a_key_that_affects_nothing():
    config = build_config("SASRec", "ml-100k")
    older = {key: value for key, value in config.values.items() if key != "log_mlflow"}
    options = config.model_class.Options
    assert check_changes("SASRec", options, older, {"save_topk": 3})["log_mlflow"] is False
    with pytest.raises(UserError, match="epochs has no value"):
        check_changes("SASRec", options, {k: v for k, v in older.items() if k != "epochs"}, {})


def test_one_way_to_write_a_protocol(tmp_path):
    """RecBole's other spellings, and dates as YAML reads them."""
    file = tmp_path / "c.yaml"
    file.write_text("eval_args: {split: {TS: [2014-01-01, 2014-04-01T12:00:00]}, mode: {valid: full, test: full}}\n")
    config = build_config("SASRec", "ml-100k", [file])
    split = {"TS": ["2014-01-01", "2014-04-01T12:00:00"]}
    assert config.values["eval_args"] == {"split": split, "group_by": "user", "order": "TO", "mode": "full"}
    assert to_seconds("2014-01-01") == 1388534400 and to_seconds("2014-01-01T01:00:00+01:00") == 1388534400

    def mode(value):
        return build_config("SASRec", "ml-100k", overrides={"eval_args": {"mode": value}}).values["eval_args"]["mode"]

    assert mode({"valid": "uni100"}) == mode("uni100") == "uni100"  # as RecBole reads it
    assert mode({"valid": "uni50", "test": "full"}) == {"valid": "uni50", "test": "full"}


@pytest.mark.parametrize(
    ("split", "parts"),
    [
        ({"LS": "test_only"}, ("test",)),
        ({"TS": [5, 5]}, ("test",)),
        ({"TS": [5, 6]}, ("valid", "test")),
        ({"RS": [0.8, 0.2, 0]}, ("valid",)),
        ({"RS": [8, 1, 1]}, ("valid", "test")),
    ],
)
def test_held_out_parts(split, parts):
    assert held_out_parts(build_config("SASRec", "ml-100k", overrides={"eval_args": {"split": split}})) == parts


def test_gauc_has_no_cut_off():
    config = build_config("SASRec", "ml-100k", overrides={"metrics": ["NDCG", "GAUC"], "valid_metric": "GAUC"})
    assert metric_names(config.values) == ["NDCG@5", "NDCG@10", "GAUC"]
    assert config.valid_metric_terms.score({"gauc": 0.75}) == 0.75


def test_sampled_validation_has_no_metrics_on_sids():
    settings = {"eval_args": {"mode": {"valid": "uni20", "test": "full"}}, "valid_metric": "sid_ndcg@10"}
    with pytest.raises(UserError, match="sid_ndcg@10 is not among"):
        build_config("DiffGRM", "ml-100k", overrides=settings)


def test_no_gpu_on_request():
    assert build_config("SASRec", "ml-100k", overrides={"use_gpu": False})["device"].type == "cpu"


def test_intervals_of_values():
    for text in ("[3,inf)", "(-inf, -1.5]", "[1,2];[4,5]", "[0,1e3)", "[0.5,1.]"):
        assert build_config("SASRec", "ml-100k", overrides={"val_interval": {"rating": text}})["val_interval"]


def test_a_finished_run_may_be_changed_by_numpy_values():
    values = check_config("SASRec", "ml-100k")
    changed = check_changes("SASRec", get_options("SASRec"), values, {"eval_batch_size": np.int64(7)})
    assert changed["eval_batch_size"] == 7 and type(changed["eval_batch_size"]) is int
