"""Are semantic IDs (SIDs) equal on other processors? Each is emulated by environment variables that choose code paths.

    python benchmarks/sid_reproducibility.py [--dataset NAME --data_path FOLDER] [--synthetic 5000]
        [--quantizers opq pq ...] [--environments native avx2 ...]

Every environment makes everything anew in a separate process: embeddings by the bundled encoder, whitened points,
codes, and unique SIDs. Each stage is compared with that of the first environment: the largest difference of embeddings
and of points, and the share of items whose codes and SIDs differ. The numbers are also in benchmarks/out.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from tabulate import tabulate

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
NUM_DIGITS, CODEBOOK_SIZE, PCA_DIM, SEED = 4, 256, 256, 2020

AVX2 = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_CBWR": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "OPENBLAS_CORETYPE": "Haswell",
    "FAISS_OPT_LEVEL": "avx2",
    "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR",
}
SSE = {
    "ATEN_CPU_CAPABILITY": "default",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "MKL_CBWR": "COMPATIBLE",
    "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    "OPENBLAS_CORETYPE": "Nehalem",
    "FAISS_OPT_LEVEL": "generic",
    "NPY_DISABLE_CPU_FEATURES": AVX2["NPY_DISABLE_CPU_FEATURES"] + " X86_V3",
}
ENVIRONMENTS = {
    "native": {"OMP_NUM_THREADS": "1"},
    "2 threads": {"OMP_NUM_THREADS": "2"},
    "avx2": AVX2 | {"OMP_NUM_THREADS": "1"},
    "sse": SSE | {"OMP_NUM_THREADS": "1"},
    "skylake": {"OPENBLAS_CORETYPE": "SkylakeX", "OMP_NUM_THREADS": "1"},
}


def measure(options: argparse.Namespace, out: Path) -> None:
    """In a separate process: the arrays of every stage to a .npz, and what each took."""
    arrays: dict[str, np.ndarray] = {}
    about: dict[str, dict] = {"seconds": {}, "error": {}}
    if options.synthetic:
        _measure_synthetic(options, arrays, about)
    else:
        _measure_dataset(options, arrays, about, out.with_suffix(""))
    np.savez(out, about=np.array(json.dumps(about)), **arrays)


def _measure_synthetic(options: argparse.Namespace, arrays: dict, about: dict) -> None:
    from benchmarks.tokenizer import write_embeddings
    from recbole_diffgrm.tokenizer.quantizers import QUANTIZERS

    path = options.out.with_suffix(".npy")
    write_embeddings(path, options.synthetic, seed=0)
    vectors = np.load(path)
    arrays["embeddings"], arrays["points"] = vectors, _whiten(vectors)
    for name in options.quantizers:
        kind = QUANTIZERS[name]
        if kind.vectors_from == "interactions":
            continue
        started = time.monotonic()
        further = {"rq_vae_epochs": 10, "rq_vae_latent_dim": 32} if kind.keys else {}
        quantizer = kind.fit(vectors, NUM_DIGITS, CODEBOOK_SIZE, PCA_DIM, SEED, **further)
        inputs = vectors if kind.vectors_from else np.arange(len(vectors)).astype(str)
        arrays[f"codes {name}"] = quantizer.encode(inputs)
        about["seconds"][name] = time.monotonic() - started
        if kind.vectors_from:
            points = quantizer.transform(vectors)
            about["error"][name] = float(quantizer.errors(points, arrays[f"codes {name}"]).mean())


def _measure_dataset(options: argparse.Namespace, arrays: dict, about: dict, cache_dir: Path) -> None:
    from recbole_diffgrm.data.dataset import load_dataset
    from recbole_diffgrm.data.splits import make_split
    from recbole_diffgrm.models import build_config
    from recbole_diffgrm.tokenizer.embedding_sources import text_source
    from recbole_diffgrm.tokenizer.pipeline import tokenize
    from recbole_diffgrm.tokenizer.split_items import SplitItems

    settings = {"cache_dir": str(cache_dir), "sid_text_encoder": "bundled", "show_progress": False}
    settings |= {"data_path": options.data_path} if options.data_path else {}
    settings |= {"sid_num_digits": NUM_DIGITS, "sid_codebook_size": CODEBOOK_SIZE, "sid_seed": SEED}

    def configure(**changes):
        return build_config("HistoryCopy", options.dataset, overrides=settings | changes)

    split = make_split(configure(), load_dataset(configure()))
    items = SplitItems.from_split(split)
    started = time.monotonic()
    embedded = text_source(configure(), items.item_ids).load()
    about["seconds"]["embeddings"] = time.monotonic() - started
    arrays["embeddings"] = np.asarray(embedded.vectors)
    arrays["points"] = _whiten(arrays["embeddings"])
    for name in options.quantizers:
        started = time.monotonic()
        tokenized = tokenize(configure(sid_quantizer=name, sid_collisions="reassign"), split)
        about["seconds"][name] = time.monotonic() - started
        about["error"][name] = tokenized.report["quantization_error"]
        arrays[f"codes {name}"], arrays[f"SIDs {name}"] = tokenized.tokenizer.codes, tokenized.tokenizer.sids


def _whiten(vectors: np.ndarray) -> np.ndarray:
    from recbole_diffgrm.tokenizer.whitening import Whitening

    return Whitening.fit(vectors, PCA_DIM).apply(vectors)


def compare(first: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> dict[str, float]:
    """{stage: largest difference of vectors, or share of items whose codes differ}"""
    differences = {}
    for stage, expected in first.items():
        if expected.dtype.kind == "f":
            differences[stage] = float(np.abs(other[stage] - expected).max())
        else:
            differences[stage] = float((other[stage] != expected).any(axis=1).mean())
    return differences


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dataset", default="ml-100k")
    parser.add_argument("--data_path")
    parser.add_argument("--synthetic", type=int, default=0, help="this many synthetic embeddings instead of a dataset")
    parser.add_argument("--quantizers", nargs="+", default=["opq", "pq", "rq_kmeans", "rq_vae", "svd", "random"])
    parser.add_argument("--environments", nargs="+", default=list(ENVIRONMENTS), choices=list(ENVIRONMENTS))
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.out:
        measure(options, options.out)
        return

    from recbole_diffgrm.experiments.environment import describe
    from recbole_diffgrm.files import write_json

    measured: dict[str, dict] = {}
    first: dict[str, np.ndarray] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(options.environments):
            out = Path(folder) / f"{number}.npz"
            command = [sys.executable, __file__, *sys.argv[1:], "--out", str(out)]
            subprocess.run(command, check=True, env=os.environ | ENVIRONMENTS[name], stdout=subprocess.DEVNULL)
            with np.load(out) as saved:
                stages = {stage: saved[stage] for stage in saved.files if stage != "about"}
                measured[name] = json.loads(str(saved["about"]))
            first = first or stages
            measured[name]["differences"] = compare(first, stages)
            print(f"{name} done", file=sys.stderr)
    stages = list(first)
    body = [[name, *(_cell(of["differences"][stage]) for stage in stages)] for name, of in measured.items()]
    print(tabulate(body, ["", *stages], disable_numparse=True), "\n")
    parts = list(next(iter(measured.values()))["seconds"])
    body = [[name, *(f"{of['seconds'][part]:.1f}" for part in parts)] for name, of in measured.items()]
    body += [["error", *(_cell(next(iter(measured.values()))["error"].get(part)) for part in parts)]]
    print(tabulate(body, ["seconds", *parts], disable_numparse=True))
    folder = ROOT / "benchmarks" / "out"
    folder.mkdir(exist_ok=True)
    data = f"synthetic-{options.synthetic}" if options.synthetic else options.dataset
    content = {"data": data, "measured": measured, "environment": describe()}
    write_json(content, folder / f"sid_reproducibility-{data}.json")


def _cell(value: float | None) -> str:
    return "" if value is None else "0" if value == 0 else f"{value:.4g}"


if __name__ == "__main__":
    main()
