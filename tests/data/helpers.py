"""What tests of the data share."""

import contextlib
import sys

from recbole_diffgrm.models import build_config


def make_config(folder, model="SASRec", dataset="tiny", **overrides):
    overrides = {"data_path": str(folder), "MAX_ITEM_LIST_LENGTH": 5, **overrides}
    return build_config(model, dataset, [folder / "tiny.yaml"] if dataset == "tiny" else [], overrides)


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
