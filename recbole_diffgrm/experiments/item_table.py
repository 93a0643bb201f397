"""items.tsv of a run: its items in the order of their numbers, with titles and SIDs; serving reads it."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from recbole_diffgrm.config.recbole_config import Config
from recbole_diffgrm.data.atomic import read_header, read_item_texts, read_rows, write_atomic_file
from recbole_diffgrm.data.dataset import FlatSequentialDataset
from recbole_diffgrm.errors import UserError
from recbole_diffgrm.experiments.result import RunResult
from recbole_diffgrm.tokenizer.tokenizer import digest_sids

logger = logging.getLogger(__name__)

ITEMS_FILE = "items.tsv"


@dataclass(frozen=True)
class Items:
    names: list[str]  # by number; 0 is padding
    titles: list[str]

    @cached_property
    def numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self.names) if number}


def save(config: Config, dataset: FlatSequentialDataset, run_dir: Path) -> None:
    names = dataset.id2token(dataset.iid_field, np.arange(1, dataset.item_num)).tolist()
    titles = _titles(Path(config["data_path"]) / f"{config.dataset}.item", dataset.iid_field)
    header = {dataset.iid_field: "token", "title": "token"} | ({"sid": "token_seq"} if dataset.semantic_ids else {})
    write_atomic_file(run_dir / ITEMS_FILE, header, _rows(dataset, names, titles))


def _rows(dataset: FlatSequentialDataset, names: list[str], titles: dict[str, str]) -> Iterator[list[str]]:
    sids = dataset.semantic_ids.lookup(torch.arange(1, len(names) + 1)).tolist() if dataset.semantic_ids else None
    for number, name in enumerate(names):
        row = [name, titles.get(name, "")]
        yield row if sids is None else [*row, " ".join(map(str, sids[number]))]


def load(run: RunResult) -> Items:
    path = run.check_file(ITEMS_FILE)
    header = list(read_header(path))
    if header[1:2] != ["title"]:
        raise UserError(f"{path} must have the item ids and title in its first columns, not {', '.join(header)}")
    rows = list(read_rows(path))
    return Items(["[PAD]", *(row[0] for row in rows)], ["", *(row[1] for row in rows)])


def read_sid_digest(run_dir: Path) -> str:
    """Of the semantic IDs that a run began with; empty where it has none, or was stopped before they were saved."""
    path = run_dir / ITEMS_FILE
    if not path.exists() or "sid" not in read_header(path):
        return ""
    column = list(read_header(path)).index("sid")
    return digest_sids({row[0]: row[column] for row in read_rows(path)})


def _titles(path: Path, id_field: str) -> dict[str, str]:
    """{item: title} from .item. No result depends on them: where they cannot be read, a warning is enough."""
    if not path.exists():
        return {}
    try:
        # A title may be a sequence of tokens (ml-100k).
        texts = [name for name, kind in read_header(path).items() if kind.startswith("token") and name != id_field]
        column = title_column(texts)
        return {item: of[column] for item, of in read_item_texts(path, id_field).items()} if column else {}
    except UserError as error:
        logger.warning(f"items have no titles: {error}")
        return {}


def title_column(names: list[str]) -> str | None:
    """`title`, else `name`, else the first that contains title (movie_title)."""
    exact = [name for word in ("title", "name") for name in names if name.lower() == word]
    return next(iter(exact + [name for name in names if "title" in name.lower()]), None)
