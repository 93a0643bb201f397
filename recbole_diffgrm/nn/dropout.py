"""Dropout with a fast mask on CPUs."""

import torch
import torch.nn.functional as F
from torch import Tensor


def dropout(x: Tensor, probability: float, training: bool) -> Tensor:
    """F.dropout. On a CPU, where sampling the mask takes longer than all else, with 16 random bits per element."""
    if not training or probability == 0 or x.device.type != "cpu":
        return F.dropout(x, probability, training)
    levels = 2**16
    dropped = min(round(probability * levels), levels - 1)
    bits = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    keep = bits.view(torch.int16)[: x.numel()].view(x.shape) >= dropped - levels // 2
    return x * keep.to(x.dtype).mul_(levels / (levels - dropped))
