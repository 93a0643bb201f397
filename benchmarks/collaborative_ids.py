"""Semantic IDs out of text and of what is bought together, for the study (properties/study/Amazon_Beauty.yaml).

    python benchmarks/collaborative_ids.py --data_path FOLDER [--dataset Amazon_Beauty] [--output FILE.sid]

Items that follow each other in training sequences, at most 5 places apart, count 1 / distance. The positive pointwise
mutual information of these counts is factorised to 128 numbers an item; they are joined to the whitened vector of the
item's text (128 numbers), each part of length 1, and quantised as they are. Every item gets an ID of its own.
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

DIMENSIONS = 128  # of each part
REACH = 5


def counts(user: np.ndarray, item: np.ndarray, items: int) -> sparse.csr_array:
    """[items, items], symmetric. Interactions are ordered by user and time."""
    table = sparse.csr_array((items, items))
    for distance in range(1, REACH + 1):
        same = user[distance:] == user[:-distance]
        pair = item[:-distance][same], item[distance:][same]
        table += sparse.coo_array((np.full(len(pair[0]), 1 / distance), pair), shape=(items, items)).tocsr()
    return table + table.T


def ppmi(table: sparse.csr_array) -> sparse.csr_array:
    cells = table.tocoo()
    row, column = cells.coords
    of_item = np.asarray(table.sum(axis=1)).ravel()
    values = np.log(cells.data * of_item.sum() / (of_item[row] * of_item[column]))
    return sparse.coo_array((np.maximum(values, 0), cells.coords), shape=cells.shape).tocsr()


def of_length_one(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)


def main() -> None:
    from recbole_diffgrm.config.config import build_config
    from recbole_diffgrm.data.dataset import load_dataset
    from recbole_diffgrm.data.sequences import training_rows
    from recbole_diffgrm.tokenizer import report
    from recbole_diffgrm.tokenizer.features import text_vectors
    from recbole_diffgrm.tokenizer.prepare import prepare

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="Amazon_Beauty")
    parser.add_argument("--data_path", default="dataset")
    parser.add_argument("--output", type=Path, help="default: cache/DATASET.collaborative.sid")
    options = parser.parse_args()
    output = options.output or Path("cache") / f"{options.dataset}.collaborative.sid"

    given = {"data_path": options.data_path, "sid_encoder": "bundled", "sid_pca_dim": DIMENSIONS}
    config = build_config("DiffGRM", options.dataset, overrides=given)
    dataset = load_dataset(config)
    parts = dataset.build()
    text = text_vectors(config, dataset, parts)
    flat = dataset.inter_feat.flat
    rows = training_rows(flat, [part.inter_feat for part in parts[1:]])
    table = counts(flat.user[rows].numpy(), flat.item[rows].numpy(), dataset.item_num)
    left, strength, _ = svds(ppmi(table), k=DIMENSIONS, random_state=0)
    together = of_length_one(left * np.sqrt(strength))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vectors.npz"
        names = dataset.id2token(dataset.iid_field, np.arange(1, dataset.item_num))
        vectors = np.concatenate([text, together], axis=1)[1:].astype(np.float32)
        np.savez(path, item_id=names.astype(str), embedding=vectors)
        given |= {"sid_encoder": str(path), "sid_pca_dim": None, "sid_collisions": "reassign"}
        prepared = prepare(build_config("DiffGRM", options.dataset, overrides=given), dataset, parts)
        print(report.table(prepared.report))
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_bytes((prepared.folder / f"{options.dataset}.sid").read_bytes())
    print(f"\n{output}")


if __name__ == "__main__":
    main()
