"""DiffGRM's side of a beam search: its step function, the constraint of each value of the option `decoding`, and how
many users fit in memory at once."""

from collections.abc import Callable

import torch
from torch import Tensor

from recbole_diffgrm.generation.beam_search import Step
from recbole_diffgrm.generation.constraints import Constraint, LatticeConstraint, NoConstraint
from recbole_diffgrm.generation.semantic_ids import MASKED, SemanticIds
from recbole_diffgrm.models.diffgrm.network import DiffGRMConfig, DiffGRMNetwork, EncodedHistory

# The constraint of each decoding, from (semantic_ids, path_merge, normalize_codes, seed)
CONSTRAINTS: dict[str, Callable[[SemanticIds, str, bool, int], Constraint]] = {
    "constrained": lambda ids, path_merge, normalize, seed: LatticeConstraint(ids.lattice, path_merge, normalize),
    "unconstrained": lambda ids, path_merge, normalize, seed: NoConstraint(ids.num_digits, ids.codebook_size),
    "unconstrained_greedy_last": lambda ids, path_merge, normalize, seed: NoConstraint(
        ids.num_digits, ids.codebook_size, greedy_last=True
    ),
    "fixed_order": lambda ids, path_merge, normalize, seed: NoConstraint(
        ids.num_digits, ids.codebook_size, order=digit_order(ids.num_digits, seed)
    ),
}


def make_constraint(
    decoding: str, path_merge: str, normalize: bool, semantic_ids: SemanticIds, seed: int
) -> Constraint:
    return CONSTRAINTS[decoding](semantic_ids, path_merge, normalize, seed)


def digit_order(num_digits: int, seed: int) -> list[int]:
    """The random permutation of `fixed_order`, the paper's ablation without CPD."""
    order: list[int] = torch.randperm(num_digits, generator=torch.Generator().manual_seed(seed)).tolist()
    return order


def make_step(network: DiffGRMNetwork, history: EncodedHistory) -> Step:
    """Predictions of all open digits in parallel; keys and values of the history serve all branches and steps."""

    def step(known: Tensor, parent: Tensor | None) -> Tensor:
        _, num_branches, n = known.shape
        is_open = known == MASKED
        num_open = int(is_open[0, 0].sum())
        # The last layer computes only the open digits of each branch.
        digit = is_open.int().argsort(dim=2, descending=True, stable=True)[..., :num_open]
        position = digit + torch.arange(num_branches, device=known.device)[:, None] * n  # [U, W, num_open]
        return network.digit_logits(known, history, position.flatten(1)).log_softmax(dim=-1)

    return step


def users_per_chunk(config: DiffGRMConfig, width: int, length: int, memory_mib: float) -> int:
    """Users whose beams fit in the memory, for histories of `length` items: an estimate of the peak."""
    branch_digits = width * config.num_digits
    layer = 6 * config.hidden_size + 2 * config.inner_size + 3 * config.num_heads * (length + 1)  # numbers per digit
    head = 4 * config.codebook_size
    cached = 2 * config.decoder_layers * (length + 1) * config.hidden_size  # keys and values
    return max(1, int(memory_mib * 2**20 / (4 * (branch_digits * (layer + head) + cached))))
