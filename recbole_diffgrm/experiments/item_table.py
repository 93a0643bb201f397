"""items.tsv of a run: its items in the order of their numbers, with titles and SIDs; serving reads it."""

import logging
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pyarrow
import torch
from torch import Tensor

from recbole_diffgrm.config.recbole_config import Config
from recbole_diffgrm.data.atomic import read_header
from recbole_diffgrm.data.columns import TEXT, as_arrow, find_rows, join_codes, read_columns, write_columns
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

    @cached_property
    def labels(self) -> list[str]:
        """Titles, and the ids of items without one."""
        return [title or name for title, name in zip(self.titles, self.names)]


def save(config: Config, dataset: FlatSequentialDataset, run_dir: Path) -> None:
    names = as_arrow(dataset.field2id_token[dataset.iid_field][1:])
    titles = _titles(Path(config["data_path"]) / f"{config.dataset}.item", dataset.iid_field, names)
    sids = dataset.semantic_ids.lookup(torch.arange(1, len(names) + 1)) if dataset.semantic_ids else None
    write(run_dir, dataset.iid_field, names, titles, sids)


def write(folder: Path, id_field: str, names: pyarrow.Array, titles: pyarrow.Array, sids: Tensor | None) -> None:
    """`sids` [N, n] of models that have them."""
    header, columns = {id_field: "token", "title": "token"}, [names, titles]
    if sids is not None:
        header["sid"] = "token_seq"
        columns.append(join_codes(sids.cpu().numpy()))
    write_columns(folder / ITEMS_FILE, header, columns)


def load(run: RunResult) -> Items:
    path = run.check_file(ITEMS_FILE)
    header = list(read_header(path))
    if header[1:2] != ["title"]:
        raise UserError(f"{path} must have the item ids and title in its first columns, not {', '.join(header)}")
    names, titles = (column.to_pylist() for column in read_columns(path, header[:2]).values())
    return Items(["[PAD]", *names], ["", *titles])


def read_sid_digest(run_dir: Path) -> str:
    """Of the semantic IDs that a run began with; empty where it has none, or was stopped before they were saved."""
    path = run_dir / ITEMS_FILE
    if not path.exists() or "sid" not in read_header(path):
        return ""
    return digest_sids(*read_columns(path, [next(iter(read_header(path))), "sid"]).values())


def _titles(path: Path, id_field: str, names: pyarrow.Array) -> pyarrow.Array:
    """Of the items with these names, from .item; empty where there is none. No result depends on them: where they
    cannot be read, a warning is enough."""
    empty = pyarrow.repeat(pyarrow.scalar("", TEXT), len(names))
    if not path.exists():
        return empty
    try:
        # A title may be a sequence of tokens (ml-100k).
        texts = [name for name, kind in read_header(path).items() if kind.startswith("token") and name != id_field]
        column = title_column(texts)
        if column is None:
            return empty
        content = read_columns(path, [id_field, column])
    except UserError as error:
        logger.warning(f"items have no titles: {error}")
        return empty
    rows = find_rows(names, content[id_field])
    return content[column].take(pyarrow.array(rows, mask=rows < 0)).fill_null("")


def title_column(names: list[str]) -> str | None:
    """`title`, else `name`, else the first that contains title (movie_title)."""
    exact = [name for word in ("title", "name") for name in names if name.lower() == word]
    return next(iter(exact + [name for name in names if "title" in name.lower()]), None)
