"""Downloads that survive a cut connection: into a .part file, resumed, checked, then renamed."""

import gzip
import http
import http.client
import urllib.error
import urllib.request
import zlib
from pathlib import Path

from tqdm import tqdm

from recbole_diffgrm.errors import UserError

TRIES = 5
TIMEOUT = 30  # seconds without a byte


class Unreachable(Exception):
    """The server cannot be reached at all."""


def download(url: str, path: Path) -> Path:
    """Fetch a gzip archive to `path`. What an earlier, broken attempt got is kept and continued."""
    if path.exists():
        return path
    part = path.with_name(path.name + ".part")
    for is_second in (False, True):
        _fetch(url, part)
        fault = archive_fault(part)
        if fault is None:
            part.replace(path)
            return path
        part.unlink()  # a .part of another version of the file can be the cause: once more from the start
        if is_second:
            raise UserError(f"{url} is damaged at its source ({fault}): nothing was kept; try again later")
    return path


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
    for attempt in range(1, TRIES + 1):
        try:
            if _fetch_once(url, part):
                return
            reason = "the connection was cut"
        except urllib.error.HTTPError as error:
            raise UserError(f"{url}: the server answered {error.code} {error.reason}") from None
        except (OSError, http.client.HTTPException) as error:  # URLError and time-outs are OSErrors
            if not part.exists():
                raise Unreachable(url) from None
            reason = f"the connection broke ({error})"
        if attempt == TRIES:
            raise UserError(
                f"{url}: {reason} {TRIES} times; {part.stat().st_size:,} bytes are kept in {part}, the same command "
                "goes on from there"
            )


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
