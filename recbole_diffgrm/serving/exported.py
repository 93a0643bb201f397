"""Recommendations from a folder that --export has written. Needs torch alone: RecBole and the rest of this project may
be missing (the folder has a copy of what is imported here).

    PYTHONPATH=FOLDER python -m recbole_diffgrm.serving.exported FOLDER ITEM ITEM ...

torch.export.load trusts the folder: load only what you have made or checked.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from recbole_diffgrm.errors import UserError
from recbole_diffgrm.files import read_text, reading
from recbole_diffgrm.generation.beam_search import beam_search
from recbole_diffgrm.generation.constraints import Constraint, LatticeConstraint, TrieConstraint
from recbole_diffgrm.generation.item_ranking import (
    GeneratedSids,
    keep_existing,
    mask_scores,
    rank_items,
    top_items,
)
from recbole_diffgrm.generation.semantic_ids import SemanticIds

ENCODE_FILE, STEP_FILE, TABLES_FILE, SETTINGS_FILE = "encode.pt2", "step.pt2", "tables.pt", "settings.json"
USERS_AT_ONCE = 64


class ExportedRecommender:
    """
    >>> ExportedRecommender("exported").recommend([["50", "172"]], k=5)
    """

    def __init__(self, folder: str | Path):
        folder = Path(folder)
        if not (folder / SETTINGS_FILE).exists():
            raise UserError(f"{folder} is not a folder that --export has written: it has no {SETTINGS_FILE}")
        self.settings: dict[str, Any] = json.loads(read_text(folder / SETTINGS_FILE))
        with reading(folder / TABLES_FILE):
            self.semantic_ids = SemanticIds(torch.load(folder / TABLES_FILE, weights_only=True))
        self.encode, self.step = (_load_program(folder / name) for name in (ENCODE_FILE, STEP_FILE))
        self.names, self.titles = self.settings["names"], self.settings["titles"]
        self.numbers = {name: number for number, name in enumerate(self.names) if number}

    def recommend(
        self, histories: Sequence[Sequence[str]], k: int = 10, filter_seen: bool | None = None
    ) -> list[list[tuple[str, str, float]]]:
        """(item, title, score) of the best items for each history, as the Recommender has them."""
        unknown = [item for history in histories for item in history if item not in self.numbers]
        if unknown or not all(histories):
            raise UserError(
                f"history: unknown item {unknown[0]!r}" if unknown else "history: at least one item is needed"
            )
        numbers = [[self.numbers[item] for item in history] for history in histories]
        filter_seen = self.settings["filter_seen"] if filter_seen is None else filter_seen
        lists: list[list[tuple[str, str, float]]] = []
        for start in range(0, len(numbers), USERS_AT_ONCE):
            lists += self._recommend(numbers[start : start + USERS_AT_ONCE], min(k, len(self.names) - 1), filter_seen)
        return lists

    @torch.inference_mode()
    def _recommend(self, histories: list[list[int]], k: int, filter_seen: bool) -> list[list[tuple[str, str, float]]]:
        cut = [history[-self.settings["max_length"] :] for history in histories]
        length = torch.tensor([len(history) for history in cut])
        width = int(length.max())
        items = torch.tensor([history + [0] * (width - len(history)) for history in cut])
        seen = None
        if filter_seen:
            pairs = [(user, item) for user, history in enumerate(histories) for item in history]
            seen = tuple(torch.tensor(pairs).T)
        memory, scores = self.encode(items, length)
        if scores is None:
            ranked, scored = self._rank_generated(self._search(memory, len(cut)), k, seen)
        else:
            scores = mask_scores(scores.clone(), seen)
            ranked = top_items(scores, k)
            scored = scores.gather(1, ranked)
        return [
            [(self.names[item], self.titles[item], score) for item, score in zip(*of_user) if item]
            for of_user in zip(ranked.tolist(), scored.tolist())
        ]

    def _search(self, memory: dict[str, Any], num_users: int) -> GeneratedSids:
        beams = beam_search(
            lambda known, parent: self.step(known, memory),
            self._constraint(),
            self.settings["widths"],
            num_users,
            leaf_size=int(self.settings["normalize"]),
        )
        return keep_existing(beams, self.semantic_ids)

    def _constraint(self) -> Constraint:
        ids, normalize = self.semantic_ids, self.settings["normalize"]
        if self.settings["constraint"] == "lattice":
            return LatticeConstraint(ids.lattice, self.settings["merge"], normalize)
        return TrieConstraint(ids.trie, ids.sids, normalize)

    def _rank_generated(self, generated: GeneratedSids, k: int, seen: Any) -> tuple[Tensor, Tensor]:
        """Items of the generated SIDs, then popular ones [U, k], 0 for none, and their scores."""
        ids = self.semantic_ids
        items, _ = rank_items(generated.rows, ids.groups, ids.popular, k, seen)
        is_of_sid = ids.sid_index[items][:, :, None] == generated.rows[:, None, :]  # [U, k, W]
        return items, torch.where(is_of_sid, generated.scores[:, None, :], -torch.inf).amax(-1)


def _load_program(path: Path) -> torch.nn.Module:
    with reading(path):
        return torch.export.load(path).module()


def main(arguments: Sequence[str]) -> int:
    if not arguments:
        print(__doc__)
        return 2
    folder, *history = arguments
    try:
        (recommended,) = ExportedRecommender(folder).recommend([history])
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for item, title, score in recommended:
        print(f"{item}\t{title}\t{score:.4f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
