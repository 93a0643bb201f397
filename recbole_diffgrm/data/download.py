"""Downloads that survive a cut connection or a busy server: into a .part file, continued, then checked."""

import gzip
import http
import http.client
import socket
import sys
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import AcquireReturnProxy, FileLock

from recbole_diffgrm.errors import UserError
from recbole_diffgrm.files import Hostile, check_unpacked_size
from recbole_diffgrm.progress import progress_bar

TRIES = 5  # in a row without a new byte
PAUSE = 1.0  # seconds before another try, growing with the tries
LOCK_TRIES = 100  # in a row that another process removes the folder just then
TIMEOUT = 30  # seconds without a byte
TRANSIENT = {http.HTTPStatus.REQUEST_TIMEOUT, http.HTTPStatus.TOO_MANY_REQUESTS}  # and all of 5xx


class DownloadFailed(Exception):
    """Why a file could not be had. What arrived of it is kept in its .part."""


@contextmanager
def dataset_folder(folder: Path) -> Iterator[None]:
    """Make `folder` and keep other processes out of it. What is empty at the end, as after a failure, is removed."""
    made: list[Path] = []
    try:
        made = [path for path in folder.parents if not path.exists()]
        with _lock(folder) as lock:
            try:
                yield
            finally:
                Path(lock.lock_file).unlink(missing_ok=True)  # while it is held: who waits for it makes a new one
    except OSError as error:
        raise UserError(f"{folder} cannot be used: {error.strerror or error}") from None
    finally:
        for path in [folder, *made]:
            try:
                path.rmdir()
            except OSError:  # not empty, or not there
                break


def _lock(folder: Path) -> AcquireReturnProxy:
    """Acquired; released at the end of a `with`."""
    lock = FileLock(folder / ".lock")
    for _ in range(LOCK_TRIES - 1):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return lock.acquire()
        except FileNotFoundError:  # the process that held it failed, and removed the folder
            continue
    folder.mkdir(parents=True, exist_ok=True)
    return lock.acquire()


def part_of(path: Path) -> Path:
    return path.with_name(path.name + ".part")


def download(url: str, path: Path) -> Path:
    """Fetch a gzip or zip archive: `path` itself if it is there already, else its complete, checked .part file. What an
    earlier, broken attempt left in that file is continued."""
    if path.exists():
        return path
    part = part_of(path)
    for _ in range(2):  # a .part of another version of the file can be the cause of a fault: once more from the start
        try:
            _fetch(url, part)
        finally:
            if part.exists() and part.stat().st_size == 0:
                part.unlink()
        if not part.exists():
            raise DownloadFailed(f"{url}: the server sent an empty file")
        fault = _zip_fault(part) if path.suffix == ".zip" else _gzip_fault(part)
        if fault is None:
            return part
        part.unlink(missing_ok=True)
    raise DownloadFailed(f"{url} is damaged at its source ({fault})")


def _gzip_fault(path: Path) -> str | None:
    """Why a gzip file cannot be read to its end, or None. Its own checksum is part of that."""
    try:
        with gzip.open(path) as file:
            while file.read(1 << 20):
                pass
    except (EOFError, OSError, zlib.error) as error:
        return str(error) or type(error).__name__
    return None


def _zip_fault(path: Path) -> str | None:
    try:
        with zipfile.ZipFile(path) as archive:
            check_unpacked_size(archive)
            broken = archive.testzip()
    # RuntimeError: it is encrypted, or compressed in a way that Python does not know
    except (zipfile.BadZipFile, EOFError, OSError, zlib.error, RuntimeError, Hostile) as error:
        return str(error) or type(error).__name__
    return f"wrong checksum of {broken}" if broken else None


def _fetch(url: str, part: Path) -> None:
    tries, reached, announced = 0, False, False
    most = part.stat().st_size if part.exists() else 0  # a server that starts over may get less far than before
    while True:
        try:
            if _fetch_once(url, part, announce=not announced):
                return
            reached, reason = True, "the connection was cut"
        except urllib.error.HTTPError as error:
            reached, reason = True, f"the server answered {error.code} {error.reason}"
            if error.code < http.HTTPStatus.INTERNAL_SERVER_ERROR and error.code not in TRANSIENT:
                raise DownloadFailed(f"{url}: {reason}") from None
        except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError) as error:
            cause = getattr(error, "reason", error)
            reason = f"no connection ({cause})"
            # No such server, or nothing listens there: waiting a few seconds for the first answer does not help.
            if not reached and most == 0 and isinstance(cause, socket.gaierror | ConnectionRefusedError):
                raise DownloadFailed(f"{url}: {reason}") from None
        except OSError as error:
            raise UserError(f"{part} cannot be written: {error.strerror or error}") from None
        except ValueError as error:
            raise DownloadFailed(f"{url} is no address ({error})") from None
        got = part.stat().st_size if part.exists() else 0
        tries, announced = (1, True) if got > most else (tries + 1, announced)
        most = max(most, got)
        if tries == TRIES:
            raise DownloadFailed(f"{url}: {reason}, {TRIES} times in a row")
        time.sleep(PAUSE * (tries - 1))


def _fetch_once(url: str, part: Path, announce: bool) -> bool:
    """One request, continuing `part`. True when the file is complete."""
    done = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={done}-"} if done else {})
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and done:
            return True  # all of it is here
        raise
    with response:
        if response.status != http.HTTPStatus.PARTIAL_CONTENT:
            done = 0  # the server starts over
        length = response.headers.get("Content-Length")
        total = done + int(length) if length and length.isdecimal() else None
        if announce:
            size = f"{total / 1e6:,.1f} MB" if total else "of unknown size"
            print(f"downloading {url} ({size}{f', {done / 1e6:,.1f} MB are here' if done else ''})", file=sys.stderr)
        with (
            part.open("ab" if done else "wb") as file,
            progress_bar(total=total, initial=done, desc=part.stem, unit="B", unit_scale=True) as bar,
        ):
            while block := response.read1(1 << 16):
                file.write(block)
                bar.update(len(block))
    return total is None or part.stat().st_size >= total
