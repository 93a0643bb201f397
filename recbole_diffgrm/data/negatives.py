"""Items that a target is ranked against where the catalogue is not ranked as a whole (eval_args.mode: uni100, pop100).

They depend on the data, the split and the seed, so every model is ranked against the same ones.
"""

import numpy as np
import torch
from torch import Tensor

from recbole_diffgrm.config.protocol import Sampling
from recbole_diffgrm.data.sequences import PrefixSamples
from recbole_diffgrm.errors import UserError
from recbole_diffgrm.words import count

ROUNDS = 30  # of drawing again what cannot be used, before rows that still lack items are completed one by one


def sample_negatives(samples: PrefixSamples, popularity: Tensor, sampling: Sampling, seed: int) -> Tensor:
    """[S, n] int64: for each target n different items that are neither it nor in the user's history. `uni`: all equally
    likely; `pop`: in proportion to their interactions in training, `popularity` [num_items]."""
    weights = popularity.double().numpy() if sampling.distribution == "pop" else np.ones(len(popularity))
    weights[0] = 0  # padding
    row, item = samples.full_histories(torch.arange(len(samples)))
    target = samples.column(samples.fields.item)
    base = len(weights)
    taken = torch.cat([row * base + item, torch.arange(len(samples)) * base + target]).unique().numpy()  # sorted keys
    _check_room(sampling, weights, taken, len(samples))
    random = np.random.default_rng(seed)
    shares = np.cumsum(weights) / weights.sum()
    drawn = np.zeros((len(samples), sampling.num_items), dtype=np.int64)
    unusable = np.ones(drawn.shape, dtype=bool)
    for _ in range(ROUNDS):
        drawn[unusable] = np.searchsorted(shares, random.random(int(unusable.sum())), side="right")
        unusable = _is_repeated(drawn) | _contains(taken, np.arange(len(drawn))[:, None] * base + drawn)
        if not unusable.any():
            break
    for number in np.flatnonzero(unusable.any(axis=1)):
        free = weights.copy()
        free[drawn[number, ~unusable[number]]] = 0
        of_row = taken[np.searchsorted(taken, number * base) : np.searchsorted(taken, (number + 1) * base)]
        free[of_row % base] = 0
        missing = int(unusable[number].sum())
        drawn[number, unusable[number]] = random.choice(base, missing, replace=False, p=free / free.sum())
    return torch.from_numpy(drawn)


def _check_room(sampling: Sampling, weights: np.ndarray, taken: np.ndarray, num_rows: int) -> None:
    base = len(weights)
    taken = taken[weights[taken % base] > 0]
    fewest = int((weights > 0).sum() - np.bincount(taken // base, minlength=num_rows).max())
    if fewest < sampling.num_items:
        mode = f"{sampling.distribution}{sampling.num_items}"
        raise UserError(
            f"eval_args: mode {mode}: a user has only {count(fewest, 'item')} to sample from (those in the history are "
            "left out); use fewer, or mode full"
        )


def _is_repeated(drawn: np.ndarray) -> np.ndarray:
    """Is it the same as an earlier one of its row?"""
    order = drawn.argsort(axis=1, kind="stable")
    ordered = np.take_along_axis(drawn, order, axis=1)
    repeated = np.zeros(drawn.shape, dtype=bool)
    np.put_along_axis(repeated, order[:, 1:], ordered[:, 1:] == ordered[:, :-1], axis=1)
    return repeated


def _contains(keys: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """Which of `asked` are among the sorted `keys`?"""
    index = np.searchsorted(keys, asked).clip(max=len(keys) - 1)
    found: np.ndarray = keys[index] == asked
    return found
