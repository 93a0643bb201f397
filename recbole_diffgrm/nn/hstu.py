"""The layer of HSTU (Zhai et al., ICML 2024, section 3): gated attention by SiLU instead of a softmax, no feed-forward.

Letters in shapes: B samples, L positions, d hidden size, h heads.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recbole_diffgrm.nn.attention import join_heads, split_heads
from recbole_diffgrm.nn.dropout import dropout
from recbole_diffgrm.nn.linear import Linear

EPS = 1e-6  # of both normalizations, which have no weights
LOG_STEP = 0.301  # two differences in time are in the same bucket if their logarithms are in the same step of this
NUM_TIME_BUCKETS = 129


class HSTULayer(nn.Module):
    def __init__(self, hidden_size: int, num_heads: int, dropout: float, normalizer: int):
        super().__init__()
        self.num_heads, self.dropout = num_heads, dropout
        self.normalizer = normalizer  # a constant: sums over a history are divided by it, not by the history's length
        self.gate_value_query_key = Linear(hidden_size, 4 * hidden_size, bias=False)
        self.out = Linear(hidden_size, hidden_size)
        nn.init.normal_(self.gate_value_query_key.weight, std=0.02)
        nn.init.xavier_uniform_(self.out.weight)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        """[B, L, d]; `bias` [1 or B, L, L] is added to the logits. Right padding is later than all items."""
        d = x.shape[-1]
        parts = F.silu(self.gate_value_query_key(F.layer_norm(x, (d,), eps=EPS)))
        gate, *others = parts.chunk(4, dim=-1)
        value, query, key = (split_heads(part, self.num_heads) for part in others)  # [B, h, L, d / h]
        weights = F.silu(query @ key.transpose(-1, -2) + bias[:, None]).tril()  # [B, h, L, L]
        mixed = join_heads(weights @ value) / self.normalizer
        output: Tensor = self.out(dropout(gate * F.layer_norm(mixed, (d,), eps=EPS), self.dropout, self.training))
        return x + output


def bucket_differences(query_time: Tensor, key_time: Tensor) -> Tensor:
    """Times [B, L] of queries and of keys -> [B, L, L] buckets of their differences, on a logarithmic scale."""
    difference = (query_time[:, :, None].double() - key_time[:, None, :].double()).abs().clamp(min=1)
    return (difference.log() / LOG_STEP).long().clamp(max=NUM_TIME_BUCKETS - 1)


def relative_index(size: int, longest: int, device: torch.device) -> Tensor:
    """[L, L]: where a table of 2 * longest - 1 relative positions has that of a key (column) to a query (row)."""
    position = torch.arange(size, device=device)
    return position - position[:, None] + longest - 1
