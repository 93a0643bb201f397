"""Semantic IDs (SIDs) from text and from what is bought together, for the study (properties/study/Amazon_Beauty.yaml).

    python benchmarks/collaborative_ids.py --data_path FOLDER [--dataset Amazon_Beauty] [--output FILE.sid]

Items that follow each other in training sequences, at most 5 positions apart, count 1 / distance. The positive
pointwise mutual information of these counts is factorized to 128 numbers per item; they are joined to the whitened
vector of the item's text (128 numbers), each part of length 1, and quantized as they are. Every item gets a unique SID.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import svds

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

DIM = 128  # of each part
MAX_DISTANCE = 5


def count_pairs(user: np.ndarray, item: np.ndarray, num_items: int) -> sparse.csr_array:
    """[num_items, num_items], symmetric. Interactions are ordered by user and time."""
    table = sparse.csr_array((num_items, num_items))
    for distance in range(1, MAX_DISTANCE + 1):
        same = user[distance:] == user[:-distance]
        pair = item[:-distance][same], item[distance:][same]
        table += sparse.coo_array((np.full(len(pair[0]), 1 / distance), pair), shape=(num_items, num_items)).tocsr()
    return table + table.T


def ppmi(table: sparse.csr_array) -> sparse.csr_array:
    """Positive pointwise mutual information of the counts."""
    cells = table.tocoo()
    row, column = cells.coords
    total = np.asarray(table.sum(axis=1)).ravel()
    values = np.log(cells.data * total.sum() / (total[row] * total[column]))
    return sparse.coo_array((np.maximum(values, 0), cells.coords), shape=cells.shape).tocsr()


def normalize(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)


def main() -> None:
    from recbole_diffgrm.data.dataset import load_dataset
    from recbole_diffgrm.data.splits import make_split
    from recbole_diffgrm.models import build_config
    from recbole_diffgrm.tokenizer import report
    from recbole_diffgrm.tokenizer.pipeline import tokenize
    from recbole_diffgrm.tokenizer.text_vectors import text_vectors

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="Amazon_Beauty")
    parser.add_argument("--data_path", default="dataset")
    parser.add_argument("--output", type=Path, help="default: cache/DATASET.collaborative.sid")
    options = parser.parse_args()
    output = options.output or Path("cache") / f"{options.dataset}.collaborative.sid"

    settings = {"data_path": options.data_path, "sid_text_encoder": "bundled", "sid_pca_dim": DIM}
    config = build_config("HistoryCopy", options.dataset, overrides=settings)
    split = make_split(config, load_dataset(config))
    text = text_vectors(config, split)
    flat, rows = split.dataset.inter_feat.flat, split.training_rows
    table = count_pairs(flat.user[rows].numpy(), flat.item[rows].numpy(), split.dataset.item_num)
    left, strength, _ = svds(ppmi(table), k=DIM, random_state=0)
    collaborative = normalize(left * np.sqrt(strength))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vectors.npz"
        vectors = np.concatenate([text, collaborative], axis=1)[1:].astype(np.float32)
        np.savez(path, item_id=split.item_ids, embedding=vectors)
        settings |= {"sid_text_encoder": str(path), "sid_pca_dim": None, "sid_collisions": "reassign"}
        tokenized = tokenize(build_config("HistoryCopy", options.dataset, overrides=settings), split)
        print(report.format_table(tokenized.report))
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_bytes((tokenized.folder / f"{options.dataset}.sid").read_bytes())
    print(f"\n{output}")


if __name__ == "__main__":
    main()
