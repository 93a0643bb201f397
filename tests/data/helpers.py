"""What tests of the data share."""

import contextlib
import sys
from pathlib import Path

from recbole_diffgrm.data.atomic import read_header
from recbole_diffgrm.data.columns import read_columns
from recbole_diffgrm.models import build_config


def make_config(folder, model="SASRec", dataset="tiny", **overrides):
    overrides = {"data_path": str(folder), "MAX_ITEM_LIST_LENGTH": 5, **overrides}
    return build_config(model, dataset, [folder / "tiny.yaml"] if dataset == "tiny" else [], overrides)


def read_item_texts(path: Path) -> dict[str, dict[str, str]]:
    """{item id: {column: text}}; the first line of an id counts."""
    names = list(dict.fromkeys(["item_id", *read_header(path)]))
    columns = {name: column.to_pylist() for name, column in read_columns(path, names).items()}
    ids = columns.pop("item_id")
    texts: dict[str, dict[str, str]] = {}
    for row, item in enumerate(ids):
        texts.setdefault(item, {name: column[row] for name, column in columns.items()})
    return texts


def as_tuples(batch) -> list[tuple]:
    """(user, history, target) of every sample, unpadded."""
    items = batch["item_id_list"].tolist()
    lengths = batch["item_length"].tolist()
    histories = [tuple(row[:length]) for row, length in zip(items, lengths)]
    assert all(not any(row[length:]) for row, length in zip(items, lengths)), "padding is on the right, with 0"
    return list(zip(batch["user_id"].tolist(), histories, batch["item_id"].tolist()))


@contextlib.contextmanager
def stock_config(config, **changes):
    """RecBole's own Config on the same settings."""
    from recbole.config import Config

    arguments, sys.argv = sys.argv, ["test"]
    try:
        yield Config(
            model="SASRec",
            dataset=config.dataset,
            config_dict={
                "data_path": config.values["data_path"],
                "MAX_ITEM_LIST_LENGTH": config["MAX_ITEM_LIST_LENGTH"],
                "load_col": config["load_col"],
                "seq_separator": config["seq_separator"],
                "eval_args": {"split": {"LS": "valid_and_test"}, "order": "TO", "mode": "full"},
                "train_neg_sample_args": None,
                **changes,
            },
        )
    finally:
        sys.argv = arguments
