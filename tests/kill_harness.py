"""Kills runs at chosen moments and resumes them. A process of its own: it forks, which a test runner should not.

python -m tests.kill_harness MODEL[+items] DATA_FOLDER WORK_FOLDER CHECKPOINT_SECONDS POINTS

Every call below that changes something on disk or in the model is an event, before and after it. The run is killed with
SIGKILL at POINTS events spread over all of them, each time resumed to the end, and once again and again: an epoch's
end takes 14 events, so a run that gets 20 at a time must come to its end.
Prints a JSON object: what the run that was never killed gave, and what each killed one gave.
"""

import functools
import hashlib
import json
import os
import signal
import sys
from pathlib import Path

import numpy as np
import torch

from recbole_diffgrm import checkpoint
from recbole_diffgrm.experiments import pipeline, result, run_directory
from recbole_diffgrm.models import build_config, candidates
from recbole_diffgrm.training import trainer
from tests.conftest import SMALL

events = 0
kill_at = None


def event() -> None:
    global events
    events += 1
    if events == kill_at:
        os.kill(os.getpid(), signal.SIGKILL)


def watch(owner, name: str) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def watched(*arguments, **keywords):
        event()
        value = original(*arguments, **keywords)
        event()
        return value

    setattr(owner, name, watched)


def watch_everything() -> None:
    watch(trainer.Trainer, "_step")
    watch(trainer, "evaluate")
    watch(pipeline, "evaluate")
    watch(checkpoint.torch, "save")  # between writing and renaming
    watch(checkpoint, "save")
    watch(np, "savez_compressed")
    watch(result, "write_json")
    watch(run_directory, "create")
    watch(candidates.ItemScores, "target_rank")


def outcome(done: result.RunResult) -> dict:
    """All that must not depend on kills."""
    with np.load(done.run_dir / "ranks.npz") as saved:
        ranks = {name: array.tolist() for name, array in saved.items()}
    weights = hashlib.sha256()
    for name, value in checkpoint.load(done.run_dir / "best.pt")["state_dict"].items():
        weights.update(name.encode() + value.numpy().tobytes())
    curve = [{key: value for key, value in entry.items() if key != "seconds"} for entry in done.curve]
    return {
        "valid": done.valid,
        "test": done.test,
        "best_epoch": done.best_epoch,
        "epochs": done.epochs,
        "curve": curve,
        "ranks": ranks,
        "weights": weights.hexdigest(),
        "files": sorted(path.name for path in done.run_dir.iterdir()),
    }


def attempt(config, resume: bool, kill: int | None, answer: Path) -> bool:
    """Run in a child process; True when it came to its end."""
    child = os.fork()
    if child == 0:
        global kill_at
        kill_at = kill
        watch_everything()
        done = pipeline.run_config(config, resume=resume)
        answer.write_text(json.dumps({"outcome": outcome(done), "events": events}))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return False
    assert status == 0
    return True


def make_config(model: str, data: str, output_dir: Path, checkpoint_seconds: float):
    """`model` may end in +items."""
    model, with_items, _ = model.partition("+items")
    overrides = {
        "data_path": data,
        "output_dir": str(output_dir),
        "checkpoint_seconds": checkpoint_seconds,
        "epochs": 3,
        "MAX_ITEM_LIST_LENGTH": 10,
        "scheduler": "cosine",
        "warmup_steps": 3,
        "show_progress": False,
        "state": "WARNING",
    }
    if model not in SMALL:
        overrides |= {"train_batch_size": 100, "hidden_size": 16, "inner_size": 16}
    if model == "DiffGRM":
        overrides["ema_decay"] = 0.9
    if with_items:
        overrides |= {"item_head": True, "sample_unit": "sequence", "min_history": 1, "decoder_targets": 1}
        overrides |= {"train_batch_size": 16, "num_valid_users": 30}
    if model == "S3Rec":
        overrides["pretrain_epochs"] = 2
    return build_config(model, "tiny", [Path(data) / "tiny.yaml"], overrides)


def main(model: str, data: str, work: str, seconds: str, points: str) -> None:
    torch.set_num_threads(1)
    torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])  # what torch imports late is imported here, once for all
    work = Path(work)

    def config(folder: str):
        return make_config(model, data, work / folder, float(seconds))

    answer = work / "answer.json"
    assert attempt(config("never"), False, None, answer)
    reference = json.loads(answer.read_text())
    killed = {}
    step = reference["events"] / int(points)
    for number in range(int(points)):
        at = 1 + int(number * step)
        assert not attempt(config(f"at{at}"), False, at, answer), f"event {at} was not reached"
        assert attempt(config(f"at{at}"), True, None, answer)
        killed[f"killed at event {at}"] = json.loads(answer.read_text())["outcome"]
    at_a_time = 20 if float(seconds) < 1 else reference["events"] // 2
    for kills in range(100):
        if attempt(config("again"), kills > 0, at_a_time, answer):
            killed[f"killed {kills} times in a row"] = json.loads(answer.read_text())["outcome"]
            break
    print(json.dumps({"reference": reference["outcome"], "events": reference["events"], "killed": killed}))


if __name__ == "__main__":
    main(*sys.argv[1:])
