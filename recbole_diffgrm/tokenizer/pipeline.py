"""From a split to its SIDs: embeddings, quantizer, codes, collisions. Every step is cached by what went into it."""

import hashlib
import json
import logging
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from recbole_diffgrm import processes
from recbole_diffgrm.config.recbole_config import Config
from recbole_diffgrm.data.atomic import read_header
from recbole_diffgrm.data.columns import find_rows, hash_texts
from recbole_diffgrm.data.splits import Split
from recbole_diffgrm.errors import UserError
from recbole_diffgrm.files import file_sha256, read_text, write_json
from recbole_diffgrm.tokenizer import report
from recbole_diffgrm.tokenizer.cache import fingerprint, follow, follow_or_build, get_or_build
from recbole_diffgrm.tokenizer.collisions import ONE_MORE_DIGIT
from recbole_diffgrm.tokenizer.embedding_sources import describe_files, get_source, read_item_columns
from recbole_diffgrm.tokenizer.embeddings import NO_VECTOR, ItemVectors, is_embedding_file, read_embeddings
from recbole_diffgrm.tokenizer.item_codes import encode_items, resolve_collisions
from recbole_diffgrm.tokenizer.parallel import BLOCK_ROWS, map_blocks
from recbole_diffgrm.tokenizer.quantizers import QUANTIZERS, Quantizer
from recbole_diffgrm.tokenizer.reassign import check_room
from recbole_diffgrm.tokenizer.split_items import SplitItems
from recbole_diffgrm.tokenizer.tokenizer import Tokenizer, read_table
from recbole_diffgrm.words import count

logger = logging.getLogger(__name__)

FORMAT_VERSION = 2  # raise when the same ingredients begin to give other SIDs
TOKENIZER_FILE = "tokenizer.npz"
REPORT_FILE = "report.json"
# What a tokenizer remembers of its configuration: all that is needed to treat new items like the old ones. What one
# quantizer or one rule reads is remembered where that is chosen (_remember), and changes nothing elsewhere.
REMEMBERED = (
    "sid_text_fields",
    "sid_text_template",
    "sid_text_encoder",
    "sid_trust_remote_code",
    "sid_quantizer",
    "sid_num_digits",
    "sid_codebook_size",
    "sid_pca_dim",
    "sid_collisions",
    "sid_seed",
)


@dataclass(frozen=True)
class Tokenized:
    tokenizer: Tokenizer
    report: dict[str, Any]
    folder: Path  # tokenizer.npz, <dataset>.sid, report.json, report.png


def tokenize(config: Config, split: Split) -> Tokenized:
    """SIDs of all items of a dataset. Only items that occur in training shape the quantizer."""
    items = SplitItems.from_split(split)
    sid_file = config["sid_file"]
    if sid_file is None:
        folder = _find_tokenizer(config, split, items)
    elif sid_file.endswith(".npz"):
        folder = _extend_tokenizer(config, Path(sid_file), items)
    else:
        folder = _read_ready_sids(config, Path(sid_file), items)
    summary = json.loads(read_text(folder / REPORT_FILE))
    return Tokenized(Tokenizer.load(folder / TOKENIZER_FILE), summary, folder)


def _find_tokenizer(config: Config, split: Split, items: SplitItems) -> Path:
    """One that was built from the same files before is found without reading them: texts of millions of items take
    longer to put together than all else that happens before training."""
    if QUANTIZERS[config["sid_quantizer"]].vectors_from != "text":
        return _build_tokenizer(config, split, items)
    root = Path(config["cache_dir"]) / config.dataset
    ingredients = _ingredients_in_files(config, items)
    return follow_or_build(root, "sid", ingredients, lambda: _build_tokenizer(config, split, items))


def share_encoding(config: Config, split: Split) -> None:
    """Of texts, between all processes of a run; what follows is done by one of them while the others wait."""
    if config["sid_file"] is not None or QUANTIZERS[config["sid_quantizer"]].vectors_from != "text":
        return
    items = SplitItems.from_split(split)
    root, ingredients = Path(config["cache_dir"]) / config.dataset, _ingredients_in_files(config, items)
    if not processes.from_first(lambda: follow(root, "sid", ingredients) is not None):
        get_source(config, split, items).share()


def _ingredients_in_files(config: Config, items: SplitItems) -> dict[str, Any]:
    """Of SIDs from text, known before it is read."""
    kind = QUANTIZERS[config["sid_quantizer"]]
    return {
        "source": describe_files(config),
        "settings": _remember(config, *kind.keys),
        "items": hash_texts(items.item_ids),
        "training_items": hash_texts(items.item_ids[items.in_training]),
        "test_targets": hash_texts(items.test_targets),
        "versions": _versions(*kind.packages, "scipy"),
        "format": FORMAT_VERSION,
    }


def _build_tokenizer(config: Config, split: Split, items: SplitItems) -> Path:
    """Two cache entries, so that another rule for collisions does not fit the quantizer again."""
    kind = QUANTIZERS[config["sid_quantizer"]]
    settings = _remember(config, *kind.keys)
    source = get_source(config, split, items)
    load = cache(source.load)  # only where something has to be built
    in_training = items.in_training & (source.row != NO_VECTOR)
    _check_sizes(settings, kind, source.row, in_training)
    about_source = {"encoder": source.encoder, "fields": source.fields, "lists": source.lists}
    ingredients = {
        **source.ingredients,
        **{key: settings[key] for key in ("sid_quantizer", "sid_num_digits", "sid_codebook_size", "sid_seed")},
        **({"sid_pca_dim": settings["sid_pca_dim"]} if kind.vectors_from == "text" else {}),
        **{key: settings[key] for key in kind.keys},
        "items": hash_texts(items.item_ids),
        "training_items": hash_texts(items.item_ids[in_training]),
        "versions": _versions(*kind.packages),
        "format": FORMAT_VERSION,
    }

    def build_codes(folder: Path) -> None:
        work_dir = folder / "fit"  # what a quantizer that can be killed and goes on later keeps meanwhile
        further = {"work_dir": work_dir, "show_progress": config["show_progress"]} if kind.resumable else {}
        quantizer = _fit(settings, kind, load(), in_training, further)
        codes = encode_items(settings, quantizer, load())
        Tokenizer(settings, about_source, quantizer, items.item_ids, codes, codes).save(folder / TOKENIZER_FILE)
        if work_dir.exists():
            shutil.rmtree(work_dir)

    root = Path(config["cache_dir"]) / config.dataset
    codes_folder = get_or_build(root, "codes", ingredients, build_codes, kind.resumable)

    def build_sids(folder: Path) -> None:
        tokenizer = Tokenizer.load(codes_folder / TOKENIZER_FILE)
        tokenizer.settings, tokenizer.source = settings, about_source
        tokenizer.sids = _resolve(settings, tokenizer.quantizer, load(), tokenizer.codes)
        without_vector = int((source.row == NO_VECTOR).sum())
        about = {f"items_without_{kind.vectors_from}": without_vector} if kind.vectors_from else {}
        _write(folder, config, tokenizer, items, about | _quantization_errors(tokenizer, load()))

    return get_or_build(
        root,
        "sid",
        {
            "codes": fingerprint(ingredients),
            "settings": settings,
            "source": about_source,
            "test_targets": hash_texts(items.test_targets),
            "versions": _versions("scipy"),
            "format": FORMAT_VERSION,
        },
        build_sids,
    )


def _remember(config: Config, *keys: str) -> dict[str, Any]:
    """Settings of a tokenizer: REMEMBERED, those of its rule for collisions, and further keys."""
    of_rule = ("sid_hash_size",) if config["sid_collisions"] == "random_digit" else ()
    return {key: config[key] for key in (*REMEMBERED, *of_rule, *keys)}


def _check_sizes(settings: Mapping[str, Any], kind: type[Quantizer], row: np.ndarray, in_training: np.ndarray) -> None:
    """What cannot work is reported before hours of encoding."""
    if settings["sid_collisions"] == "reassign":
        check_room(len(row), settings["sid_num_digits"], settings["sid_codebook_size"])
    if kind.vectors_from:
        if not in_training.any():
            raise UserError("no item that occurs in training has text: do the ids in .inter and .item agree?")
        kind.check(len(np.unique(row[in_training])), settings["sid_codebook_size"])


def _fit(
    settings: Mapping[str, Any],
    kind: type[Quantizer],
    items: ItemVectors,
    in_training: np.ndarray,
    further: Mapping[str, Any],
) -> Quantizer:
    rows = np.sort(items.row[in_training])
    chosen = kind.sample(len(rows), settings["sid_codebook_size"], settings["sid_seed"])
    if kind.vectors_from:
        logger.info(f"fitting {kind.name} on {len(chosen):,} of {count(len(rows), 'training item')}")
    return kind.fit(
        items.read(rows[chosen]),
        settings["sid_num_digits"],
        settings["sid_codebook_size"],
        settings["sid_pca_dim"],
        settings["sid_seed"],
        **{key: settings[key] for key in kind.keys},
        **further,
    )


def _resolve(
    settings: Mapping[str, Any], quantizer: Quantizer | None, items: ItemVectors, codes: np.ndarray
) -> np.ndarray:
    if settings["sid_collisions"] == "reassign":
        logger.info("giving every item a unique SID")
    num_digits = codes.shape[1] + (settings["sid_collisions"] in ONE_MORE_DIGIT)
    return resolve_collisions(settings, quantizer, items, codes, np.zeros((0, num_digits), np.uint16))


def _read_ready_sids(config: Config, path: Path, items: SplitItems) -> Path:
    if config["sid_collisions"] == "reassign":
        raise UserError("sid_collisions: reassign needs vectors and a quantizer, but sid_file has only SIDs")
    codes = read_table(
        path, items.item_ids, config["sid_num_digits"], config["sid_codebook_size"], config["ITEM_ID_FIELD"]
    )
    settings = _remember(config) | {"sid_quantizer": "file", "sid_text_encoder": None}

    def build(folder: Path) -> None:
        sids = _resolve(settings, None, ItemVectors.empty(items.item_ids), codes)
        source: dict[str, Any] = {"encoder": None, "fields": {}, "lists": {}}
        _write(folder, config, Tokenizer(settings, source, None, items.item_ids, codes, sids), items, {})

    ingredients = {
        "sid_file": file_sha256(path),
        "items": hash_texts(items.item_ids),
        "test_targets": hash_texts(items.test_targets),
        "settings": settings,
        "format": FORMAT_VERSION,
    }
    return get_or_build(Path(config["cache_dir"]) / config.dataset, "sid", ingredients, build)


def _extend_tokenizer(config: Config, path: Path, items: SplitItems) -> Path:
    """An earlier tokenizer: its SIDs stay as they are, and items that it does not know are added."""
    tokenizer = Tokenizer.load(path)
    built_with = tokenizer.settings
    for key in ("sid_num_digits", "sid_codebook_size"):
        if built_with[key] != config[key]:
            raise UserError(f"sid_file: {path} was built with {key} {built_with[key]}, but {key} is {config[key]}")
    others = [f"{key} {value!r}" for key, value in built_with.items() if value != config[key]]
    if others:
        logger.info(f"{path} keeps the settings it was built with: {', '.join(others)}")
    new = items.item_ids[find_rows(items.item_ids, tokenizer.item_ids) < 0]
    inputs = _describe_new_items(config, tokenizer, new)

    def build(folder: Path) -> None:
        if len(new):
            logger.info(f"new to {path}: {count(len(new), 'item')}")
            trust = config["sid_trust_remote_code"]
            tokenizer.assign(new.tolist(), device=str(config["device"]), trust_remote_code=trust, **inputs)
        about = {"items_without_text": sum(not text for text in inputs.get("texts", ()))}
        _write(folder, config, tokenizer, items, about)

    ingredients = {
        "tokenizer": file_sha256(path),
        "items": hash_texts(items.item_ids),
        "new_texts": hash_texts(inputs.get("texts", ())),
        "new_embeddings": hashlib.sha256(inputs.get("embeddings", np.zeros(0)).tobytes()).hexdigest(),
        "test_targets": hash_texts(items.test_targets),
        "versions": _versions("numpy", "scipy"),  # those of the encoder are checked by assign()
        "format": FORMAT_VERSION,
    }
    return get_or_build(Path(config["cache_dir"]) / config.dataset, "sid", ingredients, build)


def _describe_new_items(config: Config, tokenizer: Tokenizer, new: np.ndarray) -> dict[str, Any]:
    """What assign() needs besides their ids: `texts` or `embeddings`."""
    if len(new) == 0 or not tokenizer.reads_text:
        return {}
    built_with = tokenizer.settings["sid_text_encoder"]
    if is_embedding_file(built_with):
        if not is_embedding_file(config["sid_text_encoder"]):
            raise UserError(
                f"sid_text_encoder: {config['sid_file']}, which was built from embeddings ({built_with}), lacks "
                f"{count(len(new), 'item')}; set it to a .npz or .npy that has theirs"
            )
        return {"embeddings": read_embeddings(Path(config["sid_text_encoder"]), new).select(np.arange(len(new)))}
    path = Path(config["data_path"]) / f"{config.dataset}.item"
    names = list(read_header(path)) if path.exists() else []
    columns = read_item_columns(config, new, names)
    tokenizer.check_columns(names, path.name)
    rows = zip(*(column.to_pylist() for column in columns.values()))
    return {"texts": [tokenizer.compose(dict(zip(names, row))) for row in rows]}


def _versions(*packages: str) -> dict[str, str]:
    return {name: metadata.version(name) for name in packages}


def _write(folder: Path, config: Config, tokenizer: Tokenizer, items: SplitItems, about: dict[str, Any]) -> None:
    """The files of a cache entry."""
    tokenizer.save(folder / TOKENIZER_FILE)
    tokenizer.write_table(folder / f"{config.dataset}.sid", config["ITEM_ID_FIELD"])
    summary = report.describe(tokenizer, items.item_ids, items.test_targets, about)
    write_json(summary, folder / REPORT_FILE)
    report.draw(summary, folder / "report.png")


def _quantization_errors(tokenizer: Tokenizer, items: ItemVectors) -> dict[str, float]:
    """Mean squared error relative to the variance: as quantized, and after items were reassigned."""
    quantizer = tokenizer.quantizer
    if quantizer is None or quantizer.vectors_from is None:
        return {}
    chosen = np.flatnonzero(items.has_vector)

    def sums(start: int, stop: int) -> np.ndarray:
        part = chosen[start:stop]
        points = quantizer.transform(items.select(part))
        before = quantizer.errors(points, tokenizer.codes[part]).sum()
        after = quantizer.errors(points, tokenizer.sids[part][:, : quantizer.num_digits]).sum()
        return np.concatenate([[before, after, (points**2).sum()], points.sum(axis=0)])

    mean = np.asarray(sum(map_blocks(sums, len(chosen), BLOCK_ROWS))) / len(chosen)
    before, after, squared_norm = mean[:3]
    variance = squared_norm - mean[3:] @ mean[3:]
    return {
        "quantization_error": float(before / variance),
        "quantization_error_after_reassignment": float(after / variance),
    }
