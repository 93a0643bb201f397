"""The whole way from a data set to its IDs. Each step is kept under a fingerprint of what went into it."""

import hashlib
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from recbole_diffgrm.config.config import Config
from recbole_diffgrm.data.dataset import FlatSequentialDataset
from recbole_diffgrm.data.sequences import training_rows
from recbole_diffgrm.errors import UserError
from recbole_diffgrm.files import file_digest, write_json
from recbole_diffgrm.tokenizer import quantiser, report, vectors
from recbole_diffgrm.tokenizer.artefact import Tokenizer, quantise, read_table, resolve
from recbole_diffgrm.tokenizer.blocks import map_blocks
from recbole_diffgrm.tokenizer.cache import digest_of, entry, fingerprint
from recbole_diffgrm.tokenizer.reassign import check_room
from recbole_diffgrm.tokenizer.sources import Source, item_columns, nothing, source_of
from recbole_diffgrm.tokenizer.vectors import NO_VECTOR, ItemVectors

logger = logging.getLogger(__name__)

FORMAT_VERSION = 1  # raise when the same ingredients begin to give other IDs
TOKENIZER_FILE = "tokenizer.npz"
REPORT_FILE = "report.json"
# What a tokenizer remembers of its configuration: all that is needed to treat new items like the old ones.
REMEMBERED = (
    "sid_text_fields",
    "sid_text_template",
    "sid_encoder",
    "sid_trust_remote_code",
    "sid_quantiser",
    "sid_digits",
    "sid_codes",
    "sid_pca_dim",
    "sid_collisions",
    "sid_seed",
)


@dataclass(frozen=True)
class Prepared:
    tokenizer: Tokenizer
    report: dict[str, Any]
    folder: Path  # tokenizer.npz, <dataset>.sid, report.json, report.png


@dataclass(frozen=True)
class Catalogue:
    """What the tokenizer has to know of a data set."""

    item_ids: np.ndarray  # [N] str, sorted
    training_items: np.ndarray  # ids of the items that occur in training
    test_items: list[str]  # the target of each test user

    @classmethod
    def of(cls, dataset: FlatSequentialDataset, parts: Sequence[FlatSequentialDataset]) -> "Catalogue":
        """`parts` are the training, validation and test data."""
        names = np.asarray(dataset.field2id_token[dataset.iid_field], dtype=str)
        flat = dataset.inter_feat.flat
        rows = training_rows(flat, [part.inter_feat for part in parts[1:]])
        training_items = names[np.unique(flat.item[rows].numpy())]
        return cls(np.sort(names[1:]), training_items, names[parts[2].inter_feat[dataset.iid_field].numpy()].tolist())


def prepare(config: Config, dataset: FlatSequentialDataset, parts: Sequence[FlatSequentialDataset]) -> Prepared:
    """IDs of all items of a data set; `parts` are its training, validation and test data."""
    catalogue = Catalogue.of(dataset, parts)
    sid_file = config["sid_file"]
    if sid_file is None:
        folder = _from_scratch(config, catalogue)
    elif sid_file.endswith(".npz"):
        folder = _from_tokenizer(config, Path(sid_file), catalogue)
    else:
        folder = _from_table(config, Path(sid_file), catalogue)
    described = json.loads((folder / REPORT_FILE).read_text(encoding="utf-8"))
    return Prepared(Tokenizer.load(folder / TOKENIZER_FILE), described, folder)


def _from_scratch(config: Config, catalogue: Catalogue) -> Path:
    """Two entries, so that another rule for collisions does not fit the codebooks again."""
    item_ids = catalogue.item_ids
    source = source_of(config, item_ids)
    items = cache(source.open)  # only where something has to be built
    settings = {key: config[key] for key in REMEMBERED}
    in_training = np.isin(item_ids, catalogue.training_items) & (source.row != NO_VECTOR)
    _check_sizes(settings, source, in_training)
    about_source = {"encoder": source.encoder, "fields": source.fields, "lists": source.lists}
    made_of = {
        **source.made_of,
        **{key: settings[key] for key in ("sid_quantiser", "sid_digits", "sid_codes", "sid_seed")},
        **({"sid_pca_dim": settings["sid_pca_dim"]} if source.name else {}),
        "items": digest_of(item_ids.tolist()),
        "training_items": digest_of(item_ids[in_training].tolist()),
        "versions": _versions("faiss-cpu", "numpy"),
        "format": FORMAT_VERSION,
    }

    def build_codes(folder: Path) -> None:
        fitted = _fit(settings, items(), in_training) if source.name else None
        codes = quantise(settings, fitted, items())
        Tokenizer(settings, about_source, fitted, item_ids, codes, codes).save(folder / TOKENIZER_FILE)

    root = Path(config["cache_dir"]) / config.dataset
    codes_folder = entry(root, "codes", made_of, build_codes)

    def build_table(folder: Path) -> None:
        kept = Tokenizer.load(codes_folder / TOKENIZER_FILE)
        sids = _resolved(settings, kept.quantiser, items(), kept.codes)
        tokenizer = Tokenizer(settings, about_source, kept.quantiser, item_ids, kept.codes, sids)
        about = {"items_without_text": int((source.row == NO_VECTOR).sum()) if source.name else 0}
        _write(folder, config, tokenizer, catalogue, about | _errors(tokenizer, items()))

    return entry(
        root,
        "sid",
        {
            "codes": fingerprint(made_of),
            "settings": settings,
            "source": about_source,
            "test_items": digest_of(catalogue.test_items),
            "versions": _versions("scipy"),
        },
        build_table,
    )


def _check_sizes(settings: dict[str, Any], source: Source, in_training: np.ndarray) -> None:
    """What cannot work is said before hours of encoding."""
    size = settings["sid_codes"]
    if settings["sid_collisions"] == "reassign":
        check_room(len(source.row), settings["sid_digits"], size)
    if source.name and not in_training.any():
        raise UserError("no item that occurs in training has text: do the ids in .inter and .item agree?")
    if source.name:
        quantiser.check_size(len(np.unique(source.row[in_training])), size)


def _fit(settings: dict[str, Any], items: ItemVectors, in_training: np.ndarray) -> quantiser.Quantiser:
    rows = np.sort(items.row[in_training])
    logger.info(f"fitting {settings['sid_quantiser']} on {len(rows):,} training items")
    return quantiser.fit(
        settings["sid_quantiser"],
        items.vectors[rows],
        settings["sid_digits"],
        settings["sid_codes"],
        settings["sid_pca_dim"],
        settings["sid_seed"],
    )


def _resolved(settings: dict[str, Any], fitted, items: ItemVectors, codes: np.ndarray) -> np.ndarray:
    if settings["sid_collisions"] == "reassign":
        logger.info("giving every item an ID of its own")
    width = codes.shape[1] + (settings["sid_collisions"] == "extra_digit")
    return resolve(settings, fitted, items, codes, np.zeros((0, width), np.uint16))


def _from_table(config: Config, path: Path, catalogue: Catalogue) -> Path:
    """Ready IDs."""
    if config["sid_collisions"] == "reassign":
        raise UserError("sid_collisions: reassign needs vectors and codebooks, and sid_file has only IDs")
    item_ids = catalogue.item_ids
    codes = read_table(path, item_ids, config["sid_digits"], config["sid_codes"], config["ITEM_ID_FIELD"])
    settings = {key: config[key] for key in REMEMBERED} | {"sid_quantiser": "file", "sid_encoder": None}

    def build(folder: Path) -> None:
        sids = _resolved(settings, None, nothing(item_ids).open(), codes)
        source = {"encoder": None, "fields": {}, "lists": {}}
        _write(folder, config, Tokenizer(settings, source, None, item_ids, codes, sids), catalogue, {})

    made_of = {
        "sid_file": file_digest(path),
        "items": digest_of(item_ids.tolist()),
        "test_items": digest_of(catalogue.test_items),
        "settings": settings,
        "format": FORMAT_VERSION,
    }
    return entry(Path(config["cache_dir"]) / config.dataset, "sid", made_of, build)


def _from_tokenizer(config: Config, path: Path, catalogue: Catalogue) -> Path:
    """An earlier tokenizer: its IDs stay as they are, and items that it does not know join it."""
    tokenizer = Tokenizer.load(path)
    made_with = tokenizer.settings
    for key in ("sid_digits", "sid_codes"):
        if made_with[key] != config[key]:
            raise UserError(f"sid_file: {path} was made with {key} {made_with[key]}, but {key} is {config[key]}")
    others = [f"{key} {made_with[key]!r}" for key in REMEMBERED if made_with[key] != config[key]]
    if others:
        logger.info(f"{path} stays as it was made: {', '.join(others)}")
    new = catalogue.item_ids[~np.isin(catalogue.item_ids, tokenizer.item_ids)]
    given = _about_new_items(config, tokenizer, new)

    def build(folder: Path) -> None:
        if len(new):
            logger.info(f"{len(new):,} items are new to {path}")
            tokenizer.assign(new.tolist(), device=str(config["device"]), **given)
        about = {"items_without_text": sum(not text for text in given.get("texts", ()))}
        _write(folder, config, tokenizer, catalogue, about)

    made_of = {
        "tokenizer": file_digest(path),
        "items": digest_of(catalogue.item_ids.tolist()),
        "new_texts": digest_of(given.get("texts", ())),
        "new_embeddings": hashlib.sha256(given.get("embeddings", np.zeros(0)).tobytes()).hexdigest(),
        "test_items": digest_of(catalogue.test_items),
        "versions": _versions("numpy", "scipy"),  # of the encoder: assign() looks at them
        "format": FORMAT_VERSION,
    }
    return entry(Path(config["cache_dir"]) / config.dataset, "sid", made_of, build)


def _about_new_items(config: Config, tokenizer: Tokenizer, new: np.ndarray) -> dict[str, Any]:
    """What assign() wants to know of them."""
    if len(new) == 0 or tokenizer.quantiser is None:
        return {}
    made_with = tokenizer.settings["sid_encoder"]
    if vectors.is_file(made_with):
        if not vectors.is_file(config["sid_encoder"]):
            raise UserError(
                f"sid_encoder: {len(new):,} items are new to {config['sid_file']}, which was made from embeddings "
                f"({made_with}): name a .npz or .npy that has theirs"
            )
        return {"embeddings": vectors.read(Path(config["sid_encoder"]), new).of(np.arange(len(new)))}
    columns = item_columns(config, new)
    return {"texts": [tokenizer.compose(columns.get(item, {})) for item in new.tolist()]}


def _versions(*packages: str) -> dict[str, str]:
    return {name: metadata.version(name) for name in packages}


def _write(folder: Path, config: Config, tokenizer: Tokenizer, catalogue: Catalogue, about: dict[str, Any]) -> None:
    """The files of an entry."""
    tokenizer.save(folder / TOKENIZER_FILE)
    tokenizer.write_table(folder / f"{config.dataset}.sid", config["ITEM_ID_FIELD"])
    described = report.describe(tokenizer, catalogue.item_ids, catalogue.test_items, about)
    write_json(described, folder / REPORT_FILE)
    report.draw(described, folder / "report.png")


def _errors(tokenizer: Tokenizer, items: ItemVectors) -> dict[str, float]:
    """Mean squared error as a share of the variance: as quantised, and of the IDs after items moved."""
    fitted = tokenizer.quantiser
    if fitted is None:
        return {}
    chosen = np.flatnonzero(items.row != NO_VECTOR)

    def sums(start: int, stop: int) -> np.ndarray:
        part = chosen[start:stop]
        prepared = fitted.prepare(items.of(part))
        before = fitted.errors_of(prepared, tokenizer.codes[part]).sum()
        after = fitted.errors_of(prepared, tokenizer.sids[part, : fitted.digits]).sum()
        return np.concatenate([[before, after, (prepared**2).sum()], prepared.sum(axis=0)])

    mean = sum(map_blocks(sums, len(chosen), quantiser.ROWS)) / len(chosen)
    before, after, length = mean[:3]
    variance = length - mean[3:] @ mean[3:]
    return {"error": float(before / variance), "error_with_moves": float(after / variance)}
