"""Run directories: <output_dir>/<dataset>/<Model>-<time>-<hash>. One that holds result.json is finished."""

import hashlib
import itertools
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import yaml
from filelock import FileLock, Timeout

from recbole_diffgrm import compat
from recbole_diffgrm.config.schema import WITHOUT_EFFECT
from recbole_diffgrm.errors import UserError
from recbole_diffgrm.files import file_digest, write_text
from recbole_diffgrm.running.result import RESULT_FILE, RunResult
from recbole_diffgrm.tokenizer.sources import input_files

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class RunDirectory:
    """An open run directory, locked against other processes until it is closed (or its process dies)."""

    def __init__(self, path: Path):
        self.path = path
        self._lock = FileLock(path / "lock", timeout=0)

    def open(self) -> bool:
        try:
            self._lock.acquire()
        except Timeout:
            return False
        return True

    def close(self) -> None:
        """Give up the lock; a finished run also gives up what is only needed to go on."""
        if (self.path / RESULT_FILE).exists():
            for name in ("state.pt", "pretrained.pt", "lock"):
                (self.path / name).unlink(missing_ok=True)
        self._lock.release()


def create(config, config_hash: str) -> RunDirectory:
    parent = Path(config["output_dir"]) / config.dataset
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    for attempt in itertools.count():
        suffix = f".{attempt}" if attempt else ""
        run = RunDirectory(parent / f"{config.model}-{stamp}{suffix}-{config_hash}")
        try:
            run.path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise UserError(f"output_dir: {run.path} cannot be made ({error.strerror})") from None
        if run.open():  # else another process took it for an unfinished run
            break
    settings = {key: value for key, value in config.values.items() if key not in WITHOUT_EFFECT}
    write_text(yaml.safe_dump(_plain(settings), sort_keys=True, allow_unicode=True), run.path / "config.yaml")
    return run


def latest_unfinished(config, config_hash: str) -> RunDirectory | None:
    """The newest run of this configuration that has no result and that no one is working on."""
    for path in reversed(_runs(config, config_hash)):
        run = RunDirectory(path)
        if run.open():
            if not (path / RESULT_FILE).exists():
                return run
            run.close()
    return None


def latest_finished(config, config_hash: str) -> RunResult | None:
    for path in reversed(_runs(config, config_hash)):
        if (path / RESULT_FILE).exists():
            run = RunDirectory(path)
            if run.open():  # tidies up after a kill between the result and the end
                run.close()
            result = RunResult.load(path)
            if result.test_new or not result.test:  # else of a version that did not test both rankings
                return result
    return None


def is_running(config, config_hash: str) -> bool:
    """Is another process at a run of this configuration?"""
    for path in _runs(config, config_hash):
        if not (path / RESULT_FILE).exists():
            run = RunDirectory(path)
            if not run.open():
                return True
            run.close()
    return False


def _runs(config, config_hash: str) -> list[Path]:
    """Oldest first: the time stands in the name."""
    return sorted((Path(config["output_dir"]) / config.dataset).glob(f"{config.model}-*-{config_hash}"))


def identity(config, weights: RunResult | None = None) -> str:
    """Of a run: its configuration, its data and, where it does not train, whose weights it has."""
    return config.identity(fingerprint(config) + (weights.config_hash if weights else ""))


def fingerprint(config) -> str:
    """Of the data files: other data under the same name is another run."""
    folder = Path(config["data_path"])
    paths = [folder / f"{config.dataset}.inter"]
    paths += [folder / f"{config.dataset}.{suffix}" for suffix in ("user", "item") if suffix in config["load_col"]]
    if compat.uses_sids(config.model_class):
        paths += input_files(config)
    digest = hashlib.sha256()
    for path in dict.fromkeys(paths):
        if path == paths[0] or path.is_file():
            digest.update(bytes.fromhex(file_digest(path)))
    if compat.uses_sids(config.model_class) and config["sid_file"]:  # apart: it may be one of the files above
        path = Path(config["sid_file"])
        if not path.is_file():
            raise UserError(f"sid_file: {path} does not exist")
        digest.update(b"sid_file" + bytes.fromhex(file_digest(path)))
    return digest.hexdigest()


class _WithoutColours(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return _COLOURS.sub("", super().format(record))


@contextmanager
def logging_to(path: Path, level: str) -> Iterator[None]:
    """Log lines of the project and of RecBole go to the run's log.txt and to standard error."""
    root = logging.getLogger()
    to_file = logging.FileHandler(path / "log.txt", encoding="utf-8")
    to_file.setFormatter(_WithoutColours("%(asctime)s %(levelname)s %(message)s"))
    to_screen = logging.StreamHandler()
    to_screen.setFormatter(_WithoutColours("%(asctime)s %(message)s", "%H:%M:%S"))
    previous = root.level
    handlers = (to_file, to_screen)
    root.setLevel(level)
    for handler in handlers:
        root.addHandler(handler)
    try:
        yield
    finally:
        root.setLevel(previous)
        for handler in handlers:
            root.removeHandler(handler)
            handler.close()


def _plain(value):
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)
