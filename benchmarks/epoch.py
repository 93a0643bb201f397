"""One training epoch of SASRec through this project against stock RecBole, and the test metrics of the same weights.

    python benchmarks/epoch.py --data_path FOLDER            FOLDER holds Amazon_Beauty/Amazon_Beauty.inter

Stock RecBole is `recbole.config`, `recbole.data` and `recbole.trainer` as they are, in a process of its own (this
project patches some of RecBole's code when it loads a model). Both have the same settings, data, seed, threads. Writes
benchmarks/out/epoch.json.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

SETTINGS = {"train_batch_size": 2048, "MAX_ITEM_LIST_LENGTH": 50, "topk": [5, 10], "seed": 2020}


def stock(options, weights: Path) -> dict:
    """Train an epoch, save the weights, test them."""
    import torch

    import recbole_diffgrm.recbole_compat  # noqa: F401  (names that numpy 2 removed)
    from recbole.config import Config  # isort: skip
    from recbole.data import create_dataset, data_preparation
    from recbole.trainer import Trainer
    from recbole.utils import get_model, init_logger, init_seed

    sys.argv = sys.argv[:1]
    os.chdir(weights.parent)  # RecBole writes logs into the working directory
    config = Config(
        model="SASRec",
        dataset=options.dataset,
        config_dict={
            **SETTINGS,
            "data_path": options.data_path,
            "load_col": {"inter": ["user_id", "item_id", "timestamp"]},
            "train_neg_sample_args": None,
            "eval_args": {"split": {"LS": "valid_and_test"}, "order": "TO", "mode": "full", "group_by": "user"},
            "metrics": ["Recall", "NDCG", "Hit", "MRR"],
            "valid_metric": "NDCG@10",
            "show_progress": False,
            "checkpoint_dir": str(weights.parent),
            "metric_decimal_place": 12,
        },
    )
    init_logger(config)
    started = time.perf_counter()
    init_seed(config["seed"], True)
    train, _, test = data_preparation(config, create_dataset(config))
    loading = time.perf_counter() - started
    init_seed(config["seed"], True)
    model = get_model("SASRec")(config, train.dataset)
    trainer = Trainer(config, model)
    started = time.perf_counter()
    trainer._train_epoch(train, 0)
    training = time.perf_counter() - started
    torch.save({"state_dict": model.state_dict()}, weights)
    started = time.perf_counter()
    metrics = trainer.evaluate(test, load_best_model=False)
    return measured(loading, training, time.perf_counter() - started, metrics)


def project(options, weights: Path) -> dict:
    """Train an epoch; then test the weights that stock RecBole trained."""
    from recbole.utils import init_seed

    from recbole_diffgrm import memory
    from recbole_diffgrm.checkpoint import load
    from recbole_diffgrm.data.dataset import FlatSequentialDataset
    from recbole_diffgrm.data.loader import EvalLoader, TrainLoader
    from recbole_diffgrm.evaluation.evaluator import evaluate
    from recbole_diffgrm.models import build_config
    from recbole_diffgrm.models.base import users_per_batch
    from recbole_diffgrm.training.signals import StopSignal
    from recbole_diffgrm.training.trainer import Progress, Trainer

    config = build_config(
        "SASRec",
        options.dataset,
        overrides={**SETTINGS, "data_path": options.data_path, "show_progress": False, **layers_of_stock()},
    )
    started = time.perf_counter()
    train_set, _, test_set = FlatSequentialDataset(config).build()
    train = TrainLoader(config, train_set, trim=True)
    test = EvalLoader(config, test_set, trim=True, batch_size=users_per_batch(config, test_set.item_num))
    loading = time.perf_counter() - started
    memory.keep_freed_memory()
    init_seed(config["seed"], True)
    model = config.model_class(config, train_set)
    trainer = Trainer(config, model, weights.parent, None, StopSignal(weights.parent), Progress())
    started = time.perf_counter()
    trainer._train_epoch(train, epochs=1)
    training = time.perf_counter() - started
    model.load_state_dict(load(weights)["state_dict"])
    started = time.perf_counter()
    metrics = evaluate(config, model, test)["all"].metrics
    return measured(loading, training, time.perf_counter() - started, metrics)


def layers_of_stock() -> dict:
    """SASRec as RecBole configures it, whatever this project's files say."""
    from recbole_diffgrm.config.layers import read_yaml
    from recbole_diffgrm.recbole_compat import recbole_dir

    return read_yaml(recbole_dir() / "properties" / "model" / "SASRec.yaml")


def measured(loading: float, training: float, testing: float, metrics: dict) -> dict:
    import resource

    import torch

    return {
        "loading_s": loading,
        "epoch_s": training,
        "test_s": testing,
        "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "threads": torch.get_num_threads(),
        "test": {name: float(value) for name, value in metrics.items()},
    }


def measure(side: str, options, weights: Path) -> dict:
    command = [sys.executable, __file__, "--side", side, "--weights", str(weights), "--dataset", options.dataset]
    command += ["--data_path", options.data_path]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_path", default="dataset")
    parser.add_argument("--dataset", default="Amazon_Beauty")
    parser.add_argument("--side", choices=["stock", "project"], help=argparse.SUPPRESS)
    parser.add_argument("--weights", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.data_path = str(Path(options.data_path).resolve())
    if options.side:
        print(json.dumps({"stock": stock, "project": project}[options.side](options, options.weights)))
        return

    from recbole_diffgrm.experiments.environment import describe
    from recbole_diffgrm.files import write_json

    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / "weights.pt"
        print("stock RecBole: one epoch takes minutes ...", flush=True)
        theirs = measure("stock", options, weights)
        ours = measure("project", options, weights)
    difference = max(abs(ours["test"][name] - theirs["test"][name]) for name in theirs["test"])
    report = {
        "command": "python benchmarks/epoch.py " + " ".join(sys.argv[1:]),
        "dataset": options.dataset,
        "settings": SETTINGS,
        "stock": theirs,
        "project": ours,
        "epoch_speedup": theirs["epoch_s"] / ours["epoch_s"],
        "loading_speedup": theirs["loading_s"] / ours["loading_s"],
        "memory_ratio": theirs["peak_memory_mib"] / ours["peak_memory_mib"],
        "largest_metric_difference": difference,
        "environment": describe(),
    }
    out = ROOT / "benchmarks" / "out"
    out.mkdir(exist_ok=True)
    write_json(report, out / "epoch.json")
    for name in ("loading_s", "epoch_s", "test_s", "peak_memory_mib"):
        print(
            f"{name:16} stock {theirs[name]:9.1f}   project {ours[name]:9.1f}   ratio {theirs[name] / ours[name]:6.2f}"
        )
    print(f"test metrics of the same weights: largest difference {difference:.2e}")


if __name__ == "__main__":
    main()
