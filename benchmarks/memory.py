"""Peak memory and time of loading, splitting and cutting batches at 10 M interactions, with RecBole's layout beside it.

    python benchmarks/memory.py [--interactions 10000000]

The data are synthetic: 9 interactions per user, as in Amazon_Beauty, and items sampled from a long tail. Each size
runs in a process of its own. RecBole's padded copies are not made (they would take 8 GB): their size is computed from
its layout (a row of 50 int64 items and 50 float32 times per sample). Writes benchmarks/out/memory.json.
"""

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))


def write_interactions(path: Path, count: int) -> None:
    import numpy as np

    generator = np.random.default_rng(0)
    users = count // 9
    with path.open("w") as file:
        file.write("user_id:token\titem_id:token\ttimestamp:float\n")
        for start in range(0, count, 1_000_000):
            size = min(1_000_000, count - start)
            user = generator.integers(users, size=size)
            item = (generator.random(size) ** 2 * users / 2).astype(int)
            moment = generator.integers(1_000_000_000, 1_400_000_000, size)
            file.writelines(f"U{u:07}\tB{i:07}\t{t}\n" for u, i, t in zip(user, item, moment))


def load(folder: Path) -> dict:
    import resource

    def peak() -> float:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    from recbole_diffgrm.data.dataset import FlatSequentialDataset
    from recbole_diffgrm.data.loader import TrainLoader
    from recbole_diffgrm.models import build_config

    config = build_config("SASRec", "synthetic", overrides={"data_path": str(folder)})
    before = peak()
    started = time.perf_counter()
    dataset = FlatSequentialDataset(config)
    train, _, _ = dataset.build()
    loading = time.perf_counter() - started
    started = time.perf_counter()
    loader = TrainLoader(config, train, trim=True)
    samples = sum(len(batch) for batch in itertools.islice(loader.batches(0), 500))
    return {
        "interactions": len(dataset.inter_feat),
        "users": dataset.user_num - 1,
        "items": dataset.item_num - 1,
        "imports_mib": before,
        "peak_mib": peak(),
        "loading_s": loading,
        "samples_cut_per_s": samples / (time.perf_counter() - started),
        "recbole_padded_mib": (len(dataset.inter_feat) - dataset.user_num) * 50 * (8 + 4) / 2**20,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--interactions", type=int, default=10_000_000)
    parser.add_argument("--load", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.load:
        print(json.dumps(load(options.load)))
        return

    from recbole_diffgrm.experiments.environment import describe
    from recbole_diffgrm.files import write_json

    rows = []
    for count in (options.interactions // 100, options.interactions // 10, options.interactions):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "synthetic").mkdir()
            write_interactions(Path(folder) / "synthetic" / "synthetic.inter", count)
            command = [sys.executable, __file__, "--load", folder]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            rows.append(json.loads(done.stdout.splitlines()[-1]))
        row = rows[-1]
        print(
            f"{row['interactions']:>12,} interactions: "
            f"peak {row['peak_mib']:5.0f} MiB (imports {row['imports_mib']:.0f}), "
            f"loaded in {row['loading_s']:6.1f} s, {row['samples_cut_per_s']:,.0f} samples cut a second; "
            f"RecBole's padded copies alone {row['recbole_padded_mib']:,.0f} MiB",
            flush=True,
        )
    out = ROOT / "benchmarks" / "out"
    out.mkdir(exist_ok=True)
    write_json({"rows": rows, "environment": describe()}, out / "memory.json")


if __name__ == "__main__":
    main()
