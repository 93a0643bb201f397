"""What the item head says of the codes of a digit, to first order.

The probability of a code is the sum of exp(state . item vector) over its items. With the mean of their vectors instead
of each of them it is a linear function of the state, whatever the number of items: the decoder learns the rest.
"""

import torch
from torch import Tensor, nn

from recbole_diffgrm.generation.semantic_ids import SemanticIds


class CodePrior(nn.Module):
    """n digits with M codes each, d dimensions. Codes that no item has are at -inf."""

    means: Tensor  # [n * M, d] of the items' vectors
    log_counts: Tensor  # [n * M]

    def __init__(self, num_digits: int, codebook_size: int, hidden_size: int):
        super().__init__()
        self.shape = (num_digits, codebook_size)
        self.register_buffer("means", torch.zeros(num_digits * codebook_size, hidden_size))
        self.register_buffer("log_counts", torch.zeros(num_digits * codebook_size))

    @torch.no_grad()
    def update(self, vectors: Tensor, semantic_ids: SemanticIds) -> None:
        """Vectors of all items [N + 1, d], of which the first is padding"""
        num_digits, codebook_size = self.shape
        sids = semantic_ids.lookup(torch.arange(1, len(vectors), device=vectors.device))  # [N, n]
        code = sids + torch.arange(num_digits, device=sids.device) * codebook_size
        counts = torch.bincount(code.flatten(), minlength=len(self.means)).to(self.means.dtype)
        sums = torch.zeros_like(self.means)
        for digit in range(num_digits):
            sums.index_add_(0, code[:, digit], vectors[1:].to(sums.dtype))
        self.means.copy_(sums / counts.clamp(min=1)[:, None])
        self.log_counts.copy_(counts.log())

    def forward(self, state: Tensor) -> Tensor:
        """[B, d] -> [B, n, M]"""
        return (state @ self.means.T + self.log_counts).view(len(state), *self.shape)
