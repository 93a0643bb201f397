"""What the item head says of the codes of a digit, to first order.

The probability of a code is the sum of exp(state . item vector) over its items. With the mean of their vectors instead
of each of them, its logarithm is a linear function of the state: the decoder learns the rest. Letters in shapes: N
items, n digits with M codes each, d hidden size.
"""

import torch
from torch import Tensor, nn

from recbole_diffgrm.generation.ranges import number_within
from recbole_diffgrm.generation.semantic_ids import SemanticIds

ITEMS_OF_A_CODE = 64  # that its mean is of, whatever the size of the catalogue


class CodePrior(nn.Module):
    items: Tensor  # [S] those whose vectors are needed
    item: Tensor  # [P] pairs of an item, as an index into these,
    code: Tensor  # [P] and one of its codes, of n * M
    num_items: Tensor  # [n * M] of each code among the pairs
    log_counts: Tensor  # [n * M] of the code's items; -inf where there are none

    def __init__(self, semantic_ids: SemanticIds):
        super().__init__()
        n, m = self.shape = (semantic_ids.num_digits, semantic_ids.codebook_size)
        item, code, counts = [], [], []
        for digit, codes in enumerate(semantic_ids.lookup(torch.arange(1, len(semantic_ids.sid_index))).unbind(1)):
            order = codes.argsort(stable=True)
            order = order[number_within(codes[order]) < ITEMS_OF_A_CODE]
            item.append(order + 1)
            code.append(codes[order] + digit * m)
            counts.append(torch.bincount(codes, minlength=m))
        items, index = torch.cat(item).unique(return_inverse=True)
        tables = {"items": items, "item": index, "code": torch.cat(code)}
        tables["num_items"] = torch.bincount(tables["code"], minlength=n * m)
        tables["log_counts"] = torch.cat(counts).float().log()
        for name, table in tables.items():
            self.register_buffer(name, table, persistent=False)

    def mean_vectors(self, vectors: Tensor) -> Tensor:
        """Of `items` [S, d] -> of the codes [n * M, d]"""
        vectors = vectors.to(torch.promote_types(vectors.dtype, torch.float32))
        sums = vectors.new_zeros(len(self.num_items), vectors.shape[1])
        sums.index_add_(0, self.code, vectors[self.item])
        return sums / self.num_items.clamp(min=1)[:, None]

    def forward(self, state: Tensor, means: Tensor) -> Tensor:
        """[B, d], [n * M, d] -> [B, n, M] logits"""
        return (state @ means.T + self.log_counts).unflatten(-1, self.shape)
