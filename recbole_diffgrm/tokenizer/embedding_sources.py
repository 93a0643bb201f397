"""Where the vectors of a dataset's items come from: their text and an encoder, a file of embeddings, the training
interactions, or nowhere."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.compute as pc

from recbole_diffgrm.config.recbole_config import Config
from recbole_diffgrm.data.atomic import read_header
from recbole_diffgrm.data.columns import as_arrow, find_rows, hash_texts, read_columns, sort_order
from recbole_diffgrm.data.splits import Split
from recbole_diffgrm.errors import UserError, suggest
from recbole_diffgrm.files import input_sha256, reading
from recbole_diffgrm.tokenizer import text_encoder
from recbole_diffgrm.tokenizer.cache import fingerprint, get_or_build
from recbole_diffgrm.tokenizer.embeddings import NO_VECTOR, ItemVectors, ids_file, is_embedding_file, read_embeddings
from recbole_diffgrm.tokenizer.interaction_factors import check_rank, hash_matrix, item_factors, training_matrix
from recbole_diffgrm.tokenizer.item_text import compose, label_fields
from recbole_diffgrm.tokenizer.quantizers import QUANTIZERS
from recbole_diffgrm.tokenizer.shared_encoding import encode_together
from recbole_diffgrm.tokenizer.split_items import SplitItems
from recbole_diffgrm.words import count

logger = logging.getLogger(__name__)

FORMAT_VERSION = 2  # raise when the same texts begin to give other vectors
COMPOSED_AT_ONCE = 65536  # texts


@dataclass(frozen=True)
class EmbeddingSource:
    """Vectors that are computed or read when `load` is called."""

    load: Callable[[], ItemVectors]
    ingredients: dict[str, Any]  # everything the vectors depend on, for a fingerprint
    row: np.ndarray  # [N] equal for items with the same vector, NO_VECTOR for those without one
    encoder: dict[str, Any] | None = None  # identity of the text encoder
    fields: dict[str, str] = field(default_factory=dict)  # {column: label} of the text
    lists: dict[str, str] = field(default_factory=dict)  # separator of each column that is a list
    share: Callable[[], None] = lambda: None  # computes the vectors in all processes of a run together


def get_source(config: Config, split: Split, items: SplitItems) -> EmbeddingSource:
    """Where the quantizer of sid_quantizer wants its vectors from."""
    vectors_from = QUANTIZERS[config["sid_quantizer"]].vectors_from
    if vectors_from == "text":
        return text_source(config, items.item_ids)
    if vectors_from == "interactions":
        return _from_interactions(split, items, config["sid_num_digits"], config["sid_seed"])
    no_vectors = ItemVectors.empty(items.item_ids)
    return EmbeddingSource(lambda: no_vectors, {}, no_vectors.row)


def text_source(config: Config, item_ids: np.ndarray) -> EmbeddingSource:
    """As sid_text_encoder says."""
    if is_embedding_file(config["sid_text_encoder"]):
        return _from_file(Path(config["sid_text_encoder"]), item_ids)
    return _from_text(config, item_ids)


def input_files(config: Config, with_text_vectors: bool) -> list[Path]:
    """Files that SIDs, and text vectors if a model reads them, are made from, besides .inter and sid_file."""
    name = config["sid_text_encoder"]
    sids_from_text = QUANTIZERS[config["sid_quantizer"]].vectors_from == "text"
    if not with_text_vectors and not config["sid_file"] and not sids_from_text:
        return []
    if not with_text_vectors and config["sid_file"]:
        paths = []
    elif is_embedding_file(name):
        paths = [Path(name), ids_file(Path(name))]
    else:
        paths = text_encoder.files(name)
    return [Path(config["data_path"]) / f"{config.dataset}.item", *paths]


def describe_files(config: Config) -> dict[str, Any]:
    """What vectors from text depend on, without reading it: the files, and how they are read."""
    name = config["sid_text_encoder"]
    paths = [path for path in input_files(config, with_text_vectors=True) if path.is_file()]
    keys = ("sid_text_fields", "sid_text_template", "ITEM_ID_FIELD", "seq_separator")
    return {
        "files": [input_sha256(path) for path in paths],
        "encoder": None if is_embedding_file(name) else text_encoder.identity(name),
        "settings": {key: config[key] for key in keys},
        "format": FORMAT_VERSION,
    }


def _from_interactions(split: Split, items: SplitItems, num_factors: int, seed: int) -> EmbeddingSource:
    """Factors of items that occur in training; they depend on the number of digits and the seed as well."""
    matrix = training_matrix(split, items.number[items.in_training])
    check_rank(matrix, num_factors)
    row = np.full(len(items.item_ids), NO_VECTOR)
    row[items.in_training] = np.arange(matrix.shape[1])
    return EmbeddingSource(
        lambda: ItemVectors(items.item_ids, row, item_factors(matrix, num_factors, seed)),
        {"interactions": hash_matrix(matrix)},
        row,
    )


def _from_file(path: Path, item_ids: np.ndarray) -> EmbeddingSource:
    files = [file for file in (path, ids_file(path)) if file.is_file()]
    return EmbeddingSource(
        lambda: read_embeddings(path, item_ids),
        {"embeddings": [input_sha256(file) for file in files]},
        np.arange(len(item_ids)),
    )


def _from_text(config: Config, item_ids: np.ndarray) -> EmbeddingSource:
    fields, lists = _text_fields(config)
    columns = read_item_columns(config, item_ids, list(fields))
    texts = _compose_all(columns, fields, config["sid_text_template"], lists)
    distinct = pc.unique(texts)
    distinct = distinct.filter(pc.not_equal(distinct, ""))
    if not len(distinct):
        raise UserError(f"sid_text_fields: no item of {config.dataset} has text in {', '.join(fields)}")
    distinct = distinct.take(sort_order(distinct))
    row = find_rows(texts, distinct)
    name = config["sid_text_encoder"]
    identity = text_encoder.identity(name)
    ingredients = {**identity, "texts": hash_texts(distinct), "format": FORMAT_VERSION}

    root = Path(config["cache_dir"]) / config.dataset

    def encode(folder: Path, part: pyarrow.Array) -> None:
        logger.info(f"encoding {count(len(part), 'text')} with {name}")
        model = text_encoder.load(name, str(config["device"]), config["sid_trust_remote_code"])
        text_encoder.encode_to_file(folder, model, part.to_pylist(), config["show_progress"])

    def build(folder: Path) -> None:
        encode(folder, distinct)

    def load() -> ItemVectors:
        folder = get_or_build(root, "embeddings", ingredients, build, resumable=True)
        path = folder / text_encoder.VECTORS_FILE
        with reading(path):
            return ItemVectors(item_ids, row, np.load(path, mmap_mode="r"))

    return EmbeddingSource(
        load,
        {"embeddings": fingerprint(ingredients), "texts": hash_texts(texts)},
        row,
        identity,
        fields,
        lists,
        lambda: encode_together(root, ingredients, distinct, encode),
    )


def _compose_all(
    columns: Mapping[str, pyarrow.Array], fields: Mapping[str, str], template: str, lists: Mapping[str, str]
) -> pyarrow.Array:
    """The text of each item, some at a time: as Python's strings all columns would take ten times their size."""
    num_items = len(next(iter(columns.values())))
    parts = []
    for start in range(0, num_items, COMPOSED_AT_ONCE):
        values = zip(*(column.slice(start, COMPOSED_AT_ONCE).to_pylist() for column in columns.values()))
        parts.append(as_arrow([compose(dict(zip(columns, row)), fields, template, lists) for row in values]))
    return pyarrow.concat_arrays(parts)


def _text_fields(config: Config) -> tuple[dict[str, str], dict[str, str]]:
    """{column: label} of sid_text_fields that the file has, and {column: separator} of the lists among them."""
    path = _item_file(config)
    header = read_header(path)
    requested = label_fields(config["sid_text_fields"])
    missing = [name for name in requested if name not in header]
    if len(missing) == len(requested):
        raise UserError(f"sid_text_fields: {path} has none of {', '.join(requested)}; it has {', '.join(header)}")
    if missing:
        hints = "".join(suggest(name, header) for name in missing)
        logger.info(f"{path.name} has no {', '.join(missing)}: item texts leave them out.{hints}")
    fields = {name: label for name, label in requested.items() if name in header}
    return fields, {name: config["seq_separator"] for name in fields if header[name].endswith("_seq")}


def read_item_columns(config: Config, item_ids: np.ndarray, names: Sequence[str]) -> dict[str, pyarrow.Array]:
    """Columns of .item for each of the items, null for those without a line: some may be missing, but not all."""
    path, id_field = _item_file(config), config["ITEM_ID_FIELD"]
    content = read_columns(path, list(dict.fromkeys([id_field, *names])))
    ids = content[id_field]
    repeated = np.flatnonzero(find_rows(ids, ids) < np.arange(len(ids)))
    if len(repeated):
        logger.warning(
            f"{path}: {count(len(repeated), 'line')} not read: an earlier one has this {id_field} "
            f"({ids[int(repeated[0])].as_py()!r})"
        )
    rows = find_rows(item_ids, ids)
    missing = np.flatnonzero(rows < 0)
    if len(missing) and len(missing) == len(item_ids):
        others = f"it has others, such as {ids[0].as_py()!r}" if len(ids) else "it has no items"
        raise UserError(
            f"{path} has no line for any item of {config.dataset}, such as {str(item_ids[missing[0]])!r}; {others}"
        )
    if len(missing):
        logger.warning(
            f"{path.name} has no line for {len(missing):,} of {len(item_ids):,} items ({str(item_ids[missing[0]])!r})"
        )
    index = pyarrow.array(rows, mask=rows < 0)
    return {name: content[name].take(index) for name in names}


def _item_file(config: Config) -> Path:
    path = Path(config["data_path"]) / f"{config.dataset}.item"
    if not path.exists():
        raise UserError(
            f"item vectors are made from text, but {path} does not exist; set sid_text_encoder to a .npz of "
            "embeddings, or do without text: set sid_quantizer to svd or random, or sid_file to ready SIDs"
        )
    return path
