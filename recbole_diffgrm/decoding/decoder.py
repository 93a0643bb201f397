"""From histories to ranked IDs of the catalogue, by one of the policies of beam.py."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from recbole_diffgrm.decoding.beam import Predict, Ranked, search_all, search_catalogue
from recbole_diffgrm.decoding.catalogue import Catalogue
from recbole_diffgrm.decoding.items import moved_up
from recbole_diffgrm.decoding.lattice import rows_of
from recbole_diffgrm.network.network import MASKED, DiffGRMNetwork, History, Shape


class Policy(NamedTuple):
    kind: str  # catalogue, paper, released, fixed_order
    merge: str  # catalogue: logsumexp, max
    seed: int  # fixed_order: of the permutation


class GeneratedIds(NamedTuple):
    """IDs of the catalogue for each user, each once, best first."""

    rows: Tensor  # [U, W] rows of the lattice's ids, -1 for none
    score: Tensor  # [U, W] log-probability, -inf for none
    generated: Tensor  # [U] how many IDs the search gave
    distinct: Tensor  # [U] how many of them differ


def search(
    network: DiffGRMNetwork, history: History, catalogue: Catalogue, widths: Sequence[int], policy: Policy
) -> Ranked:
    """IDs of the users whose histories are given, as the policy finds them."""
    users, shape = len(history.bias), (catalogue.digits, catalogue.codes)
    predict = predictor(network, history)
    if policy.kind == "catalogue":
        return search_catalogue(predict, users, catalogue.lattice, widths, policy.merge)
    order = digit_order(shape[0], policy.seed) if policy.kind == "fixed_order" else None
    return search_all(predict, users, shape, widths, order, policy.kind == "released", history.bias.device)


def existing(ranked: Ranked, catalogue: Catalogue) -> GeneratedIds:
    """Each ID once, where it is best, and only those of the catalogue."""
    users, width, _ = ranked.ids.shape
    is_live = ranked.score > -torch.inf
    rows = rows_of(catalogue.lattice_ids, ranked.ids.flatten(0, 1)).view(users, width)
    is_first = is_live & _is_first(ranked.ids)
    kept = is_first & (rows >= 0)
    return GeneratedIds(
        moved_up(rows, kept, -1), moved_up(ranked.score, kept, -torch.inf), is_live.sum(1), is_first.sum(1)
    )


def predictor(network: DiffGRMNetwork, history: History) -> Predict:
    def predict(known: Tensor) -> Tensor:
        _, branches, n = known.shape
        is_open = known == MASKED
        count = int(is_open[0, 0].sum())
        # Each branch's open digits: the last layer works for these only.
        digit = is_open.int().argsort(dim=2, descending=True, stable=True)[..., :count]
        wanted = digit + torch.arange(branches, device=known.device)[:, None] * n  # [U, W, count]
        return network.logits(network.decode(known, history, wanted.flatten(1))).log_softmax(dim=-1)

    return predict


def digit_order(digits: int, seed: int) -> Tensor:
    """The permutation of `fixed_order`."""
    return torch.randperm(digits, generator=torch.Generator().manual_seed(seed))


def users_at_once(shape: Shape, width: int, length: int, memory_mib: float) -> int:
    """How many users' beams fit in the memory, for histories of `length` items: an estimate of the largest moment."""
    branch_digits = width * shape.digits
    layer = 6 * shape.width + 2 * shape.inner_width + 3 * shape.heads * (length + 1)  # numbers a digit
    head = 4 * shape.codes
    cached = 2 * shape.decoder_layers * (length + 1) * shape.width  # keys and values
    return max(1, int(memory_mib * 2**20 / (4 * (branch_digits * (layer + head) + cached))))


def _is_first(ids: Tensor) -> Tensor:
    """[U, W]: is no earlier ID of the user the same? ids: [U, W, n]"""
    users, width, _ = ids.shape
    user = torch.arange(users, device=ids.device)[:, None, None].expand(-1, width, 1)
    _, number = torch.unique(torch.cat([user, ids], dim=2).flatten(0, 1), dim=0, return_inverse=True)
    place = torch.arange(users * width, device=ids.device)
    first = place.new_full((int(number.max()) + 1,), users * width).scatter_reduce(0, number, place, "amin")
    return (first[number] == place).view(users, width)
