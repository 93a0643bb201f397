"""One pass over validation or test users: ranks of the targets and RecBole's own metrics, at full precision.

A model either scores all items (RecBole's full_sort_predict) or, with a method `rank`, gives lists of the best ones
itself, by way of semantic IDs; no [users, items] matrix is made then, and ranks of IDs come beside those of items.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from recbole.evaluator import Evaluator
from recbole.evaluator.collector import DataStruct
from torch import Tensor
from tqdm import tqdm

from recbole_diffgrm import compat
from recbole_diffgrm.data.loader import EvalLoader
from recbole_diffgrm.evaluation.ranking import NOT_RANKED, mask_scores, place_in, target_ranks, top_items
from recbole_diffgrm.evaluation.sid_level import IdCounts, sid_metrics
from recbole_diffgrm.evaluation.significance import TESTED_K


@dataclass(frozen=True)
class Evaluation:
    metrics: dict[str, float]  # such as ndcg@10, unrounded; sid_*: hits on IDs, all others: on items
    ranks: Tensor  # [users] int32 rank of each user's target from 1, in the order of the data set's samples
    top: Tensor | None  # [users, k] int32 item ids, best first
    sid_ranks: Tensor | None = None  # [users] int32 rank of the target's ID
    sid_shares: dict[str, float] = field(default_factory=dict)


@torch.inference_mode()
def evaluate(
    config,
    model,
    loader: EvalLoader,
    keep: int = 0,
    label: str = "Evaluate",
    check_stop: Callable[[], None] = lambda: None,
    validation: bool = False,
) -> Evaluation:
    """`keep` top items per user are kept. `validation`: a model may spend less on each user than in the test."""
    evaluator = Evaluator(config)
    needs = {need for metric in evaluator.metric_class.values() for need in metric.metric_need}
    longest = max(config["topk"])
    keep = min(keep, loader.dataset.item_num - 1)
    width = max(keep, longest if "rec.items" in needs else 0)
    count = len(loader.samples)
    ranks = torch.full((count,), NOT_RANKED, dtype=torch.int32)
    top = torch.zeros(count, width, dtype=torch.int32) if width else None
    makes_lists = compat.makes_lists(type(model))
    sid_ranks = ranks.clone() if makes_lists else None
    counts = IdCounts(longest)

    model.eval()
    quiet = None if config["show_progress"] else True  # None: quiet unless on a terminal
    with tqdm(total=count, desc=label, unit="user", disable=quiet, leave=False) as bar:
        for index, batch in loader:
            check_stop()
            interaction, target = batch.interaction.to(config["device"]), batch.target.to(config["device"])
            seen = batch.seen and tuple(part.to(config["device"]) for part in batch.seen)
            if makes_lists:
                lists = model.rank(interaction, max(width, longest, TESTED_K), seen, validation)
                items = lists.items
                ranks[index] = place_in(items, target).cpu()
                sid_ranks[index] = place_in(lists.rows, model.catalogue.row[target]).cpu()
                counts.add(lists, model.catalogue.group_size(target))
            else:
                scores = model.full_sort_predict(interaction).view(len(index), -1).float()
                scores = mask_scores(scores, seen)
                ranks[index] = target_ranks(scores, target).cpu()
                items = top_items(scores, width) if width else None
            if width:
                top[index, : min(width, items.shape[1])] = items[:, :width].int().cpu()
            bar.update(len(index))

    collected = DataStruct()
    collected.set("rec.topk", _hits(ranks, longest))
    if "rec.items" in needs:
        collected.set("rec.items", top[:, :longest].long())
    collected.set("data.num_items", loader.dataset.item_num)
    collected.set("data.count_items", loader.item_counts)
    metrics = {name: float(value) for name, value in evaluator.evaluate(collected).items()}
    top = top[:, :keep] if keep else None
    if not makes_lists:
        return Evaluation(metrics, ranks, top)
    return Evaluation(metrics | sid_metrics(sid_ranks, config["topk"]), ranks, top, sid_ranks, counts.shares())


def _hits(ranks: Tensor, longest: int) -> Tensor:
    """RecBole's rec.topk: [users, longest + 1], 1 at the target's place, and the number of targets (one) at the end."""
    places = torch.arange(1, longest + 1)
    hits = (ranks[:, None] == places).int()  # [users, longest]
    return torch.cat((hits, torch.ones(len(ranks), 1, dtype=torch.int32)), 1)
