"""Results on disk under a fingerprint of everything that went into them: complete, checked, locked.

An entry is a folder <kind>-<fingerprint> with its files and about.json: what went in, and each file's SHA-256. It is
built under the name <kind>-<fingerprint>.partial and renamed when it is complete.
"""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from recbole_diffgrm.errors import UserError
from recbole_diffgrm.files import file_sha256

logger = logging.getLogger(__name__)

ABOUT_FILE = "about.json"


def fingerprint(ingredients: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(ingredients, sort_keys=True).encode()).hexdigest()[:16]


def hash_texts(texts: Iterable[str]) -> str:
    """SHA-256 of a sequence of texts, whatever characters are in them."""
    digest = hashlib.sha256()
    for text in texts:
        content = text.encode("utf-8", "surrogatepass")
        digest.update(len(content).to_bytes(8, "big") + content)
    return digest.hexdigest()


def get_or_build(
    root: Path, kind: str, ingredients: dict[str, Any], build: Callable[[Path], None], resumable: bool = False
) -> Path:
    """The folder of an entry, built by build(folder) where it is missing or damaged. Other processes wait meanwhile.

    `resumable`: build continues with what an earlier, interrupted attempt left in the folder.
    """
    path = root / f"{kind}-{fingerprint(ingredients)}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        lock = FileLock(root / f".{path.name}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            logger.info(f"waiting for another process that is building {path}")
            lock.acquire()
        try:
            if not _is_intact(path):
                _build(path, ingredients, build, resumable)
            return path
        finally:
            lock.release()
    except OSError as error:
        raise UserError(f"cache_dir: {path} cannot be written or read ({error.strerror or error})") from error


def _is_intact(path: Path) -> bool:
    """Whether the entry exists as it was written; a damaged one is deleted."""
    if not path.exists():
        return False
    damage = _find_damage(path)
    if damage is None:
        return True
    logger.warning(f"{path} is damaged ({damage}): building it again")
    shutil.rmtree(path)
    return False


def _build(path: Path, ingredients: dict[str, Any], build: Callable[[Path], None], resumable: bool) -> None:
    partial = path.with_name(path.name + ".partial")
    if partial.exists() and not resumable:
        shutil.rmtree(partial)
    partial.mkdir(exist_ok=True)
    try:
        build(partial)
    except UserError:
        if not resumable or not any(partial.iterdir()):
            shutil.rmtree(partial)
        raise
    files = {file.name: file_sha256(file) for file in sorted(partial.iterdir()) if file.name != ABOUT_FILE}
    about = {"ingredients": ingredients, "sha256": files}
    (partial / ABOUT_FILE).write_text(json.dumps(about, indent=1) + "\n")
    for file in partial.iterdir():
        _sync(file)
    partial.rename(path)


def _find_damage(path: Path) -> str | None:
    try:
        expected = json.loads((path / ABOUT_FILE).read_text(encoding="utf-8"))["sha256"]
        for name, digest in expected.items():
            if file_sha256(path / name) != digest:
                return f"{name} has changed since it was written"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{ABOUT_FILE} cannot be read: {error}"
    return None


def _sync(file: Path) -> None:
    """Force a file to disk."""
    handle = os.open(file, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
