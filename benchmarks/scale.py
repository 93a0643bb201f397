"""Peak memory and time of what a run does, for catalogues of millions of items.

    python benchmarks/scale.py [--sizes 1000000:10000000 ...] [--slopes 100000:1000000 ...] [--memory 24] [--minutes 30]
                               [--cpu_time]

A size is ITEMS:INTERACTIONS. The data are synthetic: 10 interactions per user; every item occurs, and what is left over
is sampled from a long tail; embeddings of 384 dimensions in float16. Every stage runs in a process of its own, which
first does, unmeasured, what comes before it:

    load       .inter to flat arrays, and the split
    tokenize   semantic IDs (OPQ, 4 digits of 256 codes) of all items from ready embeddings, nothing cached
    catalogue  the table of semantic IDs and the lattice that beam search follows
    step       one training step of DiffGRM with the item head (--preset=item,item-small without text), 128 sequences
    evaluate   a test of 64 drawn users with the same model
    start      all of a second run up to its first step, from the start of Python, with a warm cache

Sizes in --slopes are measured first. A stage of another size is measured, too, unless the slopes say that it takes more
than --memory GiB or --minutes; then what they say is reported, marked ~. Writes benchmarks/out/scale.json.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

STAGES = ("load", "tokenize", "catalogue", "step", "evaluate", "start")
DIM = 384
BLOCK = 1_000_000
PER_USER = 10
EVALUATED = 64  # users
SIZES = ["1000000:10000000", "1000000:100000000", "10000000:10000000", "10000000:100000000"]
SLOPES = ["100000:1000000", "100000:10000000", "1000000:1000000"]


def write_data(folder: Path, items: int, interactions: int) -> None:
    import numpy as np

    generator = np.random.default_rng(0)
    folder.mkdir()
    with (folder / "synthetic.inter").open("w") as file:
        file.write("user_id:token\titem_id:token\ttimestamp:float\n")
        for start in range(0, interactions, BLOCK):
            row = np.arange(start, min(start + BLOCK, interactions))
            tail = (generator.random(len(row)) ** 2 * items).astype(np.int64)
            # Each item once, spread over the users; a prime of 8 digits shares no factor with the number of rows.
            place = row * 15_485_863 % interactions
            item, user = np.where(place < items, place, tail), row // PER_USER
            moment = 1_000_000_000 + row % PER_USER * 86_400
            lines = zip(user.tolist(), item.tolist(), moment.tolist())
            file.writelines(f"U{u:08}\tB{i:08}\t{t}\n" for u, i, t in lines)
    with (folder / "synthetic.item").open("w") as file:
        file.write("item_id:token\ttitle:token_seq\n")
        file.writelines(f"B{i:08}\tThe title of an item, number {i}\n" for i in range(items))
    with (folder / "embeddings.npy").open("wb") as file:
        header = {"descr": "<f2", "fortran_order": False, "shape": (items, DIM)}
        np.lib.format.write_array_header_1_0(file, header)
        for start in range(0, items, BLOCK // 10):
            size = min(BLOCK // 10, items - start)
            file.write(generator.standard_normal((size, DIM), dtype=np.float32).astype(np.float16).tobytes())
    (folder / "embeddings.ids.txt").write_text("".join(f"B{i:08}\n" for i in range(items)))


def configure(folder: Path) -> Any:
    from recbole_diffgrm.models import build_config

    settings = {
        "data_path": str(folder),
        "cache_dir": str(folder / "cache"),
        "output_dir": str(folder / "runs"),
        "sid_text_encoder": str(folder / "synthetic" / "embeddings.npy"),
        "item_text": False,
        "train_batch_size": 128,
        "num_test_users": EVALUATED,
        "show_progress": False,
    }
    return build_config("DiffGRM", "synthetic", overrides=settings, presets="item,item-small")


class Measured:
    """Time and peak memory of a block."""

    def __enter__(self) -> "Measured":
        from recbole_diffgrm.experiments.environment import reset_peak_memory

        reset_peak_memory()
        self.started = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *error: Any) -> None:
        from recbole_diffgrm.experiments.environment import peak_memory_mib

        self.seconds = time.perf_counter() - self.started[0]
        self.cpu_seconds = time.process_time() - self.started[1]
        self.peak_mib = peak_memory_mib()


def run_stage(stage: str, folder: Path) -> dict[str, float]:
    config = configure(folder)
    measured = Measured()
    if stage == "start":
        _start(config, measured)
    else:
        _prepare_and_run(stage, config, measured)
    return {"seconds": measured.seconds, "cpu_seconds": measured.cpu_seconds, "peak_mib": measured.peak_mib}


def _prepare_and_run(stage: str, config: Any, measured: Measured) -> None:
    import numpy as np
    import torch

    from recbole_diffgrm import memory
    from recbole_diffgrm.data.dataset import load_dataset
    from recbole_diffgrm.data.loader import EvalLoader, TrainLoader
    from recbole_diffgrm.data.splits import make_split, sample_test_users
    from recbole_diffgrm.evaluation.evaluator import evaluate
    from recbole_diffgrm.experiments.item_data import attach_item_data
    from recbole_diffgrm.generation.semantic_ids import SemanticIds
    from recbole_diffgrm.models.base import users_per_batch
    from recbole_diffgrm.tokenizer.pipeline import tokenize

    torch.manual_seed(0)
    if stage == "load":
        with measured:
            make_split(config, load_dataset(config))
        return
    split = make_split(config, load_dataset(config))
    memory.release_freed_memory()
    if stage == "tokenize":
        with measured:
            tokenize(config, split)
        return
    if stage == "catalogue":
        sids = torch.from_numpy(tokenize(config, split).tokenizer.table(split.item_ids).astype(np.int64))
        memory.release_freed_memory()
        with measured:
            SemanticIds.build(torch.cat([sids[:1], sids]), config["sid_codebook_size"], split.popularity).with_lattice()
        return
    attach_item_data(config, split)
    model = config.model_class(config, split.train)
    memory.release_freed_memory()
    if stage == "step":
        optimizer = torch.optim.AdamW(model.parameters())
        batches = TrainLoader(config, split.train, trim=True).batches(0)
        _step(model, optimizer, next(batches))  # the first makes the optimizer's state
        with measured:
            _step(model, optimizer, next(batches))
    else:
        part = sample_test_users(config, split)
        loader = EvalLoader(config, part, trim=True, batch_size=users_per_batch(config, part.item_num))
        with measured:
            evaluate(config, model, loader)


def _step(model: Any, optimizer: Any, batch: Any) -> None:
    optimizer.zero_grad()
    sum(model.losses(batch).parts.values()).backward()
    optimizer.step()


def _start(config: Any, measured: Measured) -> None:
    """The clock is that of the process, which began to import before this file did."""
    from recbole_diffgrm.experiments.pipeline import run_config
    from recbole_diffgrm.training.trainer import Trainer

    class Started(Exception):
        pass

    def stop(*_: Any) -> None:
        raise Started

    Trainer._step = stop  # type: ignore[method-assign]
    try:
        with measured:
            run_config(config)
    except Started:
        pass
    measured.seconds, measured.cpu_seconds = time.time() - _process_start(), time.process_time()


def _process_start() -> float:
    """Seconds since 1970."""
    after_boot = float(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19]) / 100
    return time.time() - float(Path("/proc/uptime").read_text().split()[0]) + after_boot


def measure(items: int, interactions: int, wanted: list[str], minutes: float) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    if not wanted:
        return found
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_data(folder / "synthetic", items, interactions)
        for stage in STAGES:
            needed = stage in wanted or (stage == "tokenize" and {*wanted} - {"load"})  # the cache of later ones
            if not needed:
                continue
            command = [sys.executable, __file__, "--stage", stage, name]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=60 * minutes)
            except subprocess.TimeoutExpired:
                print(f"{items:,} items, {stage}: stopped after {minutes:g} minutes", flush=True)
                continue
            if done.returncode:
                error = (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1]
                print(f"{items:,} items, {stage}: {error}", flush=True)
                continue
            found[stage] = {"measured": True, **json.loads(done.stdout.splitlines()[-1])}
            row = found[stage]
            sizes = f"{items:>12,} items {interactions:>13,} interactions"
            times = f"{row['seconds']:8.1f} s ({row['cpu_seconds']:.1f} s of the processor)"
            print(f"{sizes} {stage:10} {times} {row['peak_mib']:8,.0f} MiB", flush=True)
    return found


def predict(rows: list[dict[str, Any]], stage: str, items: int, interactions: int) -> dict[str, Any] | None:
    """Time and memory of a stage, linear in both sizes, from the measured rows."""
    import numpy as np

    known = [row for row in rows if row["stages"].get(stage, {}).get("measured")]
    if len(known) < 3:
        return None
    sizes = np.array([[1, row["items"], row["interactions"]] for row in known], float)
    predicted: dict[str, Any] = {"measured": False}
    for name in ("seconds", "cpu_seconds", "peak_mib"):
        values = np.array([row["stages"][stage][name] for row in known])
        # Relative errors count: else the largest size alone would decide.
        slopes = np.linalg.lstsq(sizes / values[:, None], np.ones(len(values)), rcond=None)[0]
        predicted[name] = float(max(0.0, slopes @ [1, items, interactions]))
    return predicted


def run_sizes(slopes: list[str], sizes: list[str], memory: float, minutes: float) -> list[dict[str, Any]]:
    from recbole_diffgrm.experiments.environment import describe
    from recbole_diffgrm.files import write_json

    rows: list[dict[str, Any]] = []
    for number, size in enumerate(dict.fromkeys([*slopes, *sizes])):
        items, interactions = map(int, size.split(":"))
        wanted, told = [], {}
        for stage in STAGES:
            guess = None if number < len(slopes) else predict(rows, stage, items, interactions)
            too_large = guess and (guess["peak_mib"] > 1024 * memory or guess["seconds"] > 60 * minutes)
            if guess and too_large:
                told[stage] = guess
            else:
                wanted.append(stage)
        measured = measure(items, interactions, wanted, minutes)
        for stage in set(wanted) - set(measured):
            told |= {stage: guess} if (guess := predict(rows, stage, items, interactions)) else {}
        rows.append({"items": items, "interactions": interactions, "stages": measured | told})
        out = ROOT / "benchmarks" / "out"
        out.mkdir(exist_ok=True)
        write_json({"rows": rows, "environment": describe()}, out / "scale.json")  # now: all of them take hours
    return rows


def format_rows(rows: list[dict[str, Any]], time: str) -> str:
    from recbole_diffgrm.experiments.results_table import format_table

    def cell(row: dict[str, Any], stage: str) -> str:
        found = row["stages"].get(stage)
        if not found:
            return "-"
        return f"{'' if found['measured'] else '~'}{found[time]:.1f} s, {found['peak_mib'] / 1024:.1f} GiB"

    body = [[f"{row['items']:,}", f"{row['interactions']:,}", *(cell(row, s) for s in STAGES)] for row in rows]
    return format_table(body, ["items", "interactions", *STAGES])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="*", default=SIZES)
    parser.add_argument("--slopes", nargs="*", default=SLOPES)
    parser.add_argument("--memory", type=float, default=24, help="GiB that a stage may take")
    parser.add_argument("--minutes", type=float, default=30, help="that a stage may take")
    parser.add_argument("--cpu_time", action="store_true", help="in the table: that of the processor, where it is busy")
    parser.add_argument("--stage", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.stage:
        print(json.dumps(run_stage(options.stage[0], Path(options.stage[1]))))
        return

    rows = run_sizes(options.slopes, options.sizes, options.memory, options.minutes)
    print(format_rows(rows, "cpu_seconds" if options.cpu_time else "seconds"))


if __name__ == "__main__":
    main()
