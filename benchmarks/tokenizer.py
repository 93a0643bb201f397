"""Time and memory of semantic IDs (SIDs) by number of items: fit, encode, and a unique SID for every item.

    python benchmarks/tokenizer.py [--sizes 10000 100000 1000000]

Embeddings are synthetic: 256 dimensions, clusters within clusters as text has them, so that items collide. Reference:
faiss alone (`OPQ4_256,PQ4x8`, trained on as many vectors, all cores), which fits and encodes but leaves collisions.
Every size runs in a separate process, and so does the reference: peak memory is what that process held.
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
DIM, NUM_DIGITS, CODEBOOK_SIZE = 256, 4, 256
SPREAD = 3.0  # of a family; chosen so that about as many items share a SID as in Amazon_Beauty


def write_embeddings(path: Path, num_items: int, seed: int) -> None:
    """Families of ten items on average, families in 1,000 topics; members of a family differ more or less."""
    random = np.random.default_rng(seed)
    num_families = num_items // 10
    topics = random.standard_normal((1000, DIM), np.float32)
    centers = topics[random.integers(0, len(topics), num_families)]
    centers += 0.7 * random.standard_normal((num_families, DIM), np.float32)
    vectors = np.lib.format.open_memmap(path, "w+", np.float32, (num_items, DIM))
    for start in range(0, num_items, 65536):
        count = min(65536, num_items - start)
        distance = random.exponential(SPREAD, (count, 1)).astype(np.float32)
        block = centers[random.integers(0, num_families, count)]
        block += distance * random.standard_normal((count, DIM), np.float32)
        vectors[start : start + count] = block / np.linalg.norm(block, axis=1, keepdims=True)
    vectors.flush()


def measure(path: Path) -> dict:
    """In a separate process."""
    from recbole_diffgrm.experiments.environment import peak_memory_mib, reset_peak_memory
    from recbole_diffgrm.tokenizer import collisions
    from recbole_diffgrm.tokenizer.embeddings import ItemVectors
    from recbole_diffgrm.tokenizer.item_codes import encode_items, resolve_collisions
    from recbole_diffgrm.tokenizer.quantizers import QUANTIZERS

    vectors = np.load(path, mmap_mode="r")
    items = ItemVectors(np.arange(len(vectors)).astype(str), np.arange(len(vectors)), vectors)
    settings = {"sid_num_digits": NUM_DIGITS, "sid_codebook_size": CODEBOOK_SIZE, "sid_seed": 0}
    settings["sid_collisions"] = "reassign"
    reset_peak_memory()
    seconds = {}
    started = time.monotonic()
    quantizer = QUANTIZERS["opq"].fit(vectors, NUM_DIGITS, CODEBOOK_SIZE, DIM, 0)
    seconds["fit"] = time.monotonic() - started
    started = time.monotonic()
    codes = encode_items(settings, quantizer, items)
    seconds["encode"] = time.monotonic() - started
    started = time.monotonic()
    sids = resolve_collisions(settings, quantizer, items, codes, codes[:0])
    seconds["reassign"] = time.monotonic() - started
    distinct = len(np.unique(collisions.to_keys(codes, CODEBOOK_SIZE)))
    assert len(np.unique(collisions.to_keys(sids, CODEBOOK_SIZE))) == len(sids)
    assert (sids != codes).any(axis=1).sum() == len(codes) - distinct
    return {
        "num_items": len(vectors),
        "distinct_before": distinct,
        "largest_group": int(collisions.group_sizes(codes, CODEBOOK_SIZE).max()),
        "seconds": seconds,
        "peak_mib": peak_memory_mib(),
    }


def measure_reference(path: Path) -> dict:
    import faiss

    from recbole_diffgrm.experiments.environment import peak_memory_mib, reset_peak_memory
    from recbole_diffgrm.tokenizer.quantizers.codebook import MAX_TRAINING_VECTORS

    vectors = np.load(path, mmap_mode="r")
    reset_peak_memory()
    started = time.monotonic()
    index = faiss.index_factory(DIM, f"OPQ{NUM_DIGITS}_{DIM},PQ{NUM_DIGITS}x8")
    index.train(np.asarray(vectors[:MAX_TRAINING_VECTORS]))
    fit = time.monotonic() - started
    started = time.monotonic()
    for start in range(0, len(vectors), 65536):
        index.sa_encode(np.asarray(vectors[start : start + 65536]))
    return {"seconds": {"fit": fit, "encode": time.monotonic() - started}, "peak_mib": peak_memory_mib()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--measure", choices=["ours", "reference"], help=argparse.SUPPRESS)
    parser.add_argument("--path", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps((measure if options.measure == "ours" else measure_reference)(options.path)))
        return

    from recbole_diffgrm.experiments.environment import describe
    from recbole_diffgrm.files import write_json

    rows, results = [], []
    with tempfile.TemporaryDirectory() as folder:
        for size in options.sizes:
            path = Path(folder) / "embeddings.npy"
            write_embeddings(path, size, seed=0)
            ours, reference = (_measure_in_process(kind, path) for kind in ("ours", "reference"))
            results.append({"ours": ours, "reference": reference})
            seconds, of_faiss = ours["seconds"], reference["seconds"]
            rows.append(
                [
                    f"{size:,}",
                    f"{ours['distinct_before']:,}",
                    *(f"{seconds[step]:.1f}" for step in ("fit", "encode", "reassign")),
                    f"{sum(seconds.values()):.1f}",
                    f"{ours['peak_mib']:,.0f}",
                    f"{(seconds['fit'] + seconds['encode']) / sum(of_faiss.values()):.2f}x",
                    f"{reference['peak_mib']:,.0f}",
                ]
            )
            print(f"{size:,} items done", file=sys.stderr)
    head = ["items", "distinct before", "fit, s", "encode, s", "reassign, s", "total, s", "peak, MiB"]
    print(tabulate(rows, [*head, "fit + encode vs faiss", "faiss peak, MiB"], disable_numparse=True))
    out = ROOT / "benchmarks" / "out"
    out.mkdir(exist_ok=True)
    write_json({"results": results, "environment": describe()}, out / "tokenizer.json")


def _measure_in_process(kind: str, path: Path) -> dict:
    command = [sys.executable, __file__, "--measure", kind, "--path", str(path)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
