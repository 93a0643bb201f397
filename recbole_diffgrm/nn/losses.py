"""Losses of many targets at once."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

LOGITS_AT_ONCE = 2**23  # 32 MiB


def cross_entropy_in_chunks(
    states: Tensor, labels: Tensor, logits_of: Callable[[Tensor], Tensor], num_classes: int
) -> Tensor:
    """The mean cross-entropy of labels [T], from states [T, d] whose logits are logits_of(states) [T, num_classes].

    Batches of whole sequences have ever other numbers of targets. Chunks make tensors of one size of them, so that
    freed memory fits the next ones: else the memory that is kept between steps (memory.keep_freed_memory) fragments.
    """
    size = max(1, LOGITS_AT_ONCE // num_classes)
    chunks = zip(torch.split(states, size), torch.split(labels, size))
    losses = [F.cross_entropy(logits_of(of_chunk), to, reduction="sum") for of_chunk, to in chunks]
    return torch.stack(losses).sum() / len(labels)
