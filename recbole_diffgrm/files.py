"""Reading and writing files: one line for whatever goes wrong, atomic writes, checksums.

Every file that the program reads is read inside `reading`, every file that it writes is written by `atomic_write`.
"""

import hashlib
import json
import os
import stat
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO, Any

from recbole_diffgrm.errors import UserError

# What an archive may unpack to. Real data shrinks to a third or a tenth, zip at most to a thousandth.
MOST_UNPACKED = 200  # times its size
ALWAYS_UNPACKED = 1 << 26  # bytes: small ones may repeat themselves


class Damaged(UserError):
    """A file is not there, not as it was written, or refused: what it held is lost. One that only may not be read is
    not damaged."""


class Hostile(Exception):
    """A file asks for more than data: nothing of it was executed."""


@contextmanager
def reading(path: Path, if_missing: str = "", if_damaged: str = "") -> Iterator[None]:
    """Whatever goes wrong while `path` is read and parsed becomes one line that tells a file that is missing from one
    that may not be read, is damaged, or is hostile. `if_missing` and `if_damaged` say what to do then."""
    try:
        _check_kind(path)
        yield
    except UserError:
        raise
    except (FileNotFoundError, NotADirectoryError):
        raise Damaged(f"{path} does not exist{_and(if_missing)}") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a folder where a file is expected") from None
    except OSError as error:
        if error.errno is None:  # not of the system, but of a parser: gzip's
            raise _damage(path, error, if_damaged) from None
        raise UserError(f"{path} cannot be read ({error.strerror or error}): check its permissions and disk") from None
    except Hostile as error:
        raise Damaged(
            f"{path} is refused ({error}): nothing in it was executed; use it only if you know where it comes from"
        ) from None
    except MemoryError:
        raise UserError(f"{path} does not fit into memory") from None
    except UnicodeDecodeError as error:
        raise Damaged(f"{path} is not UTF-8 text ({error.reason} at byte {error.start})") from None
    except Exception as error:  # whatever a parser makes of damage
        raise _damage(path, error, if_damaged) from None


def _damage(path: Path, error: Exception, advice: str) -> Damaged:
    # numpy's advice to load unsafely is not repeated
    reason = "it holds other things than plain data" if "pickle" in str(error) else first_line(error)
    return Damaged(f"{path} is damaged ({reason}){_and(advice)}")


def _check_kind(path: Path) -> None:
    """A pipe or a device may have no end, or wait for ever."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:  # some callers open another file first
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError
    if not stat.S_ISREG(mode):
        raise UserError(f"{path} is not a file but a pipe, socket or device")


def check_unpacked_size(archive: zipfile.ZipFile) -> None:
    """Of all that is in a zip: a bomb is a small file that fills the memory or the disk."""
    file = archive.fp
    assert file is not None  # it is open
    packed = os.fstat(file.fileno()).st_size
    unpacked = sum(member.file_size for member in archive.infolist())
    if unpacked > max(ALWAYS_UNPACKED, MOST_UNPACKED * packed):
        raise Hostile(f"{packed:,} bytes that unpack to {unpacked:,}")


def first_line(error: BaseException) -> str:
    """Of its message, in at most 160 characters."""
    lines = str(error).strip().splitlines()
    return " ".join(lines[0].split())[:160] if lines else type(error).__name__


def read_text(path: Path, if_missing: str = "") -> str:
    with reading(path, if_missing):
        return path.read_text(encoding="utf-8")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """A disk that is full or may not be written is one line that says so."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{path} cannot be written ({error.strerror or error}): make room or choose another folder"
        ) from error


@contextmanager
def atomic_write(path: Path, mode: str = "wb") -> Iterator[IO]:
    """Write beside `path`, force to disk, rename: a kill at any moment, or a full disk, leaves the old file or
    the new one."""
    temporary = path.with_name(path.name + ".tmp")
    with writing(path):
        try:
            with temporary.open(mode, encoding=None if "b" in mode else "utf-8") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
            sync_folder(path.parent)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def sync_folder(folder: Path) -> None:
    """Force the names in a folder to disk: a file that was renamed keeps its new name if the power fails."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_text(text: str, path: Path) -> None:
    with atomic_write(path, "w") as file:
        file.write(text)


def make_folder(path: Path) -> Path:
    """With its parents, if it is not there yet."""
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
    return path


def write_json(content: Any, path: Path) -> None:
    write_text(json.dumps(content, indent=1, ensure_ascii=False, default=str) + "\n", path)


def file_sha256(path: Path) -> str:
    """SHA-256"""
    digest = hashlib.sha256()
    with reading(path), path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()


def input_sha256(path: Path) -> str:
    """The same of the user's data, gigabytes that several parts of a run ask for: read once, unless it changes."""
    with reading(path):
        found = path.stat()
    return _sha256_of_version(path.absolute(), found.st_ino, found.st_size, found.st_mtime_ns)


@cache
def _sha256_of_version(path: Path, *version: int) -> str:
    return file_sha256(path)


def _and(advice: str) -> str:
    return f"; {advice}" if advice else ""
