"""What two processes do together. Started by tests/test_processes.py:

torchrun --nnodes=2 --nproc_per_node=1 ... -m tests.processes_harness DATA_FOLDER WORK_FOLDER

Runs commands one after the other, some of them with a fault on one process, and writes what came of each to
WORK_FOLDER/rank-<n>.json.
"""

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from recbole_diffgrm import checkpoint, processes
from recbole_diffgrm.cli.main import main
from recbole_diffgrm.experiments import pipeline
from recbole_diffgrm.tokenizer import text_encoder
from recbole_diffgrm.training import exchange, trainer

MODELS = ("SASRec", "DiffGRM", "RPG", "S3Rec", "Pop")
# 318 samples: the last batch is one of a single sample, and one process has none of it.
SETTINGS = {"MAX_ITEM_LIST_LENGTH": 10, "use_gpu": False, "show_progress": False, "train_batch_size": 317}


def command(data: Path, work: Path, **options: object) -> list[str]:
    """Arguments of a run without dropout."""
    files = {"config_files": f"{data / 'tiny.yaml'} {work / 'no_dropout.yaml'}"}
    options = {"dataset": "tiny", "data_path": data, **files, "epochs": 3, **SETTINGS, **options}
    return [f"--{key}" if value is True else f"--{key}={value}" for key, value in options.items()]


FROM_TEXT = {"model": "DiffGRM", "epochs": 1, "sid_quantizer": "rq_kmeans", "sid_text_fields": "[title]"}


class StubEncoder:
    device = "cpu"

    def get_embedding_dimension(self) -> int:
        return 8


@contextmanager
def stub_encoder() -> Iterator[list[str]]:
    """Instead of a sentence encoder, which takes seconds to load. Gives the texts that it has encoded."""
    encoded: list[str] = []

    def encode(model, texts):
        encoded.extend(texts)
        seeds = [int.from_bytes(text.encode(), "big") for text in texts]
        return np.stack([np.random.default_rng(seed).normal(size=8).astype(np.float32) for seed in seeds])

    originals = text_encoder.load, text_encoder.encode
    text_encoder.load, text_encoder.encode = lambda *arguments: StubEncoder(), encode
    try:
        yield encoded
    finally:
        text_encoder.load, text_encoder.encode = originals


class Fault:
    """At the step of this number, on one process."""

    def __init__(self, rank: int, step: int, act):
        self.rank, self.step, self.act, self.done = rank, step, act, 0

    def __enter__(self) -> None:
        self.original = trainer.Trainer._step

        def step(made, batch, rate):
            self.done += 1
            if (processes.rank(), self.done) == (self.rank, self.step):
                self.act(made)
            return self.original(made, batch, rate)

        trainer.Trainer._step = step

    def __exit__(self, *rest) -> None:
        trainer.Trainer._step = self.original


def send(number: int):
    return lambda made: os.kill(os.getpid(), number)


def lose_a_weight(made) -> None:
    """A loss that is not a number, on this process only."""
    original = made.losses

    def losses(batch):
        made.losses = original
        output = original(batch)
        return output._replace(parts={name: part * float("nan") for name, part in output.parts.items()})

    made.losses = losses


def run_all(data: Path, work: Path) -> dict[str, object]:
    out: dict[str, object] = {}
    out["compare"] = main(command(data, work, model=",".join(MODELS), output_dir=work / "two"))
    run = next((work / "two" / "tiny").glob("SASRec-*"))
    out["retest"] = main([f"--retest={run}", "--topk=[3]", f"--output_dir={work / 'retest'}"])

    # A signal on one process in the middle of the second epoch; all stop there, and go on.
    stopped = command(data, work, model="SASRec", output_dir=work / "stopped", train_batch_size=53)
    fault = Fault(1, 9, send(signal.SIGTERM))
    with fault:
        out["signal"] = main(stopped)
    out["steps"] = fault.done
    out["resume"] = main([*stopped, "--resume"])

    # A signal on one process while another is in validation
    original = pipeline.evaluate

    def interrupted(*arguments, **options):
        if processes.rank() == 0:
            os.kill(os.getpid(), signal.SIGINT)
        return original(*arguments, **options)

    pipeline.evaluate = interrupted
    tested = command(data, work, model="SASRec", output_dir=work / "tested", eval_batch_size=4)
    out["signal in test"] = main(tested)
    pipeline.evaluate = original
    out["test again"] = main([*tested, "--resume"])

    with stub_encoder() as encoded:
        out["encode"] = main(command(data, work, output_dir=work / "encoded", cache_dir=work / "cache", **FROM_TEXT))
    out["texts"] = encoded

    with Fault(1, 2, lose_a_weight):
        out["nan"] = main(command(data, work, model="SASRec", output_dir=work / "nan"))

    def full(*arguments):
        raise OSError(28, "No space left on device")

    save, checkpoint.save = checkpoint.save, full
    out["full disk"] = main(command(data, work, model="SASRec", output_dir=work / "full"))

    def broken(*arguments):  # as torch's own save fails, with no error of a user's
        raise RuntimeError("the writer is broken")

    checkpoint.save = broken
    out["broken in a comparison"] = main(command(data, work, model="Pop,SASRec", output_dir=work / "broken"))
    checkpoint.save = save
    # The gradient of what no process has a sample for, and of what only one has
    out["messages"] = exchange_gradients()
    processes._leave()
    out["threads"] = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    return out


def exchange_gradients() -> list[object]:
    import torch

    from recbole_diffgrm.models.base import LossOutput

    rank = processes.rank()
    used, once, never = (torch.nn.Parameter(torch.zeros(2)) for _ in range(3))
    loss = (used * (1 + rank)).sum() + (once.sum() if rank else 0)
    loss.backward()
    output = LossOutput({"a": torch.tensor(1.0 + rank)}, num_targets=3 - 2 * rank)  # 3 and 1
    facts = exchange.exchange([used, once, never], output, True, signal.SIGINT * rank, rank == 0)
    return [used.grad.tolist(), once.grad.tolist(), never.grad, facts.losses["a"], *facts[1:]]


if __name__ == "__main__":
    data_folder, work_folder = map(Path, sys.argv[1:])
    answer = run_all(data_folder, work_folder)
    (work_folder / f"rank-{processes.rank()}.json").write_text(json.dumps(answer))
