"""Time and memory of semantic IDs against the size of the catalogue: fit, assign, and an ID of its own for every item.

    python benchmarks/tokenizer.py [--sizes 10000 100000 1000000]

Embeddings are synthetic: 256 dimensions, clusters within clusters as text has them, so that items collide. Reference:
faiss alone (`OPQ4_256,PQ4x8`, trained on as many vectors, all cores), which fits and assigns but leaves collisions.
Every size is a process of its own, and so is the reference: peak memory is what that process held.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from tabulate import tabulate

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
DIMENSIONS, DIGITS, CODES = 256, 4, 256
SPREAD = 3.0  # of a family; chosen so that about as many items share an ID as in Amazon_Beauty


def write_embeddings(path: Path, items: int, seed: int) -> None:
    """Families of ten items on average, families in 1,000 topics; the members of a family are more or less alike."""
    draw = np.random.default_rng(seed)
    families = items // 10
    topics = draw.standard_normal((1000, DIMENSIONS), np.float32)
    centres = topics[draw.integers(0, len(topics), families)]
    centres += 0.7 * draw.standard_normal((families, DIMENSIONS), np.float32)
    vectors = np.lib.format.open_memmap(path, "w+", np.float32, (items, DIMENSIONS))
    for start in range(0, items, 65536):
        count = min(65536, items - start)
        unlike = draw.exponential(SPREAD, (count, 1)).astype(np.float32)
        block = centres[draw.integers(0, families, count)]
        block += unlike * draw.standard_normal((count, DIMENSIONS), np.float32)
        vectors[start : start + count] = block / np.linalg.norm(block, axis=1, keepdims=True)
    vectors.flush()


def measure(path: Path) -> dict:
    """In a process of its own."""
    from recbole_diffgrm.running.environment import peak_memory_mib, reset_peak_memory
    from recbole_diffgrm.tokenizer import collisions, quantiser
    from recbole_diffgrm.tokenizer.artefact import quantise, resolve
    from recbole_diffgrm.tokenizer.vectors import ItemVectors

    vectors = np.load(path, mmap_mode="r")
    items = ItemVectors(np.arange(len(vectors)).astype(str), np.arange(len(vectors)), vectors)
    settings = {"sid_digits": DIGITS, "sid_codes": CODES, "sid_collisions": "reassign", "sid_seed": 0}
    reset_peak_memory()
    seconds = {}
    started = time.monotonic()
    fitted = quantiser.fit("opq", vectors, DIGITS, CODES, DIMENSIONS, 0)
    seconds["fit"] = time.monotonic() - started
    started = time.monotonic()
    codes = quantise(settings, fitted, items)
    seconds["assign"] = time.monotonic() - started
    started = time.monotonic()
    sids = resolve(settings, fitted, items, codes, codes[:0])
    seconds["reassign"] = time.monotonic() - started
    distinct = len(np.unique(collisions.keys(codes, CODES)))
    assert len(np.unique(collisions.keys(sids, CODES))) == len(sids)
    assert (sids != codes).any(axis=1).sum() == len(codes) - distinct
    return {
        "items": len(vectors),
        "distinct_before": distinct,
        "largest_group": int(collisions.group_sizes(codes, CODES).max()),
        "seconds": seconds,
        "peak_mib": peak_memory_mib(),
    }


def measure_reference(path: Path) -> dict:
    import faiss

    from recbole_diffgrm.running.environment import peak_memory_mib, reset_peak_memory
    from recbole_diffgrm.tokenizer.quantiser import TRAINING_POINTS

    vectors = np.load(path, mmap_mode="r")
    reset_peak_memory()
    started = time.monotonic()
    index = faiss.index_factory(DIMENSIONS, f"OPQ{DIGITS}_{DIMENSIONS},PQ{DIGITS}x8")
    index.train(np.asarray(vectors[:TRAINING_POINTS]))
    fit = time.monotonic() - started
    started = time.monotonic()
    for start in range(0, len(vectors), 65536):
        index.sa_encode(np.asarray(vectors[start : start + 65536]))
    return {"seconds": {"fit": fit, "assign": time.monotonic() - started}, "peak_mib": peak_memory_mib()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--measure", choices=["ours", "reference"], help=argparse.SUPPRESS)
    parser.add_argument("--path", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps((measure if options.measure == "ours" else measure_reference)(options.path)))
        return

    from recbole_diffgrm.files import write_json
    from recbole_diffgrm.running.environment import describe

    rows, results = [], []
    with tempfile.TemporaryDirectory() as folder:
        for size in options.sizes:
            path = Path(folder) / "embeddings.npy"
            write_embeddings(path, size, seed=0)
            ours, reference = (_measured(kind, path) for kind in ("ours", "reference"))
            results.append({"ours": ours, "reference": reference})
            seconds, of_faiss = ours["seconds"], reference["seconds"]
            rows.append(
                [
                    f"{size:,}",
                    f"{ours['distinct_before']:,}",
                    *(f"{seconds[step]:.1f}" for step in ("fit", "assign", "reassign")),
                    f"{sum(seconds.values()):.1f}",
                    f"{ours['peak_mib']:,.0f}",
                    f"{(seconds['fit'] + seconds['assign']) / sum(of_faiss.values()):.2f}x",
                    f"{reference['peak_mib']:,.0f}",
                ]
            )
            print(f"{size:,} items done", file=sys.stderr)
    head = ["items", "distinct before", "fit, s", "assign, s", "reassign, s", "total, s", "peak, MiB"]
    print(tabulate(rows, [*head, "fit + assign vs faiss", "faiss peak, MiB"], disable_numparse=True))
    out = ROOT / "benchmarks" / "out"
    out.mkdir(exist_ok=True)
    write_json({"results": results, "environment": describe()}, out / "tokenizer.json")


def _measured(kind: str, path: Path) -> dict:
    command = [sys.executable, __file__, "--measure", kind, "--path", str(path)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
