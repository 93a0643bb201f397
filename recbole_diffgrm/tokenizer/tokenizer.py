"""A tokenizer: the SIDs of items, and what is needed to give SIDs to new items. One file of plain arrays."""

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from recbole_diffgrm.data.atomic import check_ids, read_header, read_rows
from recbole_diffgrm.data.columns import Texts, as_arrow, find_rows, hash_texts, join_codes, sort_order, write_columns
from recbole_diffgrm.errors import UserError, suggest
from recbole_diffgrm.files import atomic_write
from recbole_diffgrm.tokenizer import item_text, text_encoder
from recbole_diffgrm.tokenizer.arrays import open_arrays
from recbole_diffgrm.tokenizer.embeddings import NO_VECTOR, ItemVectors, is_embedding_file
from recbole_diffgrm.tokenizer.item_codes import encode_items, resolve_collisions
from recbole_diffgrm.tokenizer.quantizers import QUANTIZERS, Quantizer
from recbole_diffgrm.words import count

logger = logging.getLogger(__name__)

STATE_PREFIX = "quantizer_"
# Settings that new items cannot do without.
NEEDED = ("sid_text_template", "sid_text_encoder", "sid_num_digits", "sid_codebook_size", "sid_collisions", "sid_seed")


@dataclass
class Tokenizer:
    settings: dict[str, Any]  # sid_* keys it was built with
    source: dict[str, Any]  # where vectors come from: `encoder` (its identity), `fields` and `lists` of the text
    quantizer: Quantizer | None  # None where SIDs were read from a table
    item_ids: np.ndarray  # [N] objects: str
    codes: np.ndarray  # [N, n] uint16, as quantized
    sids: np.ndarray  # [N, n] or [N, n + 1] uint16, after collisions are resolved

    @property
    def codebook_size(self) -> int:
        """M, the number of codes per digit."""
        return self.settings["sid_codebook_size"]

    @property
    def reads_text(self) -> bool:
        """Whether new items need a text or an embedding."""
        return self.quantizer is not None and self.quantizer.vectors_from == "text"

    def table(self, item_ids: Sequence[str] | np.ndarray) -> np.ndarray:
        """[K, n] SIDs of the items, in their order."""
        rows = find_rows(item_ids, self.item_ids)
        missing = np.flatnonzero(rows < 0)
        if len(missing):
            raise UserError(
                f"no SID for {count(len(missing), 'item')}, such as {str(item_ids[missing[0]])!r}: assign() gives one"
            )
        return self.sids[rows]

    def digest(self, item_ids: Sequence[str] | np.ndarray) -> str:
        """Of the items and their SIDs."""
        return digest_sids(item_ids, join_codes(self.table(item_ids)))

    def assign(
        self,
        item_ids: Sequence[str],
        *,
        texts: Sequence[str | Mapping[str, Any] | None] | None = None,
        embeddings: np.ndarray | None = None,
        device: str = "cpu",
        trust_remote_code: bool = False,
    ) -> np.ndarray:
        """SIDs [K, n] for new items, which are added to the tokenizer. SIDs of other items do not change.

        `texts` are ready texts or {column: text} as in .item; `embeddings` [K, d] come from the same encoder.
        `trust_remote_code` lets an encoder run program code that comes with it: the tokenizer's file has no say in it.
        """
        if isinstance(item_ids, str) or isinstance(texts, str):
            raise UserError("assign: give a list of item ids and a list of texts")
        new = np.array([str(item) for item in item_ids], dtype=object)
        if len(new) == 0:
            return self.sids[:0]
        check_ids(map(str, item_ids), "assign: item")
        known = find_rows(new, self.item_ids) >= 0
        if known.any():
            raise UserError(f"assign: item {str(new[known][0])!r} has a SID already")
        if len(set(new.tolist())) < len(new):
            raise UserError("assign: an item is given twice")
        if self.quantizer is None:
            raise UserError("assign: these SIDs were read from sid_file, without a quantizer for new items")
        items = self._embed(new, texts, embeddings, device, trust_remote_code)
        codes = encode_items(self.settings, self.quantizer, items)
        sids = resolve_collisions(self.settings, self.quantizer, items, codes, self.sids)
        self.item_ids = np.concatenate([self.item_ids, new])
        self.codes = np.concatenate([self.codes, codes])
        self.sids = np.concatenate([self.sids, sids])
        return sids

    def compose(self, columns: Mapping[str, Any]) -> str:
        """The text of an item, from the same fields as the texts that the tokenizer was built from."""
        template = self.settings["sid_text_template"]
        return item_text.compose(columns, self.source["fields"], template, self.source["lists"])

    def check_columns(self, columns: Collection[str], where: str) -> None:
        """An item without any of the columns that texts are made of would silently get random codes."""
        missing = [name for name in self.source["fields"] if name not in columns]
        if not missing:
            return
        hint = suggest(missing[0], set(columns) - set(self.source["fields"]))
        if len(missing) == len(self.source["fields"]):
            raise UserError(f"{where} has none of {', '.join(missing)}, which texts were made of before.{hint}")
        logger.warning(f"{where} has no {', '.join(missing)}, which texts were made of before.{hint}")

    def _compose_any(self, text: str | Mapping[str, Any] | None, item: str) -> str:
        if isinstance(text, Mapping):
            return self.compose(text)
        if text is not None and not isinstance(text, str):
            raise UserError(f"assign: the text of {item!r} is {text!r}, not a text or {{column: text}}")
        return (text or "").strip()

    def _embed(self, item_ids: np.ndarray, texts, embeddings, device: str, trust_remote_code: bool) -> ItemVectors:
        if not self.reads_text:
            return ItemVectors.empty(item_ids)
        if (texts is None) == (embeddings is None):
            raise UserError("assign: give texts or embeddings")
        if embeddings is not None:
            return self._check_embeddings(item_ids, np.asarray(embeddings, np.float32))
        if len(texts) != len(item_ids):
            raise UserError(f"assign: {count(len(item_ids), 'item')}, but {count(len(texts), 'text')}")
        self.check_encoder()
        columns = {frozenset(text): item for text, item in zip(texts, item_ids.tolist()) if isinstance(text, Mapping)}
        for names, item in columns.items():
            self.check_columns(names, f"assign: the text of {item!r}")
        composed = [self._compose_any(text, item) for text, item in zip(texts, item_ids.tolist())]
        row = np.array([i if text else NO_VECTOR for i, text in enumerate(composed)])
        model = text_encoder.load(self.settings["sid_text_encoder"], device, trust_remote_code)
        return ItemVectors(item_ids, row, text_encoder.encode(model, composed))

    def check_encoder(self) -> None:
        """That texts of new items can be encoded, and as before."""
        name = self.settings["sid_text_encoder"]
        if is_embedding_file(name):
            raise UserError(f"assign: the embeddings came from {name}, so new items need embeddings, not texts")
        versions = {"versions": None}  # of libraries: they change the last bits, which do not matter here
        if text_encoder.identity(name) | versions != self.source["encoder"] | versions:
            raise UserError(
                f"assign: the text encoder {name} has changed since the tokenizer was built; give embeddings from the "
                "old one, or build a new tokenizer"
            )

    def _check_embeddings(self, item_ids: np.ndarray, embeddings: np.ndarray) -> ItemVectors:
        assert self.quantizer is not None  # it reads text
        expected = (len(item_ids), self.quantizer.input_dim)
        if embeddings.shape != expected:
            raise UserError(f"assign: embeddings must be {list(expected)}, not {list(embeddings.shape)}")
        if not np.isfinite(embeddings).all():
            raise UserError("assign: an embedding holds NaN or infinity")
        return ItemVectors(item_ids, np.arange(len(item_ids)), embeddings)

    def save(self, path: Path) -> None:
        """One .npz, written completely or not at all."""
        arrays: dict[str, Any] = {
            "settings": np.array(json.dumps(self.settings, ensure_ascii=False)),
            "source": np.array(json.dumps(self.source, ensure_ascii=False)),
            "item_ids": _to_lines(self.item_ids),
            "codes": self.codes,
            "sids": self.sids,
        }
        if self.quantizer is not None:
            arrays["quantizer"] = np.array(self.quantizer.name)
            arrays |= {STATE_PREFIX + name: array for name, array in self.quantizer.state().items()}
        with atomic_write(Path(path)) as file:
            np.savez_compressed(file, **arrays)

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        path = Path(path)
        with open_arrays(path, if_damaged="expected the tokenizer.npz of an earlier run") as saved:
            tokenizer = cls(
                json.loads(str(saved["settings"])),
                json.loads(str(saved["source"])),
                _load_quantizer(path, saved) if "quantizer" in saved else None,
                _from_lines(saved["item_ids"]),
                saved["codes"],
                saved["sids"],
            )
            tokenizer._check()
            return tokenizer

    def _check(self) -> None:
        """That its parts fit each other: a file of someone else may hold anything."""
        missing = [key for key in NEEDED if key not in self.settings]
        if missing or not {"encoder", "fields", "lists"} <= set(self.source):
            raise ValueError(f"its settings lack {missing[0]}" if missing else "it does not say what texts are made of")
        num_items, num_digits = len(self.item_ids), self.settings["sid_num_digits"]
        for name, array, digits in (
            ("codes", self.codes, {num_digits}),
            ("sids", self.sids, {num_digits, num_digits + 1}),
        ):
            if array.ndim != 2 or len(array) != num_items or array.shape[1] not in digits or array.dtype != np.uint16:
                raise ValueError(f"{name} {array.dtype} {list(array.shape)} of {num_items} items")
        if num_items and self.codes.max() >= self.codebook_size:
            raise ValueError(f"a code is not within 0..{self.codebook_size - 1}")
        made = self.quantizer
        if made is not None and (made.num_digits, made.codebook_size) != (num_digits, self.codebook_size):
            raise ValueError(f"a quantizer of {made.num_digits} digits, {made.codebook_size} codes each")

    def write_table(self, path: Path, id_field: str = "item_id") -> None:
        """The SIDs as an atomic file that `sid_file` reads."""
        write_columns(Path(path), {id_field: "token", "sid": "token_seq"}, [self.item_ids, join_codes(self.sids)])


def digest_sids(item_ids: Texts, sids: Texts) -> str:
    """Of items and their codes, with spaces between, in any order."""
    ids = as_arrow(item_ids)
    order = sort_order(ids)
    return hash_texts(ids.take(order), as_arrow(sids).take(order))[:16]


def _to_lines(item_ids: np.ndarray) -> np.ndarray:
    """One id per line in UTF-8: an array of fixed width would be as wide as the longest everywhere."""
    return np.frombuffer("\n".join(item_ids.tolist()).encode("utf-8", "surrogatepass"), np.uint8)


def _from_lines(content: np.ndarray) -> np.ndarray:
    """[N] objects: str"""
    if content.ndim == 1 and content.dtype.kind == "U":  # a file of an earlier version
        return content.astype(object)
    if content.ndim != 1 or content.dtype != np.uint8:
        raise ValueError("item_ids are no texts")
    text = content.tobytes().decode("utf-8", "surrogatepass")
    return np.array(text.split("\n") if text else [], dtype=object)


def _load_quantizer(path: Path, saved: Mapping[str, np.ndarray]) -> Quantizer:
    name = str(saved["quantizer"])
    if name not in QUANTIZERS:
        raise UserError(
            f"{path} needs the quantizer {name!r}, which is not registered; there are {', '.join(QUANTIZERS)}"
        )
    prefixed = [key for key in saved if key.startswith(STATE_PREFIX)]
    return QUANTIZERS[name].from_state({key.removeprefix(STATE_PREFIX): saved[key] for key in prefixed})


def read_table(path: Path, item_ids: np.ndarray, num_digits: int, codebook_size: int, id_field: str) -> np.ndarray:
    """[N, n] SIDs of the items from an atomic file; every item must be there once, with codes in range."""
    header = list(read_header(path))
    if id_field not in header or "sid" not in header:
        raise UserError(f"{path} must have the columns {id_field}:token and sid:token_seq, not {', '.join(header)}")
    id_column, sid_column = header.index(id_field), header.index("sid")
    sids: dict[str, list[int]] = {}
    for fields in read_rows(path):
        item = fields[id_column]
        try:
            sid = [int(code) for code in fields[sid_column].split()]
        except ValueError:
            raise UserError(f"{path}: the SID of {item!r} is {fields[sid_column][:40]!r}, not numbers") from None
        if item in sids:
            raise UserError(f"{path}: item {item!r} is listed twice")
        if len(sid) != num_digits:
            digits = count(len(sid), "digit")
            raise UserError(f"{path}: the SID of {item!r} has {digits}, but sid_num_digits is {num_digits}")
        if min(sid) < 0 or max(sid) >= codebook_size:
            raise UserError(
                f"{path}: the SID of {item!r} is not within 0..{codebook_size - 1}, but sid_codebook_size is "
                f"{codebook_size}"
            )
        sids[item] = sid
    missing = [item for item in item_ids.tolist() if item not in sids]
    if missing:
        raise UserError(f"{path}: {len(missing):,} of {len(item_ids):,} items have no SID, such as {missing[0]!r}")
    return np.array([sids[item] for item in item_ids.tolist()], np.uint16)
