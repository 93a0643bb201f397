"""What a run leaves behind: a typed result, kept as result.json."""

import json
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from recbole_diffgrm.errors import UserError
from recbole_diffgrm.files import write_json

RESULT_FILE = "result.json"


@dataclass(frozen=True)
class RunResult:
    model: str
    dataset: str
    seed: int
    config_hash: str
    run_dir: Path
    valid: dict[str, float]  # metrics of the best epoch, at full precision; sid_*: hits on IDs, all others: on items
    test: dict[str, float]  # with the ranking that `repeatable` asks for
    best_epoch: int | None
    epochs: int  # epochs trained
    curve: list[dict[str, Any]]  # one entry per epoch: loss, rate, seconds, validation metrics
    seconds: dict[str, float]  # train, valid, test
    peak_memory_mib: float
    parameters: int
    statistics: dict[str, Any]  # of the data set and its split
    config: dict[str, Any]
    environment: dict[str, Any]  # versions, commit, hardware
    test_new: dict[str, float] = field(default_factory=dict)  # with the items of each user's history left out
    weights_of: str = ""  # hash of the run that trained them, where this one did not
    sid_shares: dict[str, float] = field(default_factory=dict)  # evaluation.sid_level.SHARES, of models with IDs

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
            return cls(**{name: Path(run_dir) if name == "run_dir" else content[name] for name in names})
        except FileNotFoundError:
            raise UserError(f"{path} does not exist: the run is not finished") from None
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path} is damaged ({error}); delete it to run again") from None
