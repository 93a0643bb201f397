"""SIGKILL at random moments of a run with two stages (S3Rec), then --resume: are the results the same, bit for bit?

python -m benchmarks.kills [--kills=50] [--seed=N] [--model=S3Rec]      prints a JSON object; exit code 1 if any differs

Moments are times, uniform over the run from the start of the process's work to its end, so that a kill may come inside
any instruction. tests/kill_harness.py and tests/fault_harness.py kill at chosen calls instead.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch

from recbole_diffgrm.experiments import pipeline
from tests.conftest import write_dataset
from tests.kill_harness import make_config, outcome


def attempt(config, resume: bool, answer: Path, after: float | None = None) -> float | None:
    """Run in a child process and kill it after some seconds. The seconds it took; None if it was killed."""
    answer.unlink(missing_ok=True)
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        try:
            done = pipeline.run_config(config, resume=resume)
            answer.write_text(json.dumps(outcome(done)))
        finally:
            os._exit(0)
    timer = threading.Timer(after, os.kill, (child, signal.SIGKILL)) if after is not None else None
    if timer:
        timer.start()
    os.waitpid(child, 0)
    if timer:
        timer.cancel()
    return time.monotonic() - started if answer.exists() else None


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--kills", type=int, default=50)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--model", default="S3Rec")
    asked = options.parse_args()
    torch.set_num_threads(1)
    torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])  # what torch imports late is imported here, once for all
    draw = random.Random(asked.seed)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        data, answer = write_dataset(work / "data"), work / "answer.json"

        def config(name: str):
            return make_config(asked.model, str(data), work / name, 1e-9)

        attempt(config("first"), False, answer)  # fills the caches
        seconds = attempt(config("whole"), False, answer)
        assert seconds is not None
        reference = json.loads(answer.read_text())
        moments, differing, attempts = [], [], 0
        while len(moments) < asked.kills:
            attempts += 1
            assert attempts < 10 * asked.kills, "the runs end before they are killed"
            name, after = f"killed{attempts}", draw.uniform(0, seconds)
            if attempt(config(name), False, answer, after) is not None:
                continue  # it was faster this time
            moments.append(round(after, 3))
            if attempt(config(name), True, answer) is None or json.loads(answer.read_text()) != reference:
                differing.append(round(after, 3))
    stages = sorted({entry["stage"] for entry in reference["curve"]})
    print(
        json.dumps(
            {
                "model": asked.model,
                "stages": stages,
                "seconds": round(seconds, 2),
                "kills": len(moments),
                "same_bits": len(moments) - len(differing),
                "moments": sorted(moments),
                "differing": differing,
            }
        )
    )
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
