"""Makes sure that the files of a dataset are there and fit the configuration, and downloads what can be downloaded.

A source is a module with URL_KEY (the key that says where it downloads from), `dataset_names()`, `archive_urls(dataset,
url)`, `convert(dataset, archives, folder)` and `by_hand(dataset, archives, folder)` (what to do without a network).
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from recbole_diffgrm.data import amazon, amazon_2023, recbole_archives
from recbole_diffgrm.data.atomic import read_header
from recbole_diffgrm.data.download import DownloadFailed, dataset_folder, download, part_of
from recbole_diffgrm.errors import UserError, suggest

if TYPE_CHECKING:  # it brings RecBole and torch along
    from recbole_diffgrm.config.recbole_config import Config

SOURCES: tuple[ModuleType, ...] = (amazon, amazon_2023, recbole_archives)


def check_dataset(dataset: str, folder: Path, names: Sequence[str] | None = None) -> None:
    """Is it there, or can it be downloaded? `names`: benchmark_filename."""
    if not _is_there(dataset, folder):
        _find_source(dataset, folder)
        return
    for path in _interaction_files(dataset, folder, names):
        if path.exists():
            continue
        if names is not None:
            raise UserError(f"benchmark_filename: {path} does not exist")
        raise UserError(
            f"{folder} has ready-made parts of {dataset} and no {path.name}: name the parts, as in "
            "benchmark_filename: [train, valid, test]"
        )


def interaction_files(config: "Config") -> list[Path]:
    """<dataset>.inter, or the files of a ready-made split."""
    return _interaction_files(config.dataset, Path(config["data_path"]), config["benchmark_filename"])


def _interaction_files(dataset: str, folder: Path, names: Sequence[str] | None) -> list[Path]:
    middles = [""] if names is None else [f".{name}" for name in names]
    return [folder / f"{dataset}{middle}.inter" for middle in middles]


def check_files(config: "Config") -> None:
    folder = Path(config["data_path"])
    if not _is_there(config.dataset, folder):
        fetch(config.dataset, folder, {source.URL_KEY: config[source.URL_KEY] for source in SOURCES})
    check_dataset(config.dataset, folder, config["benchmark_filename"])
    _check_features(config, folder / f"{config.dataset}.item")


def fetch(dataset: str, folder: Path, urls: Mapping[str, str]) -> None:
    """Download a dataset and convert it into `folder`. Archives that lie there already are used, and stay."""
    source = _find_source(dataset, folder)
    url = urls[source.URL_KEY]
    if not re.match(r"[a-z]+://", url):
        raise UserError(f"{source.URL_KEY} must be an address such as https://example.org/files, not {url!r}")
    addresses = source.archive_urls(dataset, url)
    # Two runs on the same dataset: the second waits, and then finds all done.
    with dataset_folder(folder):
        if not _is_there(dataset, folder):
            _fetch(source, dataset, folder, addresses)


def _is_there(dataset: str, folder: Path) -> bool:
    """<dataset>.inter, or the ready-made parts of it, <dataset>.<part>.inter."""
    try:
        return (folder / f"{dataset}.inter").exists() or any(folder.glob(f"{dataset}.*.inter"))
    except OSError as error:
        raise UserError(f"{folder} cannot be read ({error.strerror}): check its name and permissions") from None


def _find_source(dataset: str, folder: Path) -> ModuleType:
    for source in SOURCES:
        if dataset in source.dataset_names():
            return source
    for release in (amazon_2023, amazon):
        if dataset.startswith(release.PREFIX):
            hint = suggest(dataset, release.dataset_names())
            raise UserError(
                f"{folder / dataset}.inter does not exist, and {dataset} cannot be downloaded.{hint} "
                f"({release.PREFIX}<Category>: {', '.join(release.CATEGORIES)})"
            )
    known = ["ml-100k", *(name for source in SOURCES for name in source.dataset_names())]
    raise UserError(
        f"{folder / dataset}.inter does not exist: put it there, or set data_path to the folder that holds {dataset}/. "
        f"It is not a dataset that can be downloaded.{suggest(dataset, known)}"
    )


def _fetch(source: ModuleType, dataset: str, folder: Path, addresses: list[str]) -> None:
    paths = [folder / address.rsplit("/", 1)[1] for address in addresses]
    try:
        archives = [download(address, path) for address, path in zip(addresses, paths)]
    except DownloadFailed as error:
        kept = [part for part in map(part_of, paths) if part.exists()]
        sizes = ", ".join(f"{part} ({part.stat().st_size:,} bytes)" for part in kept)
        more = f"; the same command goes on from what is kept: {sizes}" if kept else ""
        raise UserError(
            f"{error}{more}. {folder} has no {dataset}.inter; two ways out: {source.by_hand(dataset, paths, folder)}; "
            f"or set --data_path to a folder that has {dataset}/"
        ) from None
    downloaded = [archive for archive, path in zip(archives, paths) if archive != path]
    try:
        source.convert(dataset, archives, folder)
    except UserError:  # whole, and yet not to be used: there is nothing to continue
        _remove(downloaded)
        raise
    _remove(downloaded)


def _remove(paths: list[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def _check_features(config: "Config", path: Path) -> None:
    """Models of RecBole that use item features say so in selected_features or item_attribute."""
    used = [*(config["selected_features"] or []), *([config["item_attribute"]] if config["item_attribute"] else [])]
    loaded = config["load_col"].get("item", [])
    for name in used:
        if name not in loaded or not path.exists() or name not in read_header(path):
            raise UserError(
                f"{config.model} uses the item feature {name!r}, which is not loaded: add it to load_col (item) and "
                f"to {path}"
            )
