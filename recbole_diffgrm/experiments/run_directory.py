"""Run directories: <output_dir>/<dataset>/<Model>-<time>-<hash>. One that holds result.json is finished."""

import hashlib
import itertools
import logging
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

import yaml
from filelock import FileLock, Timeout

from recbole_diffgrm.config.other_keys import WITHOUT_EFFECT
from recbole_diffgrm.data.source import interaction_files
from recbole_diffgrm.errors import UserError
from recbole_diffgrm.experiments.result import CONFIG_FILE, RESULT_FILE, RunResult
from recbole_diffgrm.files import Damaged, first_line, input_sha256, reading, write_text, writing
from recbole_diffgrm.screen import Colorless
from recbole_diffgrm.tokenizer.embedding_sources import input_files

ONLY_TO_GO_ON = ("state.pt", "pretrained.pt", "lock")  # not needed once a run is finished


class RunDirectory:
    """Locked against other processes from `acquire` to `release` (or until its process dies). Of the processes of one
    run the first has the lock; the others are told the path."""

    def __init__(self, path: Path):
        self.path = path
        self._lock = FileLock(path / "lock", timeout=0)

    def __reduce__(self):
        return RunDirectory, (self.path,)

    def acquire(self) -> bool:
        with writing(self.path):
            try:
                self._lock.acquire()
            except Timeout:
                return False
        return True

    def release(self) -> None:
        """Give up the lock; a finished run also gives up what is only needed to go on."""
        if not self._lock.is_locked:
            return
        if (self.path / RESULT_FILE).exists():
            for name in ONLY_TO_GO_ON:
                with suppress(OSError):  # what stays does no harm
                    (self.path / name).unlink(missing_ok=True)
        self._lock.release()


def create(config, config_hash: str) -> RunDirectory:
    """A new one, acquired."""
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
            raise UserError(f"output_dir: {run.path} cannot be created ({error.strerror})") from None
        if run.acquire():  # else another process took it for an unfinished run
            break
    return run


def write_settings(config, run_dir: Path) -> None:
    """config.yaml. Also on resumption: the run may have been killed before it was written."""
    settings = {key: value for key, value in config.values.items() if key not in WITHOUT_EFFECT}
    content = dict(sorted(_as_plain_data(settings).items()))  # not inside of values: item texts follow sid_text_fields
    write_text(yaml.safe_dump(content, sort_keys=False, allow_unicode=True), run_dir / CONFIG_FILE)


def check_sids(run_dir: Path, began_with: str, now: str) -> None:
    """A run goes on with the semantic IDs it began with (a digest, empty where it is not known), or not at all."""
    if began_with not in ("", now):
        raise UserError(
            f"{run_dir} has other semantic IDs (digest {began_with}) than are made now ({now}), so its weights cannot "
            "be used: train it anew"
        )


def latest_unfinished(config, config_hash: str) -> RunDirectory | None:
    """The newest run of this configuration that has no result and that no process is working on; acquired."""
    for path in reversed(_find_runs(config, config_hash)):
        run = RunDirectory(path)
        if not _is_finished(path) and run.acquire():
            if not _is_finished(path):
                return run
            run.release()
    return None


def latest_finished(config, config_hash: str) -> RunResult | None:
    for path in reversed(_find_runs(config, config_hash)):
        if _is_finished(path):
            _tidy_up(path)
            result = RunResult.load(path)
            if result.config_hash != config_hash:
                raise Damaged(f"{path / RESULT_FILE} is of another run; delete it to run again")
            return result
    return None


def _is_finished(path: Path) -> bool:
    with reading(path / RESULT_FILE):
        return (path / RESULT_FILE).exists()


def _tidy_up(finished: Path) -> None:
    """After a kill between the result and the end. A run that may only be read is used as it is."""
    if any((finished / name).exists() for name in ONLY_TO_GO_ON):
        run = RunDirectory(finished)
        with suppress(UserError):
            if run.acquire():
                run.release()


def is_running(config, config_hash: str) -> bool:
    """Is another process working on a run of this configuration?"""
    for path in _find_runs(config, config_hash):
        if not _is_finished(path):
            run = RunDirectory(path)
            if not run.acquire():
                return True
            run.release()
    return False


def _find_runs(config, config_hash: str) -> list[Path]:
    """Oldest first: the time is part of the name."""
    return sorted((Path(config["output_dir"]) / config.dataset).glob(f"{config.model}-*-{config_hash}"))


def run_hash(config, weights: RunResult | None = None) -> str:
    """Of a run's configuration, its data and, where it does not train, the run that trained the weights."""
    return config.run_hash(hash_data(config) + (weights.config_hash if weights else ""))


def hash_data(config) -> str:
    """Of the data files: other data under the same name is another run."""
    folder, model_class = Path(config["data_path"]), config.model_class
    required = interaction_files(config)
    paths = list(required)
    paths += [folder / f"{config.dataset}.{suffix}" for suffix in ("user", "item") if suffix in config["load_col"]]
    if model_class.needs_sids(config):
        paths += input_files(config, with_text_vectors=model_class.needs_text_vectors(config))
    digest = hashlib.sha256()
    for path in dict.fromkeys(paths):
        if path in required or path.is_file():
            digest.update(bytes.fromhex(input_sha256(path)))
    if model_class.needs_sids(config) and config["sid_file"]:  # separately: it may be one of the files above
        path = Path(config["sid_file"])
        if not path.is_file():
            raise UserError(f"sid_file: {path} does not exist")
        digest.update(b"sid_file" + bytes.fromhex(input_sha256(path)))
    return digest.hexdigest()


@contextmanager
def log_to(run_dir: Path) -> Iterator[None]:
    """Log lines of the project and of RecBole go to the run's log.txt too, and an error's traceback."""
    root = logging.getLogger()
    with writing(run_dir / "log.txt"):
        to_file = _LogFile(run_dir / "log.txt", encoding="utf-8")
    to_file.setFormatter(Colorless("%(asctime)s %(levelname)s %(message)s"))
    root.addHandler(to_file)
    try:
        yield
    except Exception:
        with suppress(OSError), (run_dir / "log.txt").open("a", encoding="utf-8") as log:
            log.write(traceback.format_exc())
        raise
    finally:
        root.removeHandler(to_file)
        to_file.close()


class _LogFile(logging.FileHandler):
    """A log that cannot be written is said once, and stops no run."""

    failed = False

    def handleError(self, record: logging.LogRecord) -> None:
        if not self.failed:
            self.failed = True
            reason = first_line(sys.exc_info()[1] or Exception())
            print(f"{self.baseFilename} cannot be written ({reason}): it will lack lines", file=sys.stderr)

    def close(self) -> None:
        with suppress(OSError):  # lines that were not written before
            super().close()


def _as_plain_data(value):
    if isinstance(value, dict):
        return {str(key): _as_plain_data(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_as_plain_data(part) for part in value]
    # Exactly these types: np.float64 is a float that YAML cannot write.
    kinds = (kind for kind in (bool, int, float, str) if isinstance(value, kind))
    return None if value is None else next(kinds, str)(value)
