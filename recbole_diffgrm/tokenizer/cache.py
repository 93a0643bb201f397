"""Results kept on disk under a fingerprint of all that went into them: whole, checked, locked.

An entry is a folder <kind>-<fingerprint> with its files and about.json: what went in, and each file's SHA-256. It is
built under the name <kind>-<fingerprint>.partial and renamed when it is whole.
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
from recbole_diffgrm.files import file_digest

logger = logging.getLogger(__name__)

ABOUT = "about.json"


def fingerprint(ingredients: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(ingredients, sort_keys=True).encode()).hexdigest()[:16]


def digest_of(lines: Iterable[str]) -> str:
    """Of a sequence of texts, whatever characters are in them."""
    digest = hashlib.sha256()
    for line in lines:
        content = line.encode("utf-8", "surrogatepass")
        digest.update(len(content).to_bytes(8, "big") + content)
    return digest.hexdigest()


def entry(
    root: Path, kind: str, ingredients: dict[str, Any], build: Callable[[Path], None], resumes: bool = False
) -> Path:
    """The folder of an entry, built by build(folder) where it is missing or damaged. Others wait meanwhile.

    `resumes`: build goes on with what an earlier, broken attempt left in the folder.
    """
    path = root / f"{kind}-{fingerprint(ingredients)}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        lock = FileLock(root / f".{path.name}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            logger.info(f"another process is making {path}: waiting for it")
            lock.acquire()
        try:
            return _made(path, ingredients, build, resumes)
        finally:
            lock.release()
    except OSError as error:
        raise UserError(f"cache_dir: {path} cannot be made or read ({error.strerror or error})") from error


def _made(path: Path, ingredients: dict[str, Any], build: Callable[[Path], None], resumes: bool) -> Path:
    if path.exists():
        fault = _fault(path)
        if fault is None:
            return path
        logger.warning(f"{path} is damaged ({fault}): building it again")
        shutil.rmtree(path)
    partial = path.with_name(path.name + ".partial")
    if partial.exists() and not resumes:
        shutil.rmtree(partial)
    partial.mkdir(exist_ok=True)
    try:
        build(partial)
    except UserError:
        if not resumes or not any(partial.iterdir()):
            shutil.rmtree(partial)
        raise
    files = {file.name: file_digest(file) for file in sorted(partial.iterdir()) if file.name != ABOUT}
    (partial / ABOUT).write_text(json.dumps({"made_of": ingredients, "sha256": files}, indent=1) + "\n")
    for file in partial.iterdir():
        _sync(file)
    partial.rename(path)
    return path


def _fault(path: Path) -> str | None:
    try:
        expected = json.loads((path / ABOUT).read_text(encoding="utf-8"))["sha256"]
        for name, digest in expected.items():
            if file_digest(path / name) != digest:
                return f"{name} has changed since it was written"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{ABOUT} cannot be read: {error}"
    return None


def _sync(file: Path) -> None:
    """On the disk, not only on its way there."""
    handle = os.open(file, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
