"""Groups of different sizes, laid out one after the other."""

import torch
from torch import Tensor


def number_within(group: Tensor) -> Tensor:
    """[R] the place of each entry, from 0, among those of its group [R]; groups ascend."""
    return torch.arange(len(group), device=group.device) - torch.searchsorted(group, group)


def expand_ranges(begin: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
    """Indices begin..begin + length of each range [R], concatenated: (number of the range, index)."""
    length = length.long()
    number = torch.repeat_interleave(torch.arange(len(length), device=length.device), length)
    before = length.cumsum(0) - length
    return number, begin[number] + torch.arange(len(number), device=length.device) - before[number]
