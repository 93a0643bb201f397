"""Two levels x two rankings: what the ranks of a test are called, and the file that keeps them.

Levels: `item`, a hit is the target item (RecBole's); `sid`, a hit is the target's semantic ID (the paper's). Rankings:
`all` items (RecBole's); `unseen`, items of the user's history filtered out. Where nobody buys twice the first ranking
mostly measures who ranks bought items last, so a test reports both.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from recbole_diffgrm.files import atomic_write

Array = NDArray[Any]

LEVELS = {"item": "item level", "sid": "SID level"}
RANKINGS = {"all": "all items", "unseen": "seen items filtered"}
RANKS_FILE = "ranks.npz"


def rank_name(level: str, ranking: str) -> str:
    """Of an array in ranks.npz: item_all, item_unseen, sid_all, sid_unseen."""
    return f"{level}_{ranking}"


def describe_ranking(ranking: str, mode: str) -> str:
    """In words. `mode`: of eval_args; what is not the whole catalogue is never called so."""
    if mode == "full":
        return RANKINGS[ranking]
    return f"sampled items ({mode})" + (f", {RANKINGS[ranking]}" if ranking == "unseen" else "")


def save_ranks(
    run_dir: Path, users: Array, targets: Array, ranks: Mapping[str, Any], of_targets: Mapping[str, Any]
) -> None:
    """ranks.npz: each test target with its user, its rank by `rank_name`, and what it is grouped by."""
    with atomic_write(run_dir / RANKS_FILE) as file:
        np.savez_compressed(file, user=users, target=targets, **ranks, **of_targets)
