"""Where the numbers of a run are shown: TensorBoard always, Weights & Biases and MLflow where they are asked for.

A tracker shows and decides nothing. It starts before the seed is set; if it cannot start, nothing is trained. Once
training goes on, no failure of a tracker stops it.
"""

import importlib.util
import json
import logging
import os
import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from filelock import FileLock
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard.summary import scalar

from recbole_diffgrm.config.recbole_config import Config
from recbole_diffgrm.errors import UserError
from recbole_diffgrm.files import make_folder, reading, write_json, writing

logger = logging.getLogger(__name__)

ID_FILE = "tracking.json"  # {key: id of the tracker's run}, for resumption


class Tracker(Protocol):
    title: str

    def log(self, scalars: Mapping[str, float], epoch: int) -> None:
        """Numbers of an epoch, by name."""

    def close(self, finished: bool) -> None:
        """`finished` False: the run failed or was stopped, and may be resumed."""


class TensorBoard:
    """Its file of events, written here: SummaryWriter does that in a thread, which fails with a traceback."""

    title = "TensorBoard"

    def __init__(self, run_dir: Path):
        folder = make_folder(run_dir / "tensorboard")
        path = folder / f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}"
        with writing(path):
            self.file = path.open("wb")
        self.writer = RecordWriter(self.file)
        self._write(file_version="brain.Event:2")

    def log(self, scalars: Mapping[str, float], epoch: int) -> None:
        for name, value in scalars.items():
            self._write(step=epoch, summary=scalar(name, value))
        self.file.flush()

    def close(self, finished: bool) -> None:
        self.file.close()

    def _write(self, **content: Any) -> None:
        self.writer.write(Event(wall_time=time.time(), **content).SerializeToString())


class WeightsAndBiases:
    """Uploads in a process of its own; WANDB_MODE=offline only writes files, into the run directory."""

    title = "Weights & Biases"

    def __init__(self, config: Config, run_dir: Path):
        import wandb

        # Chosen here and kept first: a run that is killed while it starts is found again.
        run_id = _read_id(run_dir, "log_wandb") or _keep_id(run_dir, "log_wandb", secrets.token_hex(8))
        names = _names_of_run(config)
        self.run = wandb.init(
            project=config["wandb_project"],
            id=run_id,
            resume="allow",
            reinit="create_new",  # one run after the other in a comparison, beside any run of the caller
            name=run_dir.name,
            tags=[f"{key}: {value}" for key, value in names.items()],
            notes=f"run directory: {run_dir.resolve()}",
            config={**names, **config.values},
            allow_val_change=True,  # on resumption keys such as output_dir may have changed
            dir=str(run_dir),
        )
        self.run.define_metric("*", step_metric="epoch")

    def log(self, scalars: Mapping[str, float], epoch: int) -> None:
        self.run.log({**scalars, "epoch": epoch})

    def close(self, finished: bool) -> None:
        self.run.finish(exit_code=0 if finished else 1)


class MLflow:
    """In the store that MLFLOW_TRACKING_URI names, or else in a SQLite file below output_dir."""

    title = "MLflow"

    def __init__(self, config: Config, run_dir: Path):
        import mlflow

        self.mlflow = mlflow
        output_dir = Path(config["output_dir"]).resolve()
        local = f"sqlite:///{(output_dir / 'mlflow.db').as_posix()}"
        with FileLock(output_dir / "mlflow.lock"):  # processes that start together would make the same tables
            self.client = mlflow.MlflowClient(tracking_uri=None if mlflow.is_tracking_uri_set() else local)
            self.run_id = _read_id(run_dir, "log_mlflow") or self._create_run(config, run_dir)
        self.client.update_run(self.run_id, status="RUNNING")

    def _create_run(self, config: Config, run_dir: Path) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "recbole_diffgrm"
        found = self.client.get_experiment_by_name(name)
        experiment = found.experiment_id if found else self.client.create_experiment(name)
        names = _names_of_run(config)
        tags = {key: str(value) for key, value in names.items()}
        tags["mlflow.note.content"] = f"run directory: {run_dir.resolve()}"
        run_id = self.client.create_run(experiment, run_name=run_dir.name, tags=tags).info.run_id
        params = [self.mlflow.entities.Param(key, str(value)) for key, value in {**names, **config.values}.items()]
        for start in range(0, len(params), 100):  # MLflow takes no more at once
            self.client.log_batch(run_id, params=params[start : start + 100])
        return _keep_id(run_dir, "log_mlflow", run_id)

    def log(self, scalars: Mapping[str, float], epoch: int) -> None:
        now = int(time.time() * 1000)
        # Names may not hold an @; MLflow's own metrics are called ndcg_at_10.
        metrics = [
            self.mlflow.entities.Metric(name.replace("@", "_at_"), value, now, epoch) for name, value in scalars.items()
        ]
        self.client.log_batch(self.run_id, metrics=metrics)

    def close(self, finished: bool) -> None:
        self.client.set_terminated(self.run_id, "FINISHED" if finished else "FAILED")


# By the key that asks for them
TRACKERS: dict[str, type[WeightsAndBiases] | type[MLflow]] = {"log_wandb": WeightsAndBiases, "log_mlflow": MLflow}
PACKAGES = {"log_wandb": ["wandb"], "log_mlflow": ["mlflow", "sqlalchemy"]}  # the latter for the SQLite file


class Tracking:
    """All trackers of a run, used as one. When one fails it is left alone until the end of the run, so that no
    epoch waits for a server that is down, and is then sent what it missed."""

    def __init__(self, trackers: Sequence[Tracker]):
        self.trackers = trackers
        self.missed: dict[str, list[tuple[Mapping[str, float], int]]] = {}  # of those that failed

    def __enter__(self) -> "Tracking":
        return self

    def __exit__(self, kind: Any, *rest: Any) -> None:
        self.close(finished=kind is None)

    def log(self, scalars: Mapping[str, float], epoch: int) -> None:
        for tracker in self.trackers:
            if tracker.title in self.missed:
                self.missed[tracker.title].append((scalars, epoch))
                continue
            try:
                tracker.log(scalars, epoch)
            except Exception as error:
                self.missed[tracker.title] = [(scalars, epoch)]
                problem = f"{tracker.title} failed ({_first_line(error)})"
                logger.warning(f"{problem}: the run goes on, and at its end this is tried again")

    def close(self, finished: bool) -> None:
        for tracker in self.trackers:
            try:
                for scalars, epoch in self.missed.pop(tracker.title, []):
                    tracker.log(scalars, epoch)
                tracker.close(finished)
            except Exception as error:
                problem = f"{tracker.title} failed ({_first_line(error)})"
                logger.warning(f"{problem}: it may lack a part of this run, which result.json has")


def start_tracking(config: Config, run_dir: Path) -> Tracking:
    trackers: list[Tracker] = [TensorBoard(run_dir)]
    for key, tracker in TRACKERS.items():
        if not config[key]:
            continue
        try:
            trackers.append(tracker(config, run_dir))
        except Exception as error:
            Tracking(trackers).close(finished=False)
            raise UserError(
                f"{key}: {tracker.title} cannot start ({_first_line(error)}); mend that, or set {key} to False"
            ) from error
    return Tracking(trackers)


def check_installed(config: Config) -> None:
    """The packages of the trackers that are asked for."""
    for key, packages in PACKAGES.items():
        missing = [name for name in packages if config[key] and not _is_installed(name)]
        if missing:
            raise UserError(f'{key} needs {" and ".join(missing)}: pip install "recbole_diffgrm[tracking]"')


def epoch_scalars(entry: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a learning curve's entry by the names under which trackers show them."""
    stage = entry["stage"]
    scalars = {f"{stage}/{name}": entry[name] for name in ("loss", "learning_rate", "seconds")}
    for name, value in entry.get("statistics", {}).items():
        if isinstance(value, list):
            scalars |= {f"{stage}/{name}/{number}": part for number, part in enumerate(value, start=1)}
        else:
            scalars[f"{stage}/{name}"] = value
    scalars |= {f"valid/{name}": value for name, value in entry.get("valid", {}).items()}
    if "score" in entry:
        scalars["valid/score"] = entry["score"]
    return scalars


def _names_of_run(config: Config) -> dict[str, Any]:
    return {"model": config.model, "dataset": config.dataset, "seed": config["seed"]}


def _read_ids(run_dir: Path) -> dict[str, str]:
    path = run_dir / ID_FILE
    with reading(path, if_damaged="delete it: trackers then show the rest as a run of its own"):
        return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def _read_id(run_dir: Path, key: str) -> str | None:
    return _read_ids(run_dir).get(key)


def _keep_id(run_dir: Path, key: str, run_id: str) -> str:
    write_json({**_read_ids(run_dir), key: run_id}, run_dir / ID_FILE)
    return run_id


def _is_installed(name: str) -> bool:
    """A folder `wandb`, as W&B leaves in the working directory, is no package, though Python would import it."""
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.origin is not None


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
