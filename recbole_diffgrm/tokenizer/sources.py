"""Where the vectors of a data set's items come from: their text and an encoder, a file, or nowhere."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from recbole_diffgrm.config.config import Config
from recbole_diffgrm.config.schema import nearest
from recbole_diffgrm.data.atomic import read_header, read_item_texts
from recbole_diffgrm.errors import UserError
from recbole_diffgrm.files import file_digest
from recbole_diffgrm.tokenizer import encoder, vectors
from recbole_diffgrm.tokenizer.cache import digest_of, entry, fingerprint
from recbole_diffgrm.tokenizer.text import compose, labelled
from recbole_diffgrm.tokenizer.vectors import NO_VECTOR, ItemVectors

logger = logging.getLogger(__name__)

FORMAT_VERSION = 1  # raise when the same texts begin to give other vectors


@dataclass(frozen=True)
class Source:
    """Vectors that are made, or read, when they are asked for."""

    open: Callable[[], ItemVectors]
    made_of: dict[str, Any]
    row: np.ndarray  # [N] which items have the same vector, and which have none (NO_VECTOR)
    name: str | None = None  # of the encoder or file
    encoder: dict[str, Any] | None = None  # its identity
    fields: dict[str, str] = field(default_factory=dict)  # {column: label} of the text
    lists: dict[str, str] = field(default_factory=dict)  # separator of each column that is a list


def source_of(config: Config, item_ids: np.ndarray) -> Source:
    return nothing(item_ids) if config["sid_quantiser"] == "random" else vectors_of(config, item_ids)


def vectors_of(config: Config, item_ids: np.ndarray) -> Source:
    if vectors.is_file(config["sid_encoder"]):
        return _file(config["sid_encoder"], item_ids)
    return _text(config, item_ids)


def input_files(config: Config) -> list[Path]:
    """All files that IDs and text vectors are made from, besides .inter."""
    if config["sid_file"] and not config["item_text"]:
        paths = []  # sid_file itself counts apart
    elif vectors.is_file(config["sid_encoder"]):
        path = Path(config["sid_encoder"])
        paths = [path, vectors.ids_file(path)]
    else:
        paths = encoder.files(config["sid_encoder"])
    return [Path(config["data_path"]) / f"{config.dataset}.item", *paths]


def nothing(item_ids: np.ndarray) -> Source:
    row = np.full(len(item_ids), NO_VECTOR)
    return Source(lambda: ItemVectors(item_ids, row, np.zeros((0, 0), np.float32)), {}, row)


def _file(name: str, item_ids: np.ndarray) -> Source:
    path = Path(name)
    files = [file for file in (path, vectors.ids_file(path)) if file.is_file()]
    return Source(
        lambda: vectors.read(path, item_ids),
        {"embeddings": [file_digest(file) for file in files]},
        np.arange(len(item_ids)),
        name,
    )


def _text(config: Config, item_ids: np.ndarray) -> Source:
    fields, lists = _text_fields(config)
    columns = item_columns(config, item_ids)
    template = config["sid_text_template"]
    texts = [compose(columns.get(item, {}), fields, template, lists) for item in item_ids.tolist()]
    distinct = sorted(set(texts) - {""})
    if not distinct:
        raise UserError(f"sid_text_fields: no item of {config.dataset} has text in {', '.join(fields)}")
    place = {text: row for row, text in enumerate(distinct)}
    row = np.array([place.get(text, NO_VECTOR) for text in texts])
    name = config["sid_encoder"]
    identity = encoder.identity(name)
    made_of = {**identity, "texts": digest_of(distinct), "format": FORMAT_VERSION}

    def build(folder: Path) -> None:
        logger.info(f"encoding {len(distinct):,} texts with {name}")
        model = encoder.load(name, str(config["device"]), config["sid_trust_remote_code"])
        encoder.encode_to(folder, model, distinct, config["show_progress"])

    def read() -> ItemVectors:
        folder = entry(Path(config["cache_dir"]) / config.dataset, "embeddings", made_of, build, resumes=True)
        return ItemVectors(item_ids, row, np.load(folder / "vectors.npy", mmap_mode="r"))

    ingredients = {"embeddings": fingerprint(made_of), "texts": digest_of(texts)}
    return Source(read, ingredients, row, name, identity, fields, lists)


def _text_fields(config: Config) -> tuple[dict[str, str], dict[str, str]]:
    """{column: label} of the wanted columns that are there, and {column: separator} of the lists among them."""
    path = _item_file(config)
    header = read_header(path)
    wanted = labelled(config["sid_text_fields"])
    missing = [name for name in wanted if name not in header]
    if len(missing) == len(wanted):
        raise UserError(f"sid_text_fields: {path} has none of {', '.join(wanted)}; it has {', '.join(header)}")
    if missing:
        hints = "".join(nearest(name, header) for name in missing)
        logger.info(f"{path.name} has no {', '.join(missing)}: texts are made without.{hints}")
    fields = {name: label for name, label in wanted.items() if name in header}
    return fields, {name: config["seq_separator"] for name in fields if header[name].endswith("_seq")}


def item_columns(config: Config, item_ids: np.ndarray) -> dict[str, dict[str, str]]:
    """{item id: {column: text}}, the id itself among the columns. Items may be missing, but not all of them."""
    path, id_field = _item_file(config), config["ITEM_ID_FIELD"]
    columns = {item: {id_field: item, **texts} for item, texts in read_item_texts(path, id_field).items()}
    missing = [item for item in item_ids.tolist() if item not in columns]
    if missing and len(missing) == len(item_ids):
        there = f"such as {next(iter(columns))!r}" if columns else "and has none at all"
        raise UserError(f"{path} has no line for any item of {config.dataset} ({missing[0]!r}); it has others, {there}")
    if missing:
        logger.warning(f"{path.name} has no line for {len(missing):,} of {len(item_ids):,} items ({missing[0]!r})")
    return columns


def _item_file(config: Config) -> Path:
    path = Path(config["data_path"]) / f"{config.dataset}.item"
    if not path.exists():
        raise UserError(
            f"semantic IDs are made from item text, but {path} does not exist; without it set sid_encoder to a .npz of "
            "embeddings, or sid_file to ready IDs or sid_quantiser to random, with item_text: False"
        )
    return path
