"""The layer of SASRec as its authors wrote it (Kang & McAuley, ICDM 2018); RecBole's is BERT's.

Only the query is normalized, the residual is the normalized query, and heads are not projected. Letters in shapes: B
samples, L positions, d hidden size, h heads.
"""

import torch.nn.functional as F
from torch import Tensor, nn

from recbole_diffgrm.nn.attention import attend, join_heads, split_heads
from recbole_diffgrm.nn.dropout import dropout
from recbole_diffgrm.nn.linear import Linear


class SASRecLayer(nn.Module):
    def __init__(self, hidden_size: int, num_heads: int, dropout: float):
        super().__init__()
        self.num_heads, self.dropout = num_heads, dropout
        self.query_norm = nn.LayerNorm(hidden_size)
        self.query, self.key, self.value = (Linear(hidden_size, hidden_size) for _ in range(3))
        self.norm = nn.LayerNorm(hidden_size)
        self.inner, self.outer = (Linear(hidden_size, hidden_size) for _ in range(2))
        for linear in (self.query, self.key, self.value, self.inner, self.outer):
            nn.init.xavier_uniform_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        """[B, L, d]; `bias` [L, L] as of nn.gpt2.causal_bias."""
        normalized = self.query_norm(x)
        parts = (self.query(normalized), self.key(x), self.value(x))
        query, key, value = (split_heads(part, self.num_heads) for part in parts)  # [B, h, L, d / h]
        x = normalized + join_heads(attend(query, key, value, bias, self.dropout, self.training))
        x = self.norm(x)
        inner = dropout(F.relu(self.inner(x)), self.dropout, self.training)
        return x + dropout(self.outer(inner), self.dropout, self.training)
