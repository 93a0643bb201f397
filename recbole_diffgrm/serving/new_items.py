"""Items that a run has never seen: from their text to a semantic ID, and to a text vector where the model reads one."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from recbole_diffgrm.data.atomic import check_ids
from recbole_diffgrm.data.columns import find_rows
from recbole_diffgrm.errors import UserError, show
from recbole_diffgrm.experiments.item_data import WHITENING_FILE
from recbole_diffgrm.experiments.item_table import Items, title_column
from recbole_diffgrm.files import writing
from recbole_diffgrm.tokenizer import text_encoder
from recbole_diffgrm.tokenizer.item_text import clean
from recbole_diffgrm.tokenizer.pipeline import TOKENIZER_FILE
from recbole_diffgrm.tokenizer.text_vectors import whiten
from recbole_diffgrm.tokenizer.tokenizer import Tokenizer
from recbole_diffgrm.tokenizer.whitening import Whitening
from recbole_diffgrm.words import count


class NewItems(NamedTuple):
    names: list[str]
    titles: list[str]
    sids: np.ndarray  # [K, n]
    text_vectors: np.ndarray | None  # [K, p]


class ItemEncoder:
    """The tokenizer of a run, and its text encoder, which is loaded when the first text comes."""

    def __init__(self, config, folder: Path):
        self.config, self.folder = config, folder
        if not (folder / TOKENIZER_FILE).exists():
            raise UserError(f"add_items: {folder} has no {TOKENIZER_FILE}, as runs of earlier versions: train it again")
        self.tokenizer = Tokenizer.load(folder / TOKENIZER_FILE)
        if not self.tokenizer.reads_text:
            kind = self.tokenizer.settings["sid_quantizer"]
            raise UserError(
                f"add_items: the semantic IDs of this run are not made from text (sid_quantizer {kind}), so a new item "
                "cannot have one; use opq, pq, rq_kmeans or rq_vae"
            )

    def encode(
        self, items: Sequence[Mapping[str, Any]], known: Items, embeddings: np.ndarray | None
    ) -> tuple[NewItems, Tokenizer]:
        """The items, and the tokenizer that knows them: it takes the place of the present one once they are in use."""
        names = self._names(items, known)
        if embeddings is None:
            embeddings = text_encoder.encode(self._text_encoder, self._texts(names, items))
        elif len(embeddings) != len(names):
            raise UserError(f"add_items: {count(len(names), 'item')}, but {count(len(embeddings), 'embedding')}")
        tokenizer = replace(self.tokenizer)
        is_new = find_rows(names, tokenizer.item_ids) < 0  # a sid_file may know more items than the run
        tokenizer.assign(np.array(names)[is_new].tolist(), embeddings=np.asarray(embeddings)[is_new])
        vectors = whiten(self._whitening, embeddings) if self._whitening else None
        return NewItems(names, [_title(item) for item in items], tokenizer.table(names), vectors), tokenizer

    def save(self, folder: Path) -> None:
        """Both files, with the items that were added."""
        with writing(folder):
            self.tokenizer.save(folder / TOKENIZER_FILE)
            if self._whitening:
                self._whitening.save(folder / WHITENING_FILE)

    def _names(self, items: Sequence[Mapping[str, Any]], known: Items) -> list[str]:
        field = self.config["ITEM_ID_FIELD"]
        for item in items:
            if not isinstance(item, Mapping) or item.get(field, "") == "":
                raise UserError(f"add_items: an item is {{{field}: ..., column: text, ...}}, not {show(item)}")
            if isinstance(item[field], bool) or not isinstance(item[field], str | Integral):  # 5.0 may have been "5"
                raise UserError(f"add_items: {field} must be a text or a whole number, not {show(item[field])}")
        names = [str(item[field]) for item in items]
        check_ids(names, "add_items: item")
        for name, times in Counter(names).items():
            if name in known.numbers or times > 1:
                raise UserError(f"add_items: item {name!r} is {'given twice' if times > 1 else 'there already'}")
        return names

    def _texts(self, names: list[str], items: Sequence[Mapping[str, Any]]) -> list[str]:
        texts = [self.tokenizer.compose(item) for item in items]
        for name, item, text in zip(names, items, texts):
            if not text:
                self.tokenizer.check_columns(item, f"add_items: item {name!r}")
                raise UserError(f"add_items: item {name!r} has no text in {', '.join(self.tokenizer.source['fields'])}")
        return texts

    @cached_property
    def _text_encoder(self):
        self.tokenizer.check_encoder()
        name, trust = self.tokenizer.settings["sid_text_encoder"], self.config["sid_trust_remote_code"]
        return text_encoder.load(name, str(self.config["device"]), trust)

    @cached_property
    def _whitening(self) -> Whitening | None:
        path = self.folder / WHITENING_FILE
        return Whitening.load(path) if self.config.model_class.needs_text_vectors(self.config) else None


def _title(item: Mapping[str, Any]) -> str:
    column = title_column([name for name, value in item.items() if isinstance(value, str)])
    return clean(item[column]) if column else ""
