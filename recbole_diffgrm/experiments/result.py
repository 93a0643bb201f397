"""The result of a run, saved as result.json with a checksum of itself and of the files beside it."""

import hashlib
import json
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from recbole_diffgrm.evaluation.groups import Groups
from recbole_diffgrm.files import Damaged, file_sha256, reading, write_json
from recbole_diffgrm.words import count

RESULT_FILE = "result.json"
CONFIG_FILE = "config.yaml"  # written when a run begins
CHECKED_FILES = (
    "best.pt",
    "items.tsv",
    "ranks.npz",
    "topk.tsv",
    "tokenizer.npz",
    "text_whitening.npz",
    "model.safetensors",
)
CHANGED = "it has been changed since it was written"


@dataclass(frozen=True)
class RunResult:
    model: str
    dataset: str
    seed: int
    config_hash: str
    run_dir: Path
    valid: dict[str, float]  # metrics of the best epoch, at full precision; sid_*: hits on SIDs, all others: on items
    test: dict[str, dict[str, float]]  # {ranking: metrics}; rankings: `all` items, `unseen` (seen items filtered)
    best_epoch: int | None
    epochs: int  # epochs trained
    curve: list[dict[str, Any]]  # one entry per epoch: loss, rate, seconds, validation metrics
    seconds: dict[str, float]  # train, valid, test
    peak_memory_mib: float
    parameters: int
    statistics: dict[str, Any]  # of the dataset and its split
    config: dict[str, Any]
    environment: dict[str, Any]  # versions, commit, hardware
    # {ranking: 95 % interval of each metric}, of a test on users that were drawn (num_test_users)
    test_intervals: dict[str, dict[str, tuple[float, float]]] = field(default_factory=dict)
    weights_of: str = ""  # config hash of the run that trained the weights, where this one did not
    sid_digest: str = ""  # of the items and their semantic IDs; empty for models without them
    sid_shares: dict[str, float] = field(default_factory=dict)  # evaluation.sid_metrics.SID_SHARES
    groups: dict[str, Groups] = field(default_factory=dict)  # {ranking: test metrics by groups of targets}
    sha256: dict[str, str] = field(default_factory=dict)  # of the files beside it; empty in earlier versions

    def __str__(self) -> str:
        """The tables that the command line prints."""
        from recbole_diffgrm.experiments.result_text import describe_result  # needs torch, which `load` does not

        return describe_result(self)

    def _repr_markdown_(self) -> str:
        """In notebooks."""
        from recbole_diffgrm.experiments.result_text import describe_result

        return describe_result(self, "github")

    def save(self) -> None:
        content = json.loads(json.dumps(asdict(self), default=str))  # as it will be read
        del content["run_dir"]  # the file is in it
        content["sha256"] = {**self.sha256, RESULT_FILE: _digest(content)}
        write_json(content, self.run_dir / RESULT_FILE)

    @classmethod
    def load(cls, run_dir: Path) -> "RunResult":
        path = Path(run_dir) / RESULT_FILE
        if not path.exists():
            raise Damaged(_explain_missing(Path(run_dir)))
        with reading(path, if_damaged="delete it to run again"):
            content = json.loads(path.read_text(encoding="utf-8"))
            digest = content.get("sha256", {}).pop(RESULT_FILE, None)
            if digest is not None and digest != _digest(content):
                raise ValueError(CHANGED)
            names = [f.name for f in fields(cls) if f.name in content or f.default is f.default_factory is MISSING]
            values: dict[str, Any] = {name: content[name] for name in names if name != "run_dir"}
            return cls(run_dir=Path(run_dir), **values)

    def check_file(self, name: str) -> Path:
        """The path of a file in the run directory, if it is as it was written."""
        path = self.run_dir / name
        with reading(path):
            if name in self.sha256 and file_sha256(path) != self.sha256[name]:
                raise ValueError(CHANGED)
        return path


def hash_files(run_dir: Path) -> dict[str, str]:
    """SHA-256 of the files that go with a result."""
    return {name: file_sha256(run_dir / name) for name in CHECKED_FILES if (run_dir / name).exists()}


def _digest(content: dict[str, Any]) -> str:
    """Of what a result says, however it is laid out in its file."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _explain_missing(folder: Path) -> str:
    """Why there is no result in a folder, and what to do."""
    if not folder.is_dir():
        return f"{folder} is not a run directory: there is no such folder"
    if (folder / CONFIG_FILE).exists():
        return f"{folder} is not finished: give the command that started it again, with --resume"
    finished = [path.parent for pattern in ("*", "*/*") for path in folder.glob(f"{pattern}/{RESULT_FILE}")]
    if not finished:
        return f"{folder} is not a run directory, and there is no finished run in it"
    newest = max(finished, key=lambda run: (run / RESULT_FILE).stat().st_mtime)
    return (
        f"{folder} is a folder of runs, not a run: {count(len(finished), 'finished one')} in it, the newest is {newest}"
    )
