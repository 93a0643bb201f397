"""A tokenizer: the table of IDs, and what is needed to give IDs to items that come later. One file of plain arrays."""

import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from recbole_diffgrm.data.atomic import read_header, read_rows, write_atomic_file
from recbole_diffgrm.errors import UserError
from recbole_diffgrm.files import whole_file
from recbole_diffgrm.tokenizer import collisions, drawn, encoder, text, vectors
from recbole_diffgrm.tokenizer.blocks import BLOCK_CELLS, map_blocks
from recbole_diffgrm.tokenizer.quantiser import Quantiser, cheapest_sums
from recbole_diffgrm.tokenizer.reassign import reassign
from recbole_diffgrm.tokenizer.vectors import NO_VECTOR, ItemVectors


@dataclass
class Tokenizer:
    settings: dict[str, Any]  # sid_* keys it was made with
    source: dict[str, Any]  # where vectors come from: `encoder` (its identity), `fields` and `lists` of the text
    quantiser: Quantiser | None  # None where IDs are drawn, or come from a file
    item_ids: np.ndarray  # [N] str
    codes: np.ndarray  # [N, n] uint16, as quantised
    sids: np.ndarray  # [N, n] or [N, n + 1] uint16, after collisions are dealt with

    @property
    def size(self) -> int:
        """M, the number of codes a digit can have."""
        return self.settings["sid_codes"]

    def table(self, item_ids: Sequence[str]) -> np.ndarray:
        """[K, n] IDs of the items, in their order."""
        place = {item: number for number, item in enumerate(self.item_ids.tolist())}
        item_ids = [str(item) for item in item_ids]
        missing = [item for item in item_ids if item not in place]
        if missing:
            raise UserError(
                f"{len(missing)} items have no semantic ID, {missing[0]!r} among them: assign() gives them one"
            )
        return self.sids[[place[item] for item in item_ids]]

    def assign(
        self,
        item_ids: Sequence[str],
        *,
        texts: Sequence[str | Mapping[str, str]] | None = None,
        embeddings: np.ndarray | None = None,
        device: str = "cpu",
    ) -> np.ndarray:
        """IDs [K, n] for new items, which join the table. IDs given earlier stay as they are.

        `texts` are ready texts or {column: text} as in .item; `embeddings` [K, d] come from the same encoder.
        """
        if isinstance(item_ids, str) or isinstance(texts, str):
            raise UserError("assign: give a list of item ids and a list of texts")
        item_ids = np.array([str(item) for item in item_ids], dtype=str)
        if len(item_ids) == 0:
            return self.sids[:0]
        known = np.isin(item_ids, self.item_ids)
        if known.any():
            raise UserError(f"item {item_ids[known][0]!r} has an ID already")
        if len(set(item_ids.tolist())) < len(item_ids):
            raise UserError("an item to be given an ID is named twice")
        if self.quantiser is None and self.settings["sid_quantiser"] != "random":
            raise UserError("a table of IDs from sid_file has no codebooks: it cannot give IDs to other items")
        items = self._vectors(item_ids, texts, embeddings, device)
        codes = quantise(self.settings, self.quantiser, items)
        sids = resolve(self.settings, self.quantiser, items, codes, self.sids)
        self.item_ids = np.concatenate([self.item_ids, item_ids])
        self.codes = np.concatenate([self.codes, codes])
        self.sids = np.concatenate([self.sids, sids])
        return sids

    def compose(self, columns: Mapping[str, Any]) -> str:
        """The text of an item, of the same fields as the items of the table had."""
        return text.compose(columns, self.source["fields"], self.settings["sid_text_template"], self.source["lists"])

    def _vectors(self, item_ids, texts, embeddings, device) -> ItemVectors:
        if self.quantiser is None:
            return ItemVectors(item_ids, np.full(len(item_ids), NO_VECTOR), np.zeros((0, 0), np.float32))
        if (texts is None) == (embeddings is None):
            raise UserError("assign: give texts or embeddings")
        if embeddings is not None:
            embeddings = np.asarray(embeddings, np.float32)
            if embeddings.shape != (len(item_ids), len(self.quantiser.mean)):
                raise UserError(
                    f"assign: embeddings must be [{len(item_ids)}, {len(self.quantiser.mean)}], not "
                    f"{list(embeddings.shape)}"
                )
            if not np.isfinite(embeddings).all():
                raise UserError("assign: an embedding holds NaN or infinity")
            return ItemVectors(item_ids, np.arange(len(item_ids)), embeddings)
        if len(texts) != len(item_ids):
            raise UserError(f"assign: {len(item_ids)} items, but {len(texts)} texts")
        name = self.settings["sid_encoder"]
        if vectors.is_file(name):
            raise UserError(f"assign: the embeddings came from {name}, so new items need embeddings, not texts")
        versions = {"versions": None}  # of libraries: they move the last bits, which do not matter here
        if encoder.identity(name) | versions != self.source["encoder"] | versions:
            raise UserError(
                f"assign: the encoder {name} is not the one that the tokenizer was made with; give embeddings from the "
                "old one, or make a new tokenizer"
            )
        ready = [self.compose(value) if isinstance(value, Mapping) else str(value or "").strip() for value in texts]
        row = np.array([number if value else NO_VECTOR for number, value in enumerate(ready)])
        model = encoder.load(name, device, self.settings["sid_trust_remote_code"])
        return ItemVectors(item_ids, row, encoder.encode(model, ready))

    def save(self, path: Path) -> None:
        """One .npz, written whole or not at all."""
        arrays = {
            f"quantiser_{name}": value for name, value in (self.quantiser.arrays() if self.quantiser else {}).items()
        }
        with whole_file(Path(path)) as file:
            np.savez_compressed(
                file,
                settings=np.array(json.dumps(self.settings, ensure_ascii=False)),
                source=np.array(json.dumps(self.source, ensure_ascii=False)),
                item_ids=self.item_ids,
                codes=self.codes,
                sids=self.sids,
                **arrays,
            )

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        try:
            with np.load(path, allow_pickle=False) as saved:
                names = [name for name in saved.files if name.startswith("quantiser_")]
                parts = {name.removeprefix("quantiser_"): saved[name] for name in names}
                return cls(
                    json.loads(str(saved["settings"])),
                    json.loads(str(saved["source"])),
                    Quantiser(**parts) if parts else None,
                    saved["item_ids"],
                    saved["codes"],
                    saved["sids"],
                )
        except FileNotFoundError:
            raise UserError(f"{path} does not exist") from None
        except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile, EOFError) as error:
            raise UserError(f"{path} is no tokenizer, or a damaged one ({error})") from None

    def write_table(self, path: Path, id_field: str = "item_id") -> None:
        """The IDs as an atomic file that `sid_file` reads."""
        rows = ((item, " ".join(map(str, sid))) for item, sid in zip(self.item_ids.tolist(), self.sids.tolist()))
        write_atomic_file(Path(path), {id_field: "token", "sid": "token_seq"}, rows)


def read_table(path: Path, item_ids: np.ndarray, digits: int, size: int, id_field: str) -> np.ndarray:
    """[N, n] IDs of the items out of an atomic file; every item must be there once, with codes in range."""
    header = list(read_header(path))
    if id_field not in header or "sid" not in header:
        raise UserError(f"{path} must have the columns {id_field}:token and sid:token_seq, not {', '.join(header)}")
    id_place, sid_place = header.index(id_field), header.index("sid")
    found: dict[str, list[int]] = {}
    for fields in read_rows(path):
        item = fields[id_place]
        try:
            sid = [int(code) for code in fields[sid_place].split()]
        except ValueError:
            raise UserError(f"{path}: the ID of {item!r} is {fields[sid_place]!r}, not numbers") from None
        if item in found:
            raise UserError(f"{path}: item {item!r} is there twice")
        if len(sid) != digits:
            raise UserError(f"{path}: the ID of {item!r} has {len(sid)} digits, but sid_digits is {digits}")
        if min(sid) < 0 or max(sid) >= size:
            raise UserError(f"{path}: the ID of {item!r} leaves 0..{size - 1}, but sid_codes is {size}")
        found[item] = sid
    missing = [item for item in item_ids.tolist() if item not in found]
    if missing:
        raise UserError(f"{path}: {len(missing):,} of {len(item_ids):,} items have no ID, {missing[0]!r} among them")
    return np.array([found[item] for item in item_ids.tolist()], np.uint16)


def quantise(settings: Mapping[str, Any], quantiser: Quantiser | None, items: ItemVectors) -> np.ndarray:
    """[N, n] codes; items without a vector have theirs drawn."""
    digits, size = settings["sid_digits"], settings["sid_codes"]
    codes = np.zeros((len(items.item_ids), digits), np.uint16)
    has_vector = items.row != NO_VECTOR
    if has_vector.any():
        rows, place = np.unique(items.row[has_vector], return_inverse=True)  # in the order they lie on disk
        used = items.vectors if len(rows) == len(items.vectors) else items.vectors[rows]
        codes[has_vector] = quantiser.codes(used)[place]
    codes[~has_vector] = drawn.codes(items.item_ids[~has_vector].tolist(), digits, size, settings["sid_seed"])
    return codes


def resolve(
    settings: Mapping[str, Any], quantiser: Quantiser | None, items: ItemVectors, codes: np.ndarray, table: np.ndarray
) -> np.ndarray:
    """IDs [N, n] of items with `codes`, by the rule `sid_collisions`, beside those of `table`."""
    rule, size = settings["sid_collisions"], settings["sid_codes"]
    if rule == "extra_digit":
        return collisions.number_members(codes, size, table)
    if rule == "keep":
        return codes

    def nearest(chosen: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        width = settings["sid_digits"] * size + count * (size if quantiser is not None and quantiser.residual else 8)
        parts = map_blocks(
            lambda start, stop: _nearest(settings, quantiser, items, codes, chosen[start:stop], count),
            len(chosen),
            max(1, BLOCK_CELLS // width),
        )
        return tuple(np.concatenate(column) for column in zip(*parts))

    def kinds(chosen: np.ndarray) -> np.ndarray:
        """Equal vectors have equal labels; an item without a vector is like no other."""
        label = -1 - chosen
        has_vector = items.row[chosen] != NO_VECTOR
        if has_vector.any():
            label[has_vector] = np.unique(items.of(chosen[has_vector]), axis=0, return_inverse=True)[1].ravel()
        return label

    return reassign(codes, size, nearest, kinds, table)


def _nearest(settings, quantiser, items: ItemVectors, codes, chosen: np.ndarray, count: int):
    digits, size = settings["sid_digits"], settings["sid_codes"]
    count = min(count, size**digits)
    near = np.zeros((len(chosen), count, digits), np.uint16)
    added = np.zeros((len(chosen), count))
    has_vector = items.row[chosen] != NO_VECTOR
    if has_vector.any():
        with_vector = chosen[has_vector]
        prepared = quantiser.prepare(items.of(with_vector))
        near[has_vector], error = quantiser.nearest(prepared, count)
        own = quantiser.errors_of(prepared, codes[with_vector])
        added[has_vector] = error - own[:, None]
    if not has_vector.all():
        without = chosen[~has_vector]
        costs = drawn.costs(items.item_ids[without].tolist(), digits, size, settings["sid_seed"])
        near[~has_vector], cost = cheapest_sums(costs, count)
        added[~has_vector] = cost * 1e-9  # it has no place that it could leave
    return near, added
