"""Use a finished run: histories in, items out. Needs the run directory and nothing else."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from recbole.data.interaction import Interaction
from torch import Tensor

from recbole_diffgrm import compat
from recbole_diffgrm.config.config import READ_BY_TESTS, Config, changed_config, check_model_name
from recbole_diffgrm.data.loader import ranked_at_once
from recbole_diffgrm.decoding.catalogue import Catalogue
from recbole_diffgrm.decoding.scores import mask_scores, top_items
from recbole_diffgrm.errors import UserError
from recbole_diffgrm.running import items
from recbole_diffgrm.running.items import Items
from recbole_diffgrm.running.result import RunResult
from recbole_diffgrm.training import checkpoint

# What a finished run may be used with differently.
CHANGEABLE = READ_BY_TESTS - {"valid_beam_size", "valid_users"}


class Recommendation(NamedTuple):
    item: str
    title: str  # empty where the data have none
    # Of a model with IDs: log-probability of the item's ID; -inf for a popular item that fills the list. With item_head
    # that of the item plus id_weight times that of its ID.
    score: float


class FilledDigit(NamedTuple):
    """One step of the way from a masked ID to a recommended one."""

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
        if not run_dir.is_dir():
            raise UserError(f"{run_dir} is not a run directory")
        result = RunResult.load(run_dir)
        check_model_name(result.model, str(run_dir))
        for key in changes:
            if key not in CHANGEABLE or key not in result.config:
                usable = ", ".join(sorted(CHANGEABLE & set(result.config)))
                raise UserError(f"{key} cannot be changed for recommendations of {result.model}: only {usable} can")
        known = items.load(run_dir)
        try:
            config = changed_config(result.model, result.dataset, result.config, changes)
            state = checkpoint.load(run_dir / "best.pt", config["device"])["state_dict"]
            model = config.model_class(config, _OnlyItems(config, known, state)).to(config["device"])
            model.load_state_dict(state)
        except (RuntimeError, KeyError, AttributeError) as error:
            reason = str(error).strip().splitlines()[0]
            raise UserError(
                f"{run_dir}: the weights are not those of this version's {result.model} ({reason})"
            ) from None
        return cls(config, model.eval(), known)

    def recommend(
        self, histories: Sequence[Sequence[str]], k: int = 10, *, skip_unknown: bool = False
    ) -> list[list[Recommendation]]:
        """The `k` best items for each history of item ids, the most recent last.

        Items of the history are recommended as the run's setting `repeatable` says. `skip_unknown` passes over item ids
        that the model has not seen, instead of refusing them.
        """
        if not isinstance(k, int) or k < 1:
            raise UserError(f"k must be a whole number of at least 1, not {k!r}")
        numbers, count = self._numbers(histories, skip_unknown), len(self.items.names)
        at_once = ranked_at_once(self.config, count)
        recommended = []
        for start in range(0, len(numbers), at_once):
            recommended += self._recommend(numbers[start : start + at_once], min(k, count - 1))
        return recommended

    def explain(
        self, history: Sequence[str], *, skip_unknown: bool = False
    ) -> dict[tuple[int, ...], list[FilledDigit]]:
        """How the beam came to its IDs, best first: {ID: its digits in the order they were filled}. Where branches were
        merged, this is the way back along those of the largest score."""
        if not hasattr(self.model, "search"):
            raise UserError(f"explain: {self.config.model} does not fill digits of IDs")
        with torch.inference_mode():
            ranked = self.model.search(self._batch(self._numbers([history], skip_unknown)), self.model.beam)
        ways: dict[tuple[int, ...], list[FilledDigit]] = {}
        for branch in torch.nonzero(ranked.score[0] > -math.inf).flatten().tolist():
            sid, way, place = ranked.ids[0, branch].tolist(), [], branch
            for step in reversed(ranked.steps):
                digit = int(step.digit[0, place])
                way.append(FilledDigit(digit, sid[digit], math.exp(step.sure[0, place])))
                place = int(step.parent[0, place])
            ways.setdefault(tuple(sid), way[::-1])
        return ways

    def sid(self, item: str) -> tuple[int, ...]:
        """The semantic ID of an item."""
        return tuple(self.model.catalogue.sids(torch.tensor(self.items.numbers[item])).tolist())

    def _numbers(self, histories: Sequence[Sequence[str]], skip_unknown: bool) -> list[list[int]]:
        if not _is_list(histories) or not all(map(_is_list, histories)):
            raise UserError("histories: give a list of lists of item ids")
        numbers = self.items.numbers
        unknown = dict.fromkeys(str(i) for history in histories for i in history if str(i) not in numbers)
        if unknown and not skip_unknown:
            named = ", ".join(list(unknown)[:10]) + (f" and {len(unknown) - 10} more" if len(unknown) > 10 else "")
            raise UserError(f"history: not known to the model: {named} (skip_unknown passes over them)")
        found = [[numbers[str(i)] for i in history if str(i) in numbers] for history in histories]
        if not all(found):
            raise UserError("history: at least one item that the model knows is needed")
        return found

    def _batch(self, histories: list[list[int]]) -> Interaction:
        longest = self.config["MAX_ITEM_LIST_LENGTH"]
        cut = [history[-longest:] for history in histories]
        trim = compat.takes_variable_length(self.config.model_class)
        width = max(map(len, cut)) if trim else longest
        padded = torch.tensor([history + [0] * (width - len(history)) for history in cut])
        columns = {self.model.ITEM_SEQ: padded, self.model.ITEM_SEQ_LEN: torch.tensor([len(h) for h in cut])}
        return Interaction(columns).to(self.config["device"])

    @torch.inference_mode()
    def _recommend(self, histories: list[list[int]], k: int) -> list[list[Recommendation]]:
        batch, seen = self._batch(histories), self._seen(histories)
        if compat.makes_lists(type(self.model)):
            lists = self.model.rank(batch, k, seen)
            found, score = lists.items, lists.item_score
        else:
            scores = mask_scores(self.model.full_sort_predict(batch).view(len(histories), -1).float(), seen)
            found = top_items(scores, k)
            score = scores.gather(1, found)
        names, titles = self.items.names, self.items.titles
        return [
            [Recommendation(names[item], titles[item], value) for item, value in zip(row, values) if item]
            for row, values in zip(found.tolist(), score.tolist())
        ]

    def _seen(self, histories: list[list[int]]) -> tuple[Tensor, Tensor] | None:
        if self.config["repeatable"]:
            return None
        row = [number for number, history in enumerate(histories) for _ in history]
        item = [item for history in histories for item in history]
        return torch.tensor(row, device=self.config["device"]), torch.tensor(item, device=self.config["device"])


def _is_list(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str)


class _OnlyItems:
    """Stands where a model expects its data set, and knows as much of it as a run directory does."""

    def __init__(self, config: Config, known: Items, state: dict[str, Tensor]):
        self._config, self._known = config, known
        self.popularity = torch.zeros(len(known.names), dtype=torch.int64)  # the weights hold it
        self.text_vectors = state.get("text_vectors")
        self.catalogue = Catalogue.from_state(state, "catalogue.")
        if compat.uses_sids(config.model_class) and len(self.catalogue.row) != len(known.names):
            raise KeyError(f"{len(self.catalogue.row) - 1} items, and {len(known.names) - 1} in {items.ITEMS_FILE}")

    def num(self, field: str) -> int:
        if field != self._config["ITEM_ID_FIELD"]:
            raise self._missing(f"the {field} of its training data")
        return len(self._known.names)

    def __getattr__(self, name: str):
        raise self._missing(f"its training data ({name})")

    def _missing(self, what: str) -> UserError:
        return UserError(f"{self._config.model} needs {what}, which a run does not keep: it cannot recommend from here")
