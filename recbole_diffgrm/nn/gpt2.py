"""The layer of GPT-2: pre-norm, causal self-attention, GELU by its tanh approximation.

Letters in shapes: B samples, T positions, d hidden size, h heads.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recbole_diffgrm.nn.attention import attend, join_heads, split_heads
from recbole_diffgrm.nn.linear import Linear


class GPT2Layer(nn.Module):
    def __init__(self, hidden_size: int, inner_size: int, num_heads: int, attention_dropout: float, eps: float = 1e-5):
        super().__init__()
        self.num_heads, self.attention_dropout = num_heads, attention_dropout
        self.attention_norm = nn.LayerNorm(hidden_size, eps=eps)
        self.query_key_value = Linear(hidden_size, 3 * hidden_size)
        self.attention_out = Linear(hidden_size, hidden_size)
        self.norm = nn.LayerNorm(hidden_size, eps=eps)
        self.inner = Linear(hidden_size, inner_size)
        self.outer = Linear(inner_size, hidden_size)

    def initialize(self, num_layers: int) -> None:
        """Weights N(0, .02), those that write into the residual stream smaller by sqrt(2 * layers); biases 0."""
        for linear in (self.query_key_value, self.inner):
            nn.init.normal_(linear.weight, std=0.02)
        for linear in (self.attention_out, self.outer):
            nn.init.normal_(linear.weight, std=0.02 / math.sqrt(2 * num_layers))
        for linear in (self.query_key_value, self.inner, self.attention_out, self.outer):
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        """[B, T, d]; `bias` [T, T] as of causal_bias."""
        parts = self.query_key_value(self.attention_norm(x)).chunk(3, dim=-1)
        query, key, value = (split_heads(part, self.num_heads) for part in parts)  # [B, h, T, d / h]
        mixed = attend(query, key, value, bias, self.attention_dropout, self.training)
        x = x + self.attention_out(join_heads(mixed))
        output: Tensor = x + self.outer(F.gelu(self.inner(self.norm(x)), approximate="tanh"))
        return output


def causal_bias(size: int, device: torch.device) -> Tensor:
    """[T, T]: 0 for a position itself and earlier ones, -inf for later ones. Right padding is later than all items."""
    return torch.full((size, size), -torch.inf, device=device).triu(1)
