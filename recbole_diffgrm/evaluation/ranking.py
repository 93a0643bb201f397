"""Ranks of the targets, out of rows of scores or out of lists: higher score first, then the smaller item id."""

import torch
from torch import Tensor

NOT_RANKED = torch.iinfo(torch.int32).max  # rank of a target that the rules keep out of the list


def target_ranks(scores: Tensor, target: Tensor) -> Tensor:
    """[B] int32 rank of the target from 1; NOT_RANKED where its own score is -inf (or NaN)."""
    score = scores.gather(1, target[:, None])  # [B, 1]
    above = (scores > score).sum(1)
    item = torch.arange(scores.shape[1], device=scores.device)
    ties_before = ((scores == score) & (item < target[:, None])).sum(1)
    ranked = score.squeeze(1) > -torch.inf
    return torch.where(ranked, above + ties_before + 1, NOT_RANKED).int()


def place_in(lists: Tensor, wanted: Tensor) -> Tensor:
    """[B] int32 place from 1 of each row's wanted number in its list [B, K]; NOT_RANKED where it is not there."""
    is_wanted = lists == wanted[:, None]
    return torch.where(is_wanted.any(1), is_wanted.int().argmax(1) + 1, NOT_RANKED).int()
