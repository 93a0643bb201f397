"""Checkpoints: tensors and plain data only, written atomically, with a checksum.

A file ends with the SHA-256 of what comes before it. torch.load reads such a file too.
"""

import hashlib
import pickle
from pathlib import Path
from typing import IO, Any

import torch

from recbole_diffgrm.files import Hostile, atomic_write, first_line, reading

MARK = b"\nsha256 "  # then 32 bytes
TRAILER = len(MARK) + 32
WRONG_CHECKSUM = "its checksum is wrong"
NO_CHECKSUM = "it has no checksum: it is cut off or of an earlier version"


def save(content: dict[str, Any], path: Path) -> None:
    with atomic_write(path) as file:
        hashed = _Hashed(file)
        try:
            torch.save(content, hashed)  # type: ignore[arg-type]  # of a file, it only calls write() and flush()
        except RuntimeError:  # torch's word for whatever went wrong in write()
            raise hashed.error or OSError(f"{path} was not written") from None
        file.write(MARK + hashed.digest.digest())


def load(path: Path, device: str | torch.device = "cpu") -> dict[str, Any]:
    with reading(path, if_damaged="delete its run directory and start again"):
        damage = _find_damage(path)
        if damage == WRONG_CHECKSUM:
            raise ValueError(damage)
        try:
            content = torch.load(path, map_location=device, weights_only=True)
        except pickle.UnpicklingError:
            raise Hostile("it holds other things than tensors and plain data") from None
        except OSError as error:  # all of it could be read a moment ago: torch looks for what has been cut off
            raise ValueError(damage or first_line(error)) from None
        if damage:
            raise ValueError(damage)
        return content


class _Hashed:
    """A file to write to that computes the checksum, and remembers why a write failed."""

    def __init__(self, file: IO):
        self.file, self.digest = file, hashlib.sha256()
        self.error: OSError | None = None

    def write(self, data) -> int:
        self.digest.update(data)
        try:
            return self.file.write(data)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self.file.flush()


def _find_damage(path: Path) -> str | None:
    digest, left = hashlib.sha256(), path.stat().st_size - TRAILER
    with path.open("rb") as file:
        while left > 0 and (block := file.read(min(left, 1 << 22))):
            digest.update(block)
            left -= len(block)
        trailer = file.read()
    if not trailer.startswith(MARK):
        return NO_CHECKSUM
    return None if trailer == MARK + digest.digest() else WRONG_CHECKSUM
