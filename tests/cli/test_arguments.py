"""Values that nobody means, typed as people and fuzzers type them: one line and exit code 2, never a traceback, and
never a result that is not the one asked for."""

import json
import signal
import time

import numpy as np
import pytest

from recbole_diffgrm import run
from recbole_diffgrm.cli.arguments import exit_code, split_files
from recbole_diffgrm.cli.main import main
from recbole_diffgrm.config.argument_values import parse_argument
from recbole_diffgrm.errors import UserError
from recbole_diffgrm.models import text_keys
from tests.conftest import write_dataset


def type_command(tiny, tmp_path, *arguments) -> int:
    words = {"data_path": tiny, "output_dir": tmp_path / "runs", "config_files": f"'{tiny / 'tiny.yaml'}'"}
    words |= {
        "dataset": "tiny",
        "epochs": 1,
        "train_batch_size": 64,
        "MAX_ITEM_LIST_LENGTH": 10,
        "show_progress": False,
    }
    given = {argument[2:].split("=")[0] for argument in arguments}
    return main([*(f"--{key}={value}" for key, value in words.items() if key not in given), *arguments])


def read_error(capsys) -> str:
    """The one line of an error, after those that say what is done."""
    written = capsys.readouterr().err
    *before, error = written.splitlines()
    assert error.startswith("error: ") and len(error) < 1000
    assert "Traceback" not in written and not any(line.startswith("error") for line in before)
    return error


BILLION_LAUGHS = "{a: &a [x,x,x,x,x,x,x,x,x,x]" + "".join(
    f", {name}: &{name} [{','.join([f'*{before}'] * 10)}]" for before, name in zip("abcdefgh", "bcdefghi")
)
HOSTILE_YAML = {
    "[" * 2000: "nested more than 50 deep",
    "[" * 2000 + "]" * 2000: "nested more than 50 deep",
    "!!bool x": "does not fit its tag",
    "!!timestamp x": "does not fit its tag",
    "!!int ''": "does not fit its tag",
    "&a [*a]": "contains itself",
    "&a {b: *a}": "contains itself",
    BILLION_LAUGHS + "}": "more than 100,000 values",
    "!!python/object/apply:os.system [exit]": "could not determine a constructor",
    "9" * 5000: "4300 digits",
}
REFUSED = [
    (["--clip_grad_norm=.inf"], "clip_grad_norm must be"),
    (["--learning_rate=1e38"], "learning_rate must be a number above 0 and at most 1000"),
    (["--weight_decay=.nan"], "weight_decay must be"),
    (["--val_interval={timestamp: 'x'}"], "val_interval must be"),
    (["--val_interval={timestamp: '[3,1e400x)'}"], "val_interval must be"),
    (["--val_interval={timestamp: [i1]}"], "val_interval: timestamp is a float: give an interval"),
    (["--val_interval={item_id: '[3,4]'}"], "val_interval: item_id is a token: give a list"),
    (["--val_interval={stars: '[3,4]'}"], "val_interval: there is no column stars"),
    (["--val_interval={categories: [c1]}"], "val_interval: categories holds lists"),
    (["--ITEM_LIST_LENGTH_FIELD=item_id"], "ITEM_LIST_LENGTH_FIELD: item_id would be the name of two columns"),
    (["--ITEM_LIST_LENGTH_FIELD=item_id_list"], "ITEM_LIST_LENGTH_FIELD: item_id_list would be"),
    (["--LIST_SUFFIX="], "LIST_SUFFIX must be text"),
    (["--NEG_PREFIX="], "NEG_PREFIX must be text"),
    (["--USER_ID_FIELD=item_id"], "must be three columns"),
    (["--seq_separator="], "seq_separator must be text"),
    (["--model=SASRec", "--transform=crop_itemseq"], "transform has no effect here"),
    (["--model=SASRec", "--transform=reorder_itemseq"], "transform has no effect here"),
    (["--model=SASRecCPR"], "reranker_CAN_NUM: 100 items cannot be ranked again: the data have 40"),
    (["--model=GRU4RecCPR"], "reranker_CAN_NUM: 100 items cannot be ranked again: the data have 40"),
    (["--model=GRU4RecCPR", "--reranker_CAN_NUM=9,x"], "reranker_CAN_NUM must be whole numbers"),
    (["--model=SASRecCPR", "--reranker_CAN_NUM=9,8"], "n_facet_all (5) must be"),
    (["--model=SASRecCPR", "--loss_type=BPR"], "loss_type: Softmax-CPR has only CE"),
    (["--model=BERT4Rec", "--MAX_ITEM_LIST_LENGTH=1"], "mask_ratio (0.2) of MAX_ITEM_LIST_LENGTH (1)"),
    (["--model=FOSSIL", "--MAX_ITEM_LIST_LENGTH=2"], "order_len (3) must be at most MAX_ITEM_LIST_LENGTH (2)"),
    (["--model=HRM", "--MAX_ITEM_LIST_LENGTH=1"], "high_order (2) must be at most"),
    (["--model=SHAN", "--MAX_ITEM_LIST_LENGTH=1"], "short_item_length (2) must be at most"),
    (["--model=CORE", "--sess_dropout=3"], "sess_dropout must be"),
    (["--model=NARM", "--dropout_probs=[0.1]"], "dropout_probs must be two numbers"),
    (["--model=HGN", "--reg_weight=[0.1]"], "reg_weight must be a list such as [0.0, 0.0], not [0.1]"),
    (["--model=HGN", "--reg_weight=[0.1, .inf]"], "reg_weight must be a list"),
    (["--model=Caser", "--reg_weight=1e300"], "reg_weight must be a number of at most 1000000000"),
    (
        ["--model=SASRec", "--loss_type=BPR", "--train_neg_sample_args={distribution: popularity, alpha: .inf}"],
        "train_neg_sample_args must be a mapping",
    ),
    (["--MAX_ITEM_LIST_LENGTH=9999999999"], "MAX_ITEM_LIST_LENGTH must be a whole number from 1 to 10000"),
    (["--train_batch_size=99999999999999999999999999"], "train_batch_size must be a whole number from 1 to 1000000000"),
    (["--eval_batch_size=0x" + "f" * 6000], "eval_batch_size must be"),
    (["--topk=[99999999999]"], "topk must be"),
    (["--valid_metric=" + "9" * 400 + "*NDCG@10"], "valid_metric: a weight must be at most 1000000"),
    (["--eval_args={mode: uni" + "9" * 5000 + "}"], "mode must be full"),
    (["--eval_args={split: {RS: [.inf, 1, 1]}}"], "split must be"),
    (["--eval_args={split: {TS: [.nan, 1]}}"], "TS must be"),
    (["--hidden_size=9999999"], "hidden_size must be a whole number from 1 to 65536"),
    (["--config_files='a b.yaml"], "a quote is not closed"),
    *((["--eval_args=" + text], words) for text, words in HOSTILE_YAML.items()),
]


@pytest.mark.parametrize(("arguments", "words"), REFUSED, ids=[" ".join(typed)[:60] for typed, _ in REFUSED])
def test_refused(arguments, words, tiny, tmp_path, capsys):
    assert type_command(tiny, tmp_path, *arguments) == 2
    assert words in read_error(capsys)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("text", HOSTILE_YAML, ids=lambda text: text[:20])
def test_hostile_files(text, tiny, tmp_path, capsys):
    path = tmp_path / "hostile.yaml"
    path.write_text(f"eval_args: {text}\n")
    assert type_command(tiny, tmp_path, f"--config_files={path}") == 2
    assert HOSTILE_YAML[text] in read_error(capsys)


def test_diverged_scores_are_an_error_not_a_result(tiny, tmp_path, capsys):
    """Scores of 0 to 1e30 in validation: every metric would be 0, with exit code 0."""
    sgd = ["--learner=sgd", "--learning_rate=1000", "--clip_grad_norm=1000000"]
    assert type_command(tiny, tmp_path, "--model=SASRec", "--epochs=30", "--hidden_act=relu", *sgd) == 2
    assert "lower learning_rate" in read_error(capsys)


def test_memory_that_cannot_be_had(tiny, tmp_path, capsys, monkeypatch):
    from recbole_diffgrm.experiments import pipeline

    for error in (MemoryError(), RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried")):

        def fail(config, error=error):
            raise error

        monkeypatch.setattr(pipeline, "load_dataset", fail)
        assert type_command(tiny, tmp_path, "--model=SASRec") == 2
        assert "there is not enough memory for these settings: reduce train_batch_size" in read_error(capsys)
        assert type_command(tiny, tmp_path, "--model=SASRec,GRU4Rec") == 2  # no traceback in a comparison either
        assert "Traceback" not in capsys.readouterr().err
    monkeypatch.setattr(pipeline, "load_dataset", lambda config: {}["other"])
    with pytest.raises(KeyError):
        type_command(tiny, tmp_path, "--model=SASRec")


def test_ids_are_texts(tmp_path, capsys):
    """[010] was item 8, and 1e5 item 100000.0."""
    (tmp_path / "ids").mkdir()
    items = ["007", "7", "010", "8", "1e5", "100000.0", "0x10", "16", "yes", "True"]
    rows = ["user_id:token\titem_id:token\ttimestamp:float"]
    rows += [f"u{user}\t{items[(user + step) % 10]}\t{step}" for user in range(20) for step in range(6)]
    (tmp_path / "ids" / "ids.inter").write_text("\n".join(rows) + "\n")
    run_dir = run("Pop", "ids", data_path=str(tmp_path), output_dir=str(tmp_path / "runs")).run_dir
    capsys.readouterr()
    unseen = ["--repeatable=False", "--topk=10"]
    for history in ("[007, 1e5]", "007 1e5", "['007', \"1e5\"]"):
        assert main([f"--recommend={run_dir}", f"--history={history}", *unseen]) == 0
        shown = {line.split()[1] for line in capsys.readouterr().out.splitlines()[2:]}
        assert shown == set(items) - {"007", "1e5"}
    for history in ("[[007]]", "[a: b]", "[010", "&a [*a]"):
        assert main([f"--recommend={run_dir}", f"--history={history}"]) == 2
        read_error(capsys)


def test_texts_are_texts(tiny, tmp_path):
    """| was the beginning of a YAML block, and an empty text."""
    keys = text_keys()
    assert {"seq_separator", "output_dir", "USER_ID_FIELD", "sid_file", "cache_dir", "item_attribute"} <= keys
    assert not {"epochs", "metrics", "load_col", "learner", "time_bias", "sid_text_fields"} & keys
    typed = {"|": "|", ">": ">", "010": "010", "[x]": "[x]", "yes": "yes", "~": None, "null": None, "": "", "' '": " "}
    typed |= {'"|"': "|", '"': '"', "a: b": "a: b", "&a": "&a", "it's": "it's"}
    assert {text: parse_argument("seq_separator", text, keys) for text in typed} == typed
    assert parse_argument("user_inter_num_interval", "[5,inf)", keys) == "[5,inf)"
    assert parse_argument("user_inter_num_interval", "~", keys) is None
    assert parse_argument("sid_text_template", "'{text}'", keys) == "'{text}'"
    assert type_command(tiny, tmp_path, "--model=FDSA", "--seq_separator=|") == 0
    (result,) = (tmp_path / "runs" / "tiny").glob("*/result.json")
    assert json.loads(result.read_text())["config"]["seq_separator"] == "|"


def test_config_files_with_blanks(tmp_path, tiny):
    name = tmp_path / "my settings.yaml"
    name.write_text("epochs: 0\n")
    other = tmp_path / "b.yaml"
    other.write_text("topk: [10]\n")
    assert split_files(str(name)) == [str(name)]
    assert split_files(f"'{name}' {other}") == split_files(f'["{name}", {other}]') == [str(name), str(other)]
    assert split_files("a.yaml b.yaml") == ["a.yaml", "b.yaml"] and split_files("") == []
    assert split_files(r"C:\files\a.yaml") == [r"C:\files\a.yaml"]
    with pytest.raises(UserError, match="must be a list"):
        split_files("[[a]]")
    for text in (str(name), f'["{name}", "{other}"]'):
        assert type_command(tiny, tmp_path, "--model=Pop", f"--config_files={text}") == 0


def test_numpy_values_and_paths_are_values(options, tmp_path):
    options |= {"output_dir": tmp_path / "runs", "epochs": np.int64(1), "train_batch_size": np.int32(32)}
    options |= {"topk": np.array([5, 10]), "learning_rate": np.float32(0.5), "shuffle": np.bool_(False)}
    result = run("SASRec", "tiny", valid_metric=np.str_("NDCG@10"), metrics=(np.str_("NDCG"),), **options)
    values = {key: result.config[key] for key in ("epochs", "train_batch_size", "topk", "learning_rate", "shuffle")}
    assert json.loads(json.dumps(values)) == values
    assert values == {"epochs": 1, "train_batch_size": 32, "topk": [5, 10], "learning_rate": 0.5, "shuffle": False}
    with pytest.raises(UserError, match="epochs must be"):
        run("SASRec", "tiny", **options | {"epochs": np.float64(1.5)})


def test_columns_under_other_names(tmp_path):
    """A collision is refused; any other name changes nothing."""
    write_dataset(tmp_path)
    settings = {"data_path": str(tmp_path), "output_dir": str(tmp_path / "runs"), "epochs": 1, "show_progress": False}
    plain = run("SASRec", "tiny", **settings)
    names = {"ITEM_LIST_LENGTH_FIELD": "lengths", "LIST_SUFFIX": "_history", "NEG_PREFIX": "no_"}
    assert run("SASRec", "tiny", **settings, **names).test == plain.test


def test_an_interrupt_while_an_object_is_deleted_is_not_lost(capsys):
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it in the background

    class Deleted:
        def __del__(self):
            raise KeyboardInterrupt

    def work() -> int:
        Deleted()
        for _ in range(1000):
            time.sleep(0.01)
        return 0

    def fail() -> int:
        kept = Deleted()  # by the traceback, until the error is said
        raise UserError(f"something {kept is None}")

    assert exit_code(work) == 130
    assert capsys.readouterr().err == "stopped\n"
    assert exit_code(fail) == 2
    time.sleep(0.1)
    assert capsys.readouterr().err == "error: something False\n"
    signal.signal(signal.SIGINT, previous)
