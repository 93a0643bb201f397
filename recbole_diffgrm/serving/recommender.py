"""Use a finished run: histories in, items out. Needs the run directory and nothing else."""

from collections.abc import Iterable, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple

import torch
from recbole.data.interaction import Interaction
from torch import Tensor

from recbole_diffgrm import checkpoint
from recbole_diffgrm.config.recbole_config import Config
from recbole_diffgrm.errors import UserError
from recbole_diffgrm.experiments import item_table
from recbole_diffgrm.experiments.changes import check_recommend
from recbole_diffgrm.experiments.item_table import Items
from recbole_diffgrm.experiments.result import RunResult
from recbole_diffgrm.generation.denoising import Denoising, find_branches, trace
from recbole_diffgrm.generation.semantic_ids import SemanticIds
from recbole_diffgrm.models import get_model
from recbole_diffgrm.models.base import users_per_batch


class Recommendation(NamedTuple):
    item: str
    title: str  # empty where the data have none
    # Of a model that generates: log-probability of the item's SID, -inf for a popular item that fills the list. With an
    # item head: that of the item plus the weighted one of its SID.
    score: float


class FilledDigit(NamedTuple):
    """One step of the denoising of a recommended SID."""

    digit: int  # from 0
    code: int
    probability: float  # of the code, given the history and the digits filled before


class Recommender:
    """
    >>> recommender = Recommender.load("runs/ml-100k/DiffGRM-...")
    >>> recommender.recommend([["50", "172"], ["1"]], k=5)
    """

    def __init__(self, config: Config, model, known: Items):
        self.config, self.model, self.items = config, model, known

    @classmethod
    def load(cls, run_dir: str | Path, **changes: Any) -> "Recommender":
        """`changes` are configuration keys, such as beam_size=64 or repeatable=False."""
        run_dir = Path(run_dir)
        result = RunResult.load(run_dir)
        model_class = get_model(result.model, str(run_dir))
        values = check_recommend(result.model, model_class.Options, result.config, changes)
        known = item_table.load(result)
        try:
            config = Config(model_class, result.dataset, values)
            state = checkpoint.load(run_dir / "best.pt", config["device"])["state_dict"]
            model = model_class(config, _ItemsOnly(config, known, state)).to(config["device"])
            model.load_state_dict(state)
        except (RuntimeError, KeyError, AttributeError) as error:
            reason = str(error).strip().splitlines()[0]
            raise UserError(
                f"{run_dir}: the weights are not those of this version's {result.model} ({reason})"
            ) from None
        result.check_file("best.pt")  # of this model, but of this run?
        return cls(config, model.eval(), known)

    def recommend(
        self, histories: Sequence[Sequence[str]], k: int = 10, *, skip_unknown: bool = False
    ) -> list[list[Recommendation]]:
        """The `k` best items for each history of item ids, the most recent last.

        Seen items, those of the history, are recommended as the run's setting `repeatable` says. `skip_unknown` ignores
        item ids that the model does not know, instead of refusing them.
        """
        if not isinstance(k, Integral) or k < 1:
            raise UserError(f"k must be a whole number of at least 1, not {k!r}")
        numbers, num_items = self._item_numbers(histories, skip_unknown), len(self.items.names)
        batch_size = users_per_batch(self.config, num_items)
        recommended = []
        for start in range(0, len(numbers), batch_size):
            recommended += self._recommend(numbers[start : start + batch_size], min(int(k), num_items - 1))
        return recommended

    def explain(
        self, history: Sequence[str], *, skip_unknown: bool = False
    ) -> dict[tuple[int, ...], list[FilledDigit]]:
        """How beam search reached its SIDs, best first: {SID: its digits in the order they were filled}. Where branches
        were merged, this follows those with the best score."""
        with torch.inference_mode():
            beams = self.model.generate_beams(self._make_batch(self._item_numbers([history], skip_unknown)))
        paths = {}
        for sid, branch in find_branches(beams, self.model.semantic_ids).items():
            filled = [digit for digit in beams.order[0, branch].tolist() if digit >= 0]
            probabilities = beams.log_probs[0, branch].exp().tolist()
            paths[sid] = [
                FilledDigit(digit, sid[digit], probability) for digit, probability in zip(filled, probabilities)
            ]
        return paths

    def trace(self, history: Sequence[str], items: Sequence[str], *, skip_unknown: bool = False) -> list[Denoising]:
        """How the SID of each of the `items` is denoised for this history, step by step and with the alternatives that
        lose."""
        batch = self._make_batch(self._item_numbers([history], skip_unknown))
        return trace(self.model, batch, self.items.labels, [self.sid(item) for item in items])

    def sid(self, item: str) -> tuple[int, ...]:
        """The semantic ID of an item."""
        return tuple(self.model.semantic_ids.lookup(torch.tensor(self.items.numbers[item])).tolist())

    def _item_numbers(self, histories: Sequence[Sequence[str]], skip_unknown: bool) -> list[list[int]]:
        if not _is_list(histories) or not all(map(_is_list, histories)):
            raise UserError("histories: give a list of lists of item ids")
        numbers = self.items.numbers
        unknown = dict.fromkeys(str(i) for history in histories for i in history if str(i) not in numbers)
        if unknown and not skip_unknown:
            named = ", ".join(list(unknown)[:10]) + (f" and {len(unknown) - 10} more" if len(unknown) > 10 else "")
            raise UserError(f"history: unknown items: {named} (skip_unknown ignores them)")
        known = [[numbers[str(i)] for i in history if str(i) in numbers] for history in histories]
        if not all(known):
            raise UserError("history: at least one known item is needed")
        return known

    def _make_batch(self, histories: list[list[int]]) -> Interaction:
        longest = self.config["MAX_ITEM_LIST_LENGTH"]
        cut = [history[-longest:] for history in histories]
        width = max(map(len, cut)) if self.model.variable_length else longest
        padded = torch.tensor([history + [0] * (width - len(history)) for history in cut])
        columns = {self.model.ITEM_SEQ: padded, self.model.ITEM_SEQ_LEN: torch.tensor([len(h) for h in cut])}
        return Interaction(columns).to(self.config["device"])

    @torch.inference_mode()
    def _recommend(self, histories: list[list[int]], k: int) -> list[list[Recommendation]]:
        candidates = self.model.candidates(self._make_batch(histories), depth=k)
        if not candidates.is_finite():
            raise UserError("the scores of this run's model are NaN or infinite: train it again")
        top = candidates.top_k(k, self._seen(histories))
        names, titles = self.items.names, self.items.titles
        return [
            [Recommendation(names[item], titles[item], score) for item, score in zip(items, scores) if item]
            for items, scores in zip(top.items.tolist(), top.scores.tolist())
        ]

    def _seen(self, histories: list[list[int]]) -> tuple[Tensor, Tensor] | None:
        if self.config["repeatable"]:
            return None
        row = [number for number, history in enumerate(histories) for _ in history]
        item = [item for history in histories for item in history]
        return torch.tensor(row, device=self.config["device"]), torch.tensor(item, device=self.config["device"])


def _is_list(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str)


class _ItemsOnly:
    """Takes the place of a model's dataset, and knows as much of it as a run directory does."""

    def __init__(self, config: Config, known: Items, state: dict[str, Tensor]):
        self._config, self._known = config, known
        self.popularity = torch.zeros(len(known.names), dtype=torch.int64)  # the weights hold it
        self.text_vectors = state.get("text_vectors")
        vars(self).update(config.model_class.restore(state))
        if not config.model_class.needs_sids(config):
            return
        self.semantic_ids = SemanticIds.from_state(state, "semantic_ids.")
        if len(self.semantic_ids.sid_index) != len(known.names):
            counts = f"{len(self.semantic_ids.sid_index) - 1} items, and {len(known.names) - 1}"
            raise KeyError(f"{counts} in {item_table.ITEMS_FILE}")

    def num(self, field: str) -> int:
        if field != self._config["ITEM_ID_FIELD"]:
            raise self._missing(f"the {field} of its training data")
        return len(self._known.names)

    def __getattr__(self, name: str):
        raise self._missing(f"its training data ({name})")

    def _missing(self, what: str) -> UserError:
        return UserError(f"{self._config.model} needs {what}, which a run does not keep: it cannot recommend from here")
