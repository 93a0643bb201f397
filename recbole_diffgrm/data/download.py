"""Downloads that survive a cut connection: into a .part file, resumed, checked, then renamed."""

import gzip
import http
import http.client
import time
import urllib.error
import urllib.request
import zlib
from pathlib import Path

from tqdm import tqdm

from recbole_diffgrm.errors import UserError

TRIES = 5  # in a row without a new byte
PAUSE = 1.0  # seconds before another try, growing with the tries
TIMEOUT = 30  # seconds without a byte


class DownloadFailed(Exception):
    """Why a file could not be had. What arrived of it is kept."""


def download(url: str, path: Path) -> Path:
    """Fetch a gzip archive to `path`. What an earlier, broken attempt got is kept and continued."""
    if path.exists():
        return path
    part = path.with_name(path.name + ".part")
    for _ in range(2):  # a .part of another version of the file can be the cause of a fault: once more from the start
        _fetch(url, part)
        fault = archive_fault(part)
        if fault is None:
            part.replace(path)
            return path
        part.unlink()
    raise DownloadFailed(f"{url} is damaged at its source ({fault})")


def archive_fault(path: Path) -> str | None:
    """Why a gzip file cannot be read to its end, or None. Its own checksum is part of that."""
    try:
        with gzip.open(path) as file:
            while file.read(1 << 20):
                pass
    except (EOFError, OSError, zlib.error) as error:
        return str(error) or type(error).__name__
    return None


def _fetch(url: str, part: Path) -> None:
    tries = 0
    while True:
        before = part.stat().st_size if part.exists() else 0
        try:
            if _fetch_once(url, part):
                return
            reason = "the connection was cut"
        except urllib.error.HTTPError as error:
            raise DownloadFailed(f"{url}: the server answered {error.code} {error.reason}") from None
        except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError) as error:
            reason = f"no connection ({getattr(error, 'reason', error)})"
            if not part.exists():
                raise DownloadFailed(f"{url}: {reason}") from None
        except OSError as error:
            raise UserError(f"{part} cannot be written: {error.strerror}") from None
        got = part.stat().st_size if part.exists() else 0
        tries = 1 if got > before else tries + 1
        if tries == TRIES:
            raise DownloadFailed(f"{url}: {reason}; {got:,} bytes are kept, the same command goes on from there")
        time.sleep(PAUSE * (tries - 1))


def _fetch_once(url: str, part: Path) -> bool:
    """One request, continuing `part`. True when the file is complete."""
    done = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={done}-"} if done else {})
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return True  # all of it is here
        raise
    with response:
        if response.status != http.HTTPStatus.PARTIAL_CONTENT:
            done = 0  # the server starts over
        length = response.headers.get("Content-Length")
        total = done + int(length) if length else None
        part.parent.mkdir(parents=True, exist_ok=True)
        with (
            part.open("ab" if done else "wb") as file,
            tqdm(total=total, initial=done, desc=part.name[:-5], unit="B", unit_scale=True, disable=None) as bar,
        ):
            while block := response.read1(1 << 16):
                file.write(block)
                bar.update(len(block))
    return total is None or part.stat().st_size >= total
