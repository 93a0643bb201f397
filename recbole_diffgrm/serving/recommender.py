"""Use a finished run: histories in, items out. Needs the run directory and nothing else."""

import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from recbole.data.interaction import Interaction
from torch import Tensor

from recbole_diffgrm import checkpoint
from recbole_diffgrm.config.recbole_config import Config
from recbole_diffgrm.errors import UserError
from recbole_diffgrm.experiments import item_table
from recbole_diffgrm.experiments.changes import check_recommend
from recbole_diffgrm.experiments.item_data import WHITENING_FILE
from recbole_diffgrm.experiments.item_table import Items
from recbole_diffgrm.experiments.result import RunResult
from recbole_diffgrm.files import reading, writing
from recbole_diffgrm.generation.denoising import Denoising, find_branches, trace
from recbole_diffgrm.generation.semantic_ids import SemanticIds
from recbole_diffgrm.models import get_model
from recbole_diffgrm.models.base import users_per_batch
from recbole_diffgrm.serving import pretrained
from recbole_diffgrm.serving.export import export
from recbole_diffgrm.serving.new_items import ItemEncoder, NewItems
from recbole_diffgrm.tokenizer.pipeline import TOKENIZER_FILE

MAX_HIDDEN = 2**22  # pairs of a user and an item that is not allowed, held at once


class Recommendation(NamedTuple):
    item: str
    title: str  # empty where the data have none
    # Of a model that generates: log-probability of the item's SID, with an item head that of the item; -inf for a
    # popular item that fills the list. Of any other model: what it ranks by.
    score: float


@dataclass(frozen=True)
class Query:
    """What is asked for one user."""

    history: Sequence[str]  # the most recent last
    k: int = 10
    allow: Collection[str] | None = None  # recommend only these items
    exclude: Collection[str] = ()  # never these
    filter_seen: bool | None = None  # not those of the history; None: as the run's setting `repeatable` says
    skip_unknown: bool = False  # ignore item ids that the model does not know, instead of refusing them


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

    def __init__(self, config: Config, model, known: Items, result: RunResult | None = None):
        self.config, self.model, self.items = config, model, known
        self.result = result  # of the run

    @classmethod
    def load(cls, run_dir: str | Path, **changes: Any) -> "Recommender":
        """`changes` are configuration keys, such as beam_size=64 or repeatable=False."""
        run_dir = Path(run_dir)
        result = RunResult.load(run_dir)
        model_class = get_model(result.model, str(run_dir))
        values = check_recommend(result.model, model_class.Options, result.config, changes)
        known = item_table.load(result)
        is_handed_on = (run_dir / pretrained.WEIGHTS_FILE).exists()
        weights = pretrained.WEIGHTS_FILE if is_handed_on else "best.pt"
        if is_handed_on and "sid_trust_remote_code" in values:
            values["sid_trust_remote_code"] = False  # whoever made the folder has no say in it
        try:
            config = Config(model_class, result.dataset, values)
            if is_handed_on:
                state = pretrained.load_weights(run_dir / weights, config["device"])
            else:
                state = checkpoint.load(run_dir / weights, config["device"])["state_dict"]
            model = build_model(config, known, state)
        except (RuntimeError, KeyError, AttributeError) as error:
            reason = str(error).strip().splitlines()[0]
            raise UserError(
                f"{run_dir}: the weights are not those of this version's {result.model} ({reason})"
            ) from None
        result.check_file(weights)  # of this model, but of this run?
        return cls(config, model, known, result)

    @classmethod
    def from_pretrained(cls, name: str | Path, *, revision: str | None = None, **changes: Any) -> "Recommender":
        """From a folder that `save_pretrained` has written, here or on the hub."""
        return cls.load(pretrained.find_folder(name, revision), **changes)

    def save_pretrained(self, folder: str | Path) -> None:
        """To hand it on: weights, items with those that were added, tokenizer, and a model card (README.md)."""
        pretrained.save(self, Path(folder))

    def export(self, folder: str | Path) -> None:
        """Programs of torch.export with all that a search needs: recommends where there is nothing but torch."""
        export(self, Path(folder))

    def save_tokenizer(self, folder: Path) -> None:
        """The run's, if it has one, with the items that were added."""
        assert self.result is not None  # it was loaded
        for name in (TOKENIZER_FILE, WHITENING_FILE):
            path = self.result.run_dir / name
            if path.exists():
                with reading(path), writing(folder / name):
                    shutil.copyfile(path, folder / name)
        if "item_encoder" in vars(self):
            self.item_encoder.save(folder)

    def recommend(
        self, histories: Sequence[Sequence[str]], k: int = 10, *, skip_unknown: bool = False
    ) -> list[list[Recommendation]]:
        """The `k` best items for each history of item ids, the most recent last.

        Seen items, those of the history, are recommended as the run's setting `repeatable` says. `skip_unknown` ignores
        item ids that the model does not know, instead of refusing them.
        """
        if not _is_list(histories) or not all(map(_is_list, histories)):
            raise UserError("histories: give a list of lists of item ids")
        return self.answer([Query(history, k, skip_unknown=skip_unknown) for history in histories])

    def answer(self, queries: Sequence[Query]) -> list[list[Recommendation]]:
        """The same of queries that may differ in all they ask for."""
        self.check(queries)
        num_items = len(self.items.names)
        batch_size = users_per_batch(self.config, num_items)
        if any(query.allow is not None for query in queries):
            batch_size = max(1, min(batch_size, MAX_HIDDEN // num_items))
        recommended = []
        for start in range(0, len(queries), batch_size):
            recommended += self._answer([self._number(query) for query in queries[start : start + batch_size]])
        return recommended

    def check(self, queries: Sequence[Query]) -> None:
        """Refuses what cannot be answered, before anything is computed."""
        strict = [query for query in queries if not query.skip_unknown]
        self._check_known("history", [item for query in strict for item in query.history])
        self._check_known("allow", [item for query in strict for item in query.allow or ()])
        self._check_known("exclude", [item for query in strict for item in query.exclude])
        for query in queries:
            if not isinstance(query.k, Integral) or query.k < 1:
                raise UserError(f"k must be a whole number of at least 1, not {query.k!r}")
            self._known(query.history)

    def add_items(self, items: Sequence[Mapping[str, Any]], embeddings: np.ndarray | None = None) -> list[str]:
        """New items, recommended from now on and known in histories, without training: each has the id and the text
        columns of the run's .item file. Their texts get semantic IDs by the run's tokenizer; `embeddings` [K, d] from
        the same encoder can take the place of texts. Nothing is saved. Returns their ids.

        >>> recommender.add_items([{"item_id": "new", "title": "Vitamin C serum", "brand": "Acme"}])
        """
        if not _is_list(items) or isinstance(items, Mapping):
            raise UserError("add_items: give a list of items")
        self.config.model_class.add_items(self.config, self.model.state_dict())  # refuses where it cannot
        if not items:
            return []
        new, tokenizer = self.item_encoder.encode(items, self.items, embeddings)
        known = Items(self.items.names + new.names, self.items.titles + new.titles)
        state = self.config.model_class.add_items(self.config, self._extend_state(new))
        model = build_model(self.config, known, state)
        model.finish_items()
        self.model, self.items, self.item_encoder.tokenizer = model, known, tokenizer
        return new.names

    @cached_property
    def item_encoder(self) -> ItemEncoder:
        assert self.result is not None  # it was loaded
        return ItemEncoder(self.config, self.result.run_dir)

    def _extend_state(self, new: NewItems) -> dict[str, Tensor]:
        """The weights, with the semantic IDs and text vectors of new items."""
        state = self.model.state_dict()
        ids = self.model.semantic_ids.extend(torch.from_numpy(new.sids.astype(np.int64)))
        state |= {f"semantic_ids.{name}": buffer for name, buffer in ids.named_buffers()}
        if new.text_vectors is not None:
            old = state["text_vectors"]
            state["text_vectors"] = torch.cat([old, torch.from_numpy(new.text_vectors).to(old)])
        return state

    def explain(
        self, history: Sequence[str], *, skip_unknown: bool = False
    ) -> dict[tuple[int, ...], list[FilledDigit]]:
        """How beam search reached its SIDs, best first: {SID: its digits in the order they were filled}. Where branches
        were merged, this follows those with the best score."""
        with torch.inference_mode():
            beams = self.model.generate_beams(self._make_batch([self._item_numbers(history, skip_unknown)]))
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
        self._check_known("items", items, can_skip=False)
        batch = self._make_batch([self._item_numbers(history, skip_unknown)])
        if not self.can_explain:
            self.model.search_parts(batch)  # says why
        return trace(self.model, batch, self.items.labels, [self.sid(item) for item in items])

    @property
    def can_explain(self) -> bool:
        """Whether its model generates semantic IDs step by step."""
        return self.config.model_class.generates_stepwise

    def popular_items(self) -> list[int]:
        """Numbers of all items: most popular first, where the model knows it."""
        if not self.config.model_class.needs_sids(self.config):
            return list(range(1, len(self.items.names)))
        return self.model.semantic_ids.popular.tolist()

    def sid(self, item: str) -> tuple[int, ...]:
        """The semantic ID of an item."""
        self._check_known("sid", [item], can_skip=False)
        return tuple(self.model.semantic_ids.lookup(torch.tensor(self.items.numbers[str(item)])).tolist())

    def _number(self, query: Query) -> "_Numbered":
        """The query with item numbers."""
        numbers, num_items = self.items.numbers, len(self.items.names)
        history = self._known(query.history)
        filter_seen = not self.config["repeatable"] if query.filter_seen is None else query.filter_seen
        hidden = torch.zeros(num_items, dtype=torch.bool)
        if query.allow is not None:
            hidden[:] = True
            hidden[[numbers[str(item)] for item in query.allow if str(item) in numbers]] = False
            hidden[0] = False
        hidden[[numbers[str(item)] for item in query.exclude if str(item) in numbers]] = True
        if filter_seen:
            hidden[history] = True
        return _Numbered(history, min(int(query.k), num_items - 1), torch.nonzero(hidden).flatten())

    def _item_numbers(self, history: Sequence[str], skip_unknown: bool) -> list[int]:
        if not skip_unknown:
            self._check_known("history", history)
        return self._known(history)

    def _check_known(self, where: str, items: Iterable[str], can_skip: bool = True) -> None:
        unknown = list(dict.fromkeys(str(item) for item in items if str(item) not in self.items.numbers))
        if unknown:
            named = ", ".join(unknown[:10]) + (f" and {len(unknown) - 10} more" if len(unknown) > 10 else "")
            raise UserError(f"{where}: unknown items: {named}" + " (skip_unknown ignores them)" * can_skip)

    def _known(self, history: Sequence[str]) -> list[int]:
        numbers = self.items.numbers
        known = [numbers[str(item)] for item in history if str(item) in numbers]
        if not known:
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
    def _answer(self, asked: "list[_Numbered]") -> list[list[Recommendation]]:
        k = max(one.k for one in asked)
        candidates = self.model.candidates(self._make_batch([one.history for one in asked]), depth=k)
        if not candidates.is_finite():
            raise UserError("the scores of this run's model are NaN or infinite: train it again")
        hidden = torch.cat([one.hidden for one in asked]).to(self.config["device"])
        counts = torch.tensor([len(one.hidden) for one in asked], device=hidden.device)
        user = torch.repeat_interleave(torch.arange(len(asked), device=hidden.device), counts)
        top = candidates.top_k(k, (user, hidden) if len(hidden) else None)
        names, titles = self.items.names, self.items.titles
        return [
            [Recommendation(names[item], titles[item], score) for item, score in zip(items, scores) if item][: one.k]
            for one, items, scores in zip(asked, top.items.tolist(), top.scores.tolist())
        ]


class _Numbered(NamedTuple):
    history: list[int]
    k: int
    hidden: Tensor  # items that must not be recommended


def build_model(config: Config, known: Items, state: Mapping[str, Tensor]):
    """The model of a run with its weights, ready to recommend."""
    model = config.model_class(config, _ItemsOnly(config, known, state)).to(config["device"])
    model.load_state_dict(state)
    return model.eval()


def _is_list(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str)


class _ItemsOnly:
    """Takes the place of a model's dataset, and knows as much of it as a run directory does."""

    def __init__(self, config: Config, known: Items, state: Mapping[str, Tensor]):
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
