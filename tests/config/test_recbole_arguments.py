import sys

import pytest

from recbole_diffgrm.config.recbole_arguments import read_arguments, read_command_line
from recbole_diffgrm.errors import UserError


def test_arguments_beat_the_command_line_the_dictionary_and_files(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("model: A\ndataset: a\npreset: cpu\nepochs: 1\n")
    assert read_arguments(config_file_list=[path]) == ("A", "a", "cpu", [(str(path), {"epochs": 1}), *_empty()])
    read = read_arguments(config_file_list=[path], config_dict={"model": "B", "dataset": "b", "epochs": 2})
    assert read[:2] == ("B", "b") and read.user_layers[1] == ("config_dict", {"epochs": 2})
    given = {"model": "B", "preset": ["item", "item-small"]}
    read = read_arguments(None, "d", [path], given, {"model": "C", "epochs": 3})
    assert read[:3] == ("C", "d", ["item", "item-small"]) and read.user_layers[2] == ("command line", {"epochs": 3})
    assert read_arguments("D", "d", [path], given)[:2] == ("D", "d")
    assert given == {"model": "B", "preset": ["item", "item-small"]}


def _empty():
    return [("config_dict", {}), ("command line", {})]


def test_lists_in_quotes_are_lists_and_other_strings_stay():
    values = {"topk": "[5, 10]", "seq_separator": "|", "user_inter_num_interval": "[5,inf)", "valid_metric": "NDCG@10"}
    _, read = read_arguments("A", "a", None, values).user_layers[0]
    assert read == values | {"topk": [5, 10]}


@pytest.mark.parametrize("given, missing", [({}, "model"), ({"model": "A"}, "dataset")])
def test_what_is_missing_is_named(given, missing):
    with pytest.raises(UserError, match=f"{missing} is not given"):
        read_arguments(config_dict=given)


def test_the_command_line_is_read_as_recbole_reads_it(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["x", "-q", "a", "--flag", "--a=b=c", "--epochs=3", "--rate=1e-3", "--model=7"])
    assert read_command_line() == {"epochs": 3, "rate": 0.001, "model": "7"}
    monkeypatch.setattr(sys, "argv", ["/x/ipykernel_launcher.py", "--epochs=3"])
    assert read_command_line() == {}
