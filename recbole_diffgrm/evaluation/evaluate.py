"""One pass over validation or test users: ranks of the targets and RecBole's own metrics, at full precision.

A model either scores all items (RecBole's full_sort_predict) or, with a method `rank`, gives lists of the best ones
itself, by way of semantic IDs, and ranks of IDs come beside those of items.

There are two rankings: of all items (RecBole's), and of those that are new to the user. Where nobody buys twice the
first one mostly measures who ranks bought items last, so a test reports both.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from recbole.evaluator import Evaluator
from recbole.evaluator.collector import DataStruct
from torch import Tensor
from tqdm import tqdm

from recbole_diffgrm import compat
from recbole_diffgrm.data.loader import EvalLoader
from recbole_diffgrm.decoding.scores import mask_scores, top_items
from recbole_diffgrm.evaluation.ranking import NOT_RANKED, place_in, target_ranks
from recbole_diffgrm.evaluation.sid_level import IdCounts, sid_metrics
from recbole_diffgrm.evaluation.significance import TESTED_K


@dataclass(frozen=True)
class Evaluation:
    metrics: dict[str, float]  # such as ndcg@10, unrounded; sid_*: hits on IDs, all others: on items
    ranks: Tensor  # [users] int32 rank of each user's target from 1, in the order of the data set's samples
    top: Tensor | None  # [users, k] int32 item ids, best first
    sid_ranks: Tensor | None = None  # [users] int32 rank of the target's ID
    sid_shares: dict[str, float] = field(default_factory=dict)


def evaluate(
    config,
    model,
    loader: EvalLoader,
    keep: int = 0,
    label: str = "Evaluate",
    check_stop: Callable[[], None] = lambda: None,
    validation: bool = False,
) -> Evaluation:
    """With the ranking that `repeatable` asks for. `keep` top items per user are kept. `validation`: a model may spend
    less on each user than in the test."""
    leave_out = not config["repeatable"]
    return evaluate_rankings(config, model, loader, [leave_out], keep, label, check_stop, validation)[0]


@torch.inference_mode()
def evaluate_rankings(
    config,
    model,
    loader: EvalLoader,
    leave_out_history: Sequence[bool],
    keep: int = 0,
    label: str = "Evaluate",
    check_stop: Callable[[], None] = lambda: None,
    validation: bool = False,
) -> list[Evaluation]:
    """One evaluation for each of `leave_out_history`, out of one pass of the model. False comes before True: what has
    been left out of the scores stays out."""
    if list(leave_out_history) != sorted(leave_out_history):
        raise ValueError("rankings that leave nothing out come first")
    makes_lists = compat.makes_lists(type(model))
    # Lists are kept of the first ranking only.
    tallies = [_Tally(config, loader, 0 if number else keep, makes_lists) for number in range(len(leave_out_history))]
    model.eval()
    quiet = None if config["show_progress"] else True  # None: quiet unless on a terminal
    with tqdm(total=len(loader.samples), desc=label, unit="user", disable=quiet, leave=False) as bar:
        for index, batch in loader:
            check_stop()
            interaction, target = batch.interaction.to(config["device"]), batch.target.to(config["device"])
            seen = tuple(part.to(config["device"]) for part in batch.seen)
            if makes_lists:
                found = model.find(interaction, validation)
            else:
                scores = model.full_sort_predict(interaction).view(len(index), -1).float()
            for leave_out, tally in zip(leave_out_history, tallies):
                hidden = seen if leave_out else None
                if makes_lists:
                    tally.add_lists(index, target, model.lists(found, tally.list_length, hidden), model.catalogue)
                else:
                    tally.add_scores(index, target, mask_scores(scores, hidden))
            bar.update(len(index))
    return [tally.evaluation() for tally in tallies]


class _Tally:
    """What one ranking gives, user by user."""

    def __init__(self, config, loader: EvalLoader, keep: int, makes_lists: bool):
        self.config, self.loader = config, loader
        self.evaluator = Evaluator(config)
        self.needs = {need for metric in self.evaluator.metric_class.values() for need in metric.metric_need}
        self.longest = max(config["topk"])
        self.keep = min(keep, loader.dataset.item_num - 1)
        self.width = max(self.keep, self.longest if "rec.items" in self.needs else 0)
        self.list_length = max(self.width, self.longest, TESTED_K)
        users = len(loader.samples)
        self.ranks = torch.full((users,), NOT_RANKED, dtype=torch.int32)
        self.top = torch.zeros(users, self.width, dtype=torch.int32)
        self.sid_ranks = self.ranks.clone() if makes_lists else None
        self.counts = IdCounts(self.longest)

    def add_scores(self, index: Tensor, target: Tensor, scores: Tensor) -> None:
        self.ranks[index] = target_ranks(scores, target).cpu()
        if self.width:
            self._add_top(index, top_items(scores, self.width))

    def add_lists(self, index: Tensor, target: Tensor, lists, catalogue) -> None:
        self.ranks[index] = place_in(lists.items, target).cpu()
        self.sid_ranks[index] = place_in(lists.rows, catalogue.row[target]).cpu()
        self.counts.add(lists, catalogue.group_size(target))
        self._add_top(index, lists.items[:, : self.width])

    def _add_top(self, index: Tensor, items: Tensor) -> None:
        self.top[index, : items.shape[1]] = items.int().cpu()

    def evaluation(self) -> Evaluation:
        collected = DataStruct()
        collected.set("rec.topk", _hits(self.ranks, self.longest))
        if "rec.items" in self.needs:
            collected.set("rec.items", self.top[:, : self.longest].long())
        collected.set("data.num_items", self.loader.dataset.item_num)
        collected.set("data.count_items", self.loader.item_counts)
        metrics = {name: float(value) for name, value in self.evaluator.evaluate(collected).items()}
        top = self.top[:, : self.keep] if self.keep else None
        if self.sid_ranks is None:
            return Evaluation(metrics, self.ranks, top)
        metrics |= sid_metrics(self.sid_ranks, self.config["topk"])
        return Evaluation(metrics, self.ranks, top, self.sid_ranks, self.counts.shares())


def _hits(ranks: Tensor, longest: int) -> Tensor:
    """RecBole's rec.topk: [users, longest + 1], 1 at the target's place, and the number of targets (one) at the end."""
    places = torch.arange(1, longest + 1)
    hits = (ranks[:, None] == places).int()  # [users, longest]
    return torch.cat((hits, torch.ones(len(ranks), 1, dtype=torch.int32)), 1)
