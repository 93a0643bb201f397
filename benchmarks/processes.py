"""Training and test with 1 and 2 processes of one thread each, against 1 process of two threads.

    python benchmarks/processes.py --model SASRec --data_path FOLDER --dataset Amazon_Beauty --epochs 3
    python benchmarks/processes.py --repeats 1 --epochs 1 -- --train_batch_size=256

Each is the real command in processes of its own; they take turns, `--repeats` times, and the fastest epoch and test of
each count: whatever else the machine does only makes them slower. What comes after -- is handed on to the command.
Prints samples/s of training, users/s of the test, their ratios to the first; writes benchmarks/out/processes.json.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

SETUPS = {  # name: (processes, threads of each)
    "1 process of 1 thread": (1, 1),
    "2 processes of 1 thread": (2, 1),
    "1 process of 2 threads": (1, 2),
}


def measure(options: argparse.Namespace, num_processes: int, threads: int) -> dict[str, float]:
    """Of one run: its fastest epoch, and its test."""
    from recbole_diffgrm.experiments.result import RunResult

    with tempfile.TemporaryDirectory() as folder:
        settings = {"model": options.model, "dataset": options.dataset, "data_path": options.data_path}
        settings |= {"epochs": options.epochs, "nproc": num_processes, "output_dir": folder, "use_gpu": False}
        settings |= {"eval_from": options.epochs, "show_progress": False}  # one validation, which is not measured
        command = [sys.executable, str(ROOT / "run_recbole_diffgrm.py"), *options.further]
        command += [f"--{key}={value}" for key, value in settings.items()]
        done = subprocess.run(
            command, env={**os.environ, "OMP_NUM_THREADS": str(threads)}, capture_output=True, text=True
        )
        if done.returncode:
            raise SystemExit(done.stderr)
        result = RunResult.load(next(Path(folder).glob("*/*/result.json")).parent)
    return {
        "samples_per_second": result.statistics["train_samples"] / min(entry["seconds"] for entry in result.curve),
        "users_per_second": result.statistics["test_users"] / result.seconds["test"],
        "test_ndcg@10": result.test["all"]["ndcg@10"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="SASRec")
    parser.add_argument("--dataset", default="ml-100k")
    parser.add_argument("--data_path", default="dataset")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("further", nargs="*", help="options of run_recbole_diffgrm.py")
    options = parser.parse_args()
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in SETUPS}
    for _ in range(options.repeats):
        for name, setup in SETUPS.items():
            measured[name].append(measure(options, *setup))
    best = {
        name: {key: max(run[key] for run in runs) for key in ("samples_per_second", "users_per_second")}
        for name, runs in measured.items()
    }
    first = next(iter(best.values()))
    ratios = {name: {key: value / first[key] for key, value in of.items()} for name, of in best.items()}
    print(f"{options.model} on {options.dataset}, {os.cpu_count()} cores")
    for name, of in best.items():
        cells = [f"{value:10,.0f} {key.replace('_per_', '/')} ({ratios[name][key]:.2f})" for key, value in of.items()]
        print(f"{name:24}", *cells)
    out = ROOT / "benchmarks" / "out" / "processes.json"
    out.parent.mkdir(exist_ok=True)
    content = {"options": vars(options), "cores": os.cpu_count(), "best": best, "ratios": ratios, "runs": measured}
    out.write_text(json.dumps(content, indent=1) + "\n")
    print(out)


if __name__ == "__main__":
    main()
