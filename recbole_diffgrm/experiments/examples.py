"""examples.json of a run: a few test users with their history, their target and what is recommended to them and, where
the model generates semantic IDs step by step, how each recommended one was denoised. Made while model and data are in
memory, for the report; no result depends on it."""

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from recbole_diffgrm.config.recbole_config import Config
from recbole_diffgrm.data.dataset import FlatSequentialDataset
from recbole_diffgrm.data.loader import EvalBatch, EvalLoader
from recbole_diffgrm.data.splits import sample_users
from recbole_diffgrm.evaluation.evaluator import asked_ranking
from recbole_diffgrm.experiments.item_table import Items
from recbole_diffgrm.files import reading, write_json
from recbole_diffgrm.generation.denoising import trace

EXAMPLES_FILE = "examples.json"
NUM_USERS = 8
LIST_LENGTH = 10
SHOWN_HISTORY = 12  # the most recent items


@torch.inference_mode()
def save(config: Config, model: Any, test_set: FlatSequentialDataset, items: Items, run_dir: Path) -> Path:
    """The same users for every model and seed."""
    chosen = sample_users(test_set, NUM_USERS, seed=0)
    row_in_test = torch.nonzero(torch.isin(test_set.inter_feat.rows, chosen.inter_feat.rows)).flatten()
    loader = EvalLoader(config, chosen, config.model_class.variable_length, batch_size=1)
    users = np.atleast_1d(chosen.id2token(chosen.uid_field, chosen.inter_feat[chosen.uid_field])).tolist()
    model.eval()
    examples = {}
    for index, batch in loader:
        row = int(row_in_test[index])
        examples[row] = {"user": users[int(index)], "row": row} | _describe(config, model, batch, items)
    ordered = [examples[row] for row in sorted(examples)][:NUM_USERS]  # a user may have several targets
    write_json({"ranking": asked_ranking(config), "examples": ordered}, run_dir / EXAMPLES_FILE)
    return run_dir / EXAMPLES_FILE


def load(run_dir: Path) -> dict[str, Any]:
    """Without examples where a run has none."""
    path = run_dir / EXAMPLES_FILE
    if not path.exists():
        return {"ranking": "", "examples": []}
    with reading(path):
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return content


def _describe(config: Config, model: Any, batch: EvalBatch, items: Items) -> dict[str, Any]:
    interaction, seen = batch.interaction.to(config["device"]), [part.to(config["device"]) for part in batch.seen]
    k = min(LIST_LENGTH, len(items.names) - 1)
    exclude = None if config["repeatable"] else (seen[0], seen[1])
    top = model.candidates(interaction, k).top_k(k, exclude)
    pairs = [(item, score) for item, score in zip(top.items[0].tolist(), top.scores[0].tolist()) if item]
    history, target = batch.seen[1].tolist(), int(batch.target)
    return {
        "history": [items.labels[item] for item in history[-SHOWN_HISTORY:]],
        "history_length": len(history),
        "target": items.labels[target],
        "recommended": [
            {
                "item": items.names[item],
                "title": items.labels[item],
                "score": score if math.isfinite(score) else None,  # a popular item that fills the list
                "is_target": item == target,
                "is_seen": item in history,
                "denoising": denoising,
            }
            for (item, score), denoising in zip(pairs, _trace(model, interaction, items, [item for item, _ in pairs]))
        ],
    }


def _trace(model: Any, interaction: Any, items: Items, recommended: list[int]) -> list[dict[str, Any] | None]:
    if not model.generates_stepwise:
        return [None] * len(recommended)
    numbers = torch.tensor(recommended, dtype=torch.int64, device=model.semantic_ids.sids.device)
    sids = [tuple(sid) for sid in model.semantic_ids.lookup(numbers).tolist()]
    return [asdict(one) for one in trace(model, interaction, items.labels, sids)]
