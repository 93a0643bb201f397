"""The result of a run, saved as result.json."""

import json
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from recbole_diffgrm.errors import UserError
from recbole_diffgrm.evaluation.groups import Groups
from recbole_diffgrm.files import write_json

RESULT_FILE = "result.json"


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
        except FileNotFoundError:
            raise UserError(f"{path} does not exist: the run is not finished") from None
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path} is damaged ({error}); delete it to run again") from None
