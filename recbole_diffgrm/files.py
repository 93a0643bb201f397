"""Atomic writes and checksums."""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


@contextmanager
def atomic_write(path: Path, mode: str = "wb") -> Iterator[IO]:
    """Write beside `path`, force to disk, rename: a kill at any moment leaves the old file or the new one."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open(mode, encoding=None if "b" in mode else "utf-8") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def write_text(text: str, path: Path) -> None:
    with atomic_write(path, "w") as file:
        file.write(text)


def write_json(content: Any, path: Path) -> None:
    write_text(json.dumps(content, indent=1, ensure_ascii=False, default=str) + "\n", path)


def file_sha256(path: Path) -> str:
    """SHA-256"""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()
