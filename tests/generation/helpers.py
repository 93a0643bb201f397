"""Random catalogs, and a network small enough to search by enumeration."""

import torch
from torch import Tensor

from recbole_diffgrm.generation.lattice import Lattice, build_lattice
from recbole_diffgrm.generation.semantic_ids import MASKED, SemanticIds, distinct_sids
from recbole_diffgrm.generation.trie import Trie, build_trie


def random_sids(num_items: int, num_digits: int, codebook_size: int, seed: int = 0) -> Tensor:
    return torch.randint(codebook_size, (num_items, num_digits), generator=torch.Generator().manual_seed(seed))


def lattice_of(sids: Tensor, codebook_size: int) -> Lattice:
    return build_lattice(distinct_sids(sids)[0], codebook_size)


def trie_of(sids: Tensor, codebook_size: int) -> Trie:
    return build_trie(distinct_sids(sids)[0], codebook_size)


def make_catalog(num_items: int = 40, num_digits: int = 3, codebook_size: int = 5, seed: int = 0) -> SemanticIds:
    sids = random_sids(num_items + 1, num_digits, codebook_size, seed)
    return SemanticIds.build(sids, codebook_size, torch.zeros(num_items + 1)).with_lattice()


class RandomStep:
    """A step function: log-probabilities depend on the user and on all known digits of a branch."""

    def __init__(self, num_digits: int, codebook_size: int, num_users: int, seed: int = 0, width: int = 16):
        draw = torch.Generator().manual_seed(seed)

        def randn(*shape: int) -> Tensor:
            return torch.randn(shape, generator=draw, dtype=torch.double)

        self.users, self.inputs = (
            randn(num_users, width),
            randn(num_digits, codebook_size + 1, width),
        )  # the last: MASKED
        self.outputs = randn(num_digits, codebook_size, width) * 0.6

    def __call__(self, known: Tensor, parent: Tensor | None = None, users: Tensor | None = None) -> Tensor:
        """[U, W, n] -> [U, W, n, M]; `users` [U]: which ones they are."""
        user = self.users if users is None else self.users[users]
        digit = torch.arange(known.shape[-1])
        codes = self.inputs[digit, known.masked_fill(known == MASKED, self.inputs.shape[1] - 1)].sum(dim=2)
        states = torch.tanh(user[:, None] + codes)  # [U, W, width]
        return torch.einsum("uwd,nmd->uwnm", states, self.outputs).log_softmax(dim=-1)
