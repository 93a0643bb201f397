"""The result of a run, saved as result.json."""

import json
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from recbole_diffgrm.errors import UserError
from recbole_diffgrm.evaluation.groups import Groups
from recbole_diffgrm.files import write_json
from recbole_diffgrm.words import count

RESULT_FILE = "result.json"
CONFIG_FILE = "config.yaml"  # written when a run begins


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
    weights_of: str = ""  # config hash of the run that trained the weights, where this one did not
    sid_shares: dict[str, float] = field(default_factory=dict)  # evaluation.sid_metrics.SID_SHARES
    groups: dict[str, Groups] = field(default_factory=dict)  # {ranking: test metrics by groups of targets}

    def __str__(self) -> str:
        """The tables that the command line prints."""
        from recbole_diffgrm.experiments.result_text import describe_result  # needs torch, which `load` does not

        return describe_result(self)

    def _repr_markdown_(self) -> str:
        """In notebooks."""
        from recbole_diffgrm.experiments.result_text import describe_result

        return describe_result(self, "github")

    def save(self) -> None:
        content = asdict(self)
        del content["run_dir"]  # the file is in it
        write_json(content, self.run_dir / RESULT_FILE)

    @classmethod
    def load(cls, run_dir: Path) -> "RunResult":
        path = Path(run_dir) / RESULT_FILE
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            names = [f.name for f in fields(cls) if f.name in content or f.default is f.default_factory is MISSING]
            values: dict[str, Any] = {name: content[name] for name in names if name != "run_dir"}
            return cls(run_dir=Path(run_dir), **values)
        except (FileNotFoundError, NotADirectoryError):
            raise UserError(_explain_missing(Path(run_dir))) from None
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path} is damaged ({error}); delete it to run again") from None


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
