"""Results on disk under a fingerprint of everything that went into them: complete, checked, locked.

An entry is a folder <kind>-<fingerprint> with its files and about.json: what went in, and each file's SHA-256, size and
time. It is built under the name <kind>-<fingerprint>.partial and renamed when it is complete. Files of gigabytes are
hashed again only where size or time say that they were changed, or copied from elsewhere.
"""

import hashlib
import json
import logging
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from recbole_diffgrm.errors import UserError
from recbole_diffgrm.files import Damaged, file_sha256, reading, sync_folder, write_json, write_text

logger = logging.getLogger(__name__)

ABOUT_FILE = "about.json"


def fingerprint(ingredients: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(ingredients, sort_keys=True).encode()).hexdigest()[:16]


def get_or_build(
    root: Path, kind: str, ingredients: dict[str, Any], build: Callable[[Path], None], resumable: bool = False
) -> Path:
    """The folder of an entry, built by build(folder) where it is missing or damaged. Other processes wait meanwhile.
    An intact entry is used without a lock: it may be on a disk that cannot be written.

    `resumable`: build continues with what an earlier, interrupted attempt left in the folder.
    """
    path = root / f"{kind}-{fingerprint(ingredients)}"
    if _find_damage(path) is None:
        return path
    try:
        root.mkdir(parents=True, exist_ok=True)
        lock = FileLock(root / f".{path.name}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            logger.info(f"waiting for another process that is building {path}")
            lock.acquire()
        try:
            damage = _find_damage(path)  # again: another process may have built it meanwhile
            if damage:
                if path.exists():
                    logger.warning(f"{path} is damaged ({damage}): building it again")
                    shutil.rmtree(path)
                _build(path, ingredients, build, resumable)
            return path
        finally:
            lock.release()
    except OSError as error:
        raise UserError(f"cache_dir: {path} cannot be written or read ({error.strerror or error})") from error


def is_built(root: Path, kind: str, ingredients: dict[str, Any]) -> bool:
    return _find_damage(root / f"{kind}-{fingerprint(ingredients)}") is None


def follow(root: Path, kind: str, ingredients: dict[str, Any]) -> Path | None:
    """The entry that `follow_or_build` has remembered, if it is intact."""
    link = _link(root, kind, ingredients)
    try:
        with reading(link):
            path = root / link.read_text(encoding="utf-8").strip()
    except UserError:
        return None  # not there, or not to be read: what it says is found out again
    return path if path.parent == root and _find_damage(path) is None else None


def _link(root: Path, kind: str, ingredients: dict[str, Any]) -> Path:
    return root / f"{kind}-{fingerprint(ingredients)}.link"


def follow_or_build(root: Path, kind: str, ingredients: dict[str, Any], build: Callable[[], Path]) -> Path:
    """The entry that build() gives, remembered under ingredients that are known sooner than the entry's own: files
    before they are read, say. An entry that is gone or damaged is built again."""
    link = _link(root, kind, ingredients)
    path = follow(root, kind, ingredients)
    if path is not None:
        return path
    path = build()
    with suppress(UserError):  # a cache that cannot be written is used as it is
        write_text(path.name + "\n", link)
    return path


def _build(path: Path, ingredients: dict[str, Any], build: Callable[[Path], None], resumable: bool) -> None:
    partial = path.with_name(path.name + ".partial")
    if partial.exists() and not resumable:
        shutil.rmtree(partial)
    partial.mkdir(exist_ok=True)
    try:
        build(partial)
    except (UserError, OSError):
        if not resumable or not any(partial.iterdir()):
            shutil.rmtree(partial)
        raise
    files = [file for file in sorted(partial.iterdir()) if file.name != ABOUT_FILE]
    about = {
        "ingredients": ingredients,
        "sha256": {file.name: file_sha256(file) for file in files},
        "versions": {file.name: _version(file) for file in files},
    }
    write_json(about, partial / ABOUT_FILE)  # each file is on disk already, and now their names are
    partial.rename(path)
    sync_folder(path.parent)


def _find_damage(path: Path) -> str | None:
    """What is wrong with an entry: None if it is as it was written. One that may not be read is an error."""
    about = path / ABOUT_FILE
    try:
        with reading(about):
            content = json.loads(about.read_text(encoding="utf-8"))
            expected, versions = dict(content["sha256"]), dict(content.get("versions", {}))
        for name, digest in expected.items():
            if not _is_untouched(path / name, versions.get(name), about) and file_sha256(path / name) != digest:
                return f"{name} has changed since it was written"
    except Damaged as error:
        return str(error)
    return None


def _version(file: Path) -> list[int]:
    with reading(file):
        found = file.stat()
    return [found.st_size, found.st_mtime_ns]


def _is_untouched(file: Path, version: list[int] | None, about: Path) -> bool:
    """Whoever writes it later than `about` leaves a time that is not before that of `about`. Clocks of file systems
    tick slowly: where both have the same time, this says nothing."""
    return version == _version(file) and version[1] < _version(about)[1]
