"""One pass over validation or test targets: ranks of the targets and RecBole's own metrics, at full precision.

A model's candidates are computed once per batch and ranked in one or two ways (evaluation.ranks).
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

import torch
from recbole.evaluator import Evaluator
from recbole.evaluator.collector import DataStruct
from torch import Tensor

from recbole_diffgrm import processes
from recbole_diffgrm.config.recbole_config import Config
from recbole_diffgrm.data.loader import EvalLoader, to_device
from recbole_diffgrm.errors import divergence_error
from recbole_diffgrm.evaluation.rank_metrics import calculate_metrics
from recbole_diffgrm.evaluation.ranks import rank_name
from recbole_diffgrm.evaluation.sid_metrics import sid_metrics, sid_shares
from recbole_diffgrm.evaluation.significance import TESTED_K
from recbole_diffgrm.generation.item_ranking import SeenPairs
from recbole_diffgrm.models.base import ModelInterface
from recbole_diffgrm.models.candidates import NOT_RANKED, Candidates, unique_pairs
from recbole_diffgrm.progress import progress_bar


@dataclass(frozen=True)
class Evaluation:
    """Of one ranking."""

    metrics: dict[str, float]  # such as ndcg@10, unrounded; sid_*: hits on SIDs, all others: on items
    ranks: Tensor  # [targets] int32 rank of each target item from 1, in the order of the dataset's samples
    top: Tensor | None  # [targets, k] int32 item numbers, best first
    sid_ranks: Tensor | None = None  # [targets] int32 rank of the target's SID
    sid_shares: dict[str, float] = field(default_factory=dict)

    def named_ranks(self, ranking: str) -> dict[str, Tensor]:
        """By level and ranking, as in ranks.npz."""
        named = {rank_name("item", ranking): self.ranks}
        return named if self.sid_ranks is None else named | {rank_name("sid", ranking): self.sid_ranks}


def asked_ranking(config: Config) -> str:
    """The ranking that `repeatable` asks for: validation and saved lists use it."""
    return "all" if config["repeatable"] else "unseen"


@torch.inference_mode()
def evaluate(
    config: Config,
    model: ModelInterface,
    loader: EvalLoader,
    rankings: Sequence[str] = (),
    save_top: int = 0,
    label: str = "evaluation",
    check_stop: Callable[[], None] = lambda: None,
    validation: bool = False,
) -> dict[str, Evaluation]:
    """{ranking: evaluation} from one pass of the model; by default of the ranking asked for alone. The `save_top` best
    items of each user are kept for the first ranking. `validation`: a model may spend less on each user. Of several
    processes each ranks its share of the targets, and all have the whole result."""
    rankings = rankings or [asked_ranking(config)]
    has_sids = model.needs_sids(config) and loader.negatives is None  # sampled items have no ranking of SIDs
    tallies = {
        ranking: _Tally(config, loader, 0 if number else save_top, has_sids) for number, ranking in enumerate(rankings)
    }
    depth = max(tally.depth for tally in tallies.values())
    model.eval()
    shown = {"desc": label, "unit": "target", "leave": False, "show": config["show_progress"]}
    with progress_bar(total=len(processes.share(loader.order)), **shown) as bar:
        for _, own in zip_longest(range(len(loader)), loader):
            check_stop()
            index, batch = own or (None, None)  # one process may have a batch less than another
            device = config["device"]
            candidates = None
            if batch is not None:
                histories = to_device(batch.interaction, device, config["ITEM_LIST_LENGTH_FIELD"])
                candidates = model.candidates(histories, depth, validation)
            if processes.greatest(candidates is not None and not candidates.is_finite()):
                raise divergence_error(f"scores are NaN or infinite in {label}")
            if index is None or batch is None or candidates is None:
                continue
            target = batch.target.to(device)
            seen = (batch.seen[0].to(device), batch.seen[1].to(device))
            negatives = None if batch.negatives is None else batch.negatives.to(device)
            for ranking, tally in tallies.items():
                tally.add(index, target, candidates, seen if ranking == "unseen" else None, negatives)
            bar.update(len(index))
    return {ranking: tally.evaluation() for ranking, tally in tallies.items()}


class _Tally:
    """The results of one ranking, user by user."""

    def __init__(self, config: Config, loader: EvalLoader, save_top: int, has_sids: bool):
        self.config, self.loader = config, loader
        self.evaluator = Evaluator(config)
        self.needs = {need for metric in self.evaluator.metric_class.values() for need in metric.metric_need}
        self.longest = max(config["topk"])
        self.save_top = min(save_top, loader.dataset.item_num - 1)
        self.width = max(self.save_top, self.longest if "rec.items" in self.needs else 0)
        self.depth = max(self.width, self.longest, TESTED_K)
        num_targets = len(loader.samples)
        self.ranks = torch.full((num_targets,), NOT_RANKED, dtype=torch.int32)
        self.sid_ranks = self.ranks.clone() if has_sids else None
        self.mean_rank = torch.zeros(num_targets, 3, dtype=torch.float64) if "rec.meanrank" in self.needs else None
        self.top = torch.zeros(num_targets, self.width, dtype=torch.int32)
        self.sid_counts: Counter[str] = Counter()

    def add(
        self,
        index: Tensor,
        target: Tensor,
        candidates: Candidates,
        exclude: SeenPairs | None,
        negatives: Tensor | None,
    ) -> None:
        if negatives is None:
            ranks = candidates.target_rank(target, exclude)
        else:
            ranks = candidates.sampled_target_rank(target, negatives, exclude)
        self.ranks[index] = ranks.cpu()
        if self.mean_rank is not None:
            ranks = ranks if negatives is not None else candidates.full_target_rank(target, exclude)
            self.mean_rank[index] = _mean_rank(ranks, self._count_ranked(exclude, negatives, len(target)))
        if self.sid_ranks is not None:
            sid_ranks = candidates.sid_target_rank(target, exclude)
            assert sid_ranks is not None
            self.sid_ranks[index] = sid_ranks.cpu()
            self.sid_counts.update(candidates.count_sids(target, self.longest, exclude))
        if self.width:
            items = candidates.top_k(self.width, exclude).items
            self.top[index, : items.shape[1]] = items.int().cpu()

    def _count_ranked(self, exclude: SeenPairs | None, negatives: Tensor | None, num_targets: int) -> Tensor:
        """[B] items in the ranking of each target."""
        num_items: int = self.loader.dataset.item_num
        if negatives is not None:
            return torch.full((num_targets,), negatives.shape[1] + 1)
        if exclude is None:
            return torch.full((num_targets,), num_items - 1)
        return num_items - 1 - torch.bincount(unique_pairs(exclude, num_items)[0].cpu(), minlength=num_targets)

    def evaluation(self) -> Evaluation:
        processes.least(self.ranks)
        if self.sid_ranks is not None:
            processes.least(self.sid_ranks)
        for zero_elsewhere in (self.mean_rank, self.top):
            if zero_elsewhere is not None and zero_elsewhere.numel():
                processes.add_up(zero_elsewhere)
        own, self.sid_counts = self.sid_counts, Counter()
        for counts in processes.every(own):
            self.sid_counts.update(counts)
        metrics = processes.from_first(self._metrics)
        top = self.top[:, : self.save_top] if self.save_top else None
        if self.sid_ranks is None:
            return Evaluation(metrics, self.ranks, top)
        return Evaluation(metrics, self.ranks, top, self.sid_ranks, sid_shares(self.sid_counts, self.longest))

    def _metrics(self) -> dict[str, float]:
        collected = DataStruct()
        if "rec.items" in self.needs:
            collected.set("rec.items", self.top[:, : self.longest].long())
        if self.mean_rank is not None:
            collected.set("rec.meanrank", self.mean_rank)
        collected.set("data.num_items", self.loader.dataset.item_num)
        collected.set("data.count_items", self.loader.item_counts)
        metrics = calculate_metrics(self.evaluator, self.ranks, self.longest, collected)
        return metrics if self.sid_ranks is None else metrics | sid_metrics(self.sid_ranks, self.config["topk"])


def _mean_rank(ranks: Tensor, num_ranked: Tensor) -> Tensor:
    """RecBole's rec.meanrank: [B, 3] the target's rank, the number of ranked items, the number of targets (one). A
    target that is filtered out counts as the last."""
    ranks = ranks.cpu()
    return torch.stack((torch.minimum(ranks, num_ranked), num_ranked, torch.ones_like(num_ranked)), 1).double()
