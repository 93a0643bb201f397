"""One pass over validation or test users: ranks of the targets and RecBole's own metrics, at full precision."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from recbole.evaluator import Evaluator
from recbole.evaluator.collector import DataStruct
from torch import Tensor
from tqdm import tqdm

from recbole_diffgrm.data.loader import EvalLoader
from recbole_diffgrm.evaluation.ranking import mask_scores, target_ranks, top_items


@dataclass(frozen=True)
class Evaluation:
    metrics: dict[str, float]  # such as ndcg@10, unrounded
    ranks: Tensor  # [users] int32 rank of each user's target from 1, in the order of the data set's samples
    top: Tensor | None  # [users, k] int32 item ids, best first


@torch.inference_mode()
def evaluate(
    config,
    model,
    loader: EvalLoader,
    keep: int = 0,
    label: str = "Evaluate",
    check_stop: Callable[[], None] = lambda: None,
) -> Evaluation:
    """`keep` top items per user are kept."""
    evaluator = Evaluator(config)
    needs = {need for metric in evaluator.metric_class.values() for need in metric.metric_need}
    longest = max(config["topk"])
    width = max(keep, longest if "rec.items" in needs else 0)
    count = len(loader.samples)
    ranks = torch.zeros(count, dtype=torch.int32)
    top = torch.zeros(count, width, dtype=torch.int32) if width else None

    model.eval()
    quiet = None if config["show_progress"] else True  # None: quiet unless on a terminal
    with tqdm(total=count, desc=label, unit="user", disable=quiet, leave=False) as bar:
        for index, batch in loader:
            check_stop()
            interaction = batch.interaction.to(config["device"])
            scores = model.full_sort_predict(interaction).view(len(index), -1).float()
            scores = mask_scores(scores, batch.seen)
            ranks[index] = target_ranks(scores, batch.target.to(scores.device)).cpu()
            if width:
                items = top_items(scores, width).int().cpu()
                top[index, : items.shape[1]] = items
            bar.update(len(index))

    collected = DataStruct()
    collected.set("rec.topk", _hits(ranks, longest))
    if "rec.items" in needs:
        collected.set("rec.items", top[:, :longest].long())
    collected.set("data.num_items", loader.dataset.item_num)
    collected.set("data.count_items", loader.item_counts)
    metrics = {name: float(value) for name, value in evaluator.evaluate(collected).items()}
    return Evaluation(metrics, ranks, top[:, :keep] if keep else None)


def _hits(ranks: Tensor, longest: int) -> Tensor:
    """RecBole's rec.topk: [users, longest + 1], 1 at the target's place, and the number of targets (one) at the end."""
    places = torch.arange(1, longest + 1)
    hits = (ranks[:, None] == places).int()  # [users, longest]
    return torch.cat((hits, torch.ones(len(ranks), 1, dtype=torch.int32)), 1)
