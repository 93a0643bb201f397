"""What ActionPiece can predict and how it is searched: labels of items, their trie, and the ensemble of rankings.

The decoder predicts the tokens of an item's label, then EOS. The release generates any tokens and drops what is not an
item; here only labels are followed, and each pays for its EOS. Letters in shapes: D distinct SIDs, K outputs (padding,
EOS and the tokens that occur in labels), k outputs of a label, U users, q segmentations, W branches.
"""

import numpy as np
import torch
from torch import Tensor, nn

from recbole_diffgrm.generation.item_ranking import GeneratedSids
from recbole_diffgrm.generation.ranges import number_within
from recbole_diffgrm.generation.semantic_ids import distinct_sids, find_rows
from recbole_diffgrm.generation.trie import Trie, build_trie
from recbole_diffgrm.models.actionpiece.vocabulary import PAD, Vocabulary

PAD_OUTPUT, EOS_OUTPUT = 0, 1  # others follow
SCORE_UNIT = 2**40  # ranks score in whole numbers of 1 / SCORE_UNIT: sums of the same scores are equal in any order


class Labels(nn.Module):
    """Made from the vocabulary, so not saved with the weights."""

    outputs: Tensor  # [K] token of each output: padding, EOS, then ascending
    codes: Tensor  # [D, k] outputs of each SID's label: its tokens, EOS, then padding
    ordered: Tensor  # [D, k] the same, ascending
    order: Tensor  # [D] SID of each of these

    def __init__(self, vocabulary: Vocabulary, tokens: np.ndarray):
        """`tokens` [D, n] of each SID, padded on the right."""
        super().__init__()
        used = np.unique(tokens[tokens != PAD])
        outputs = np.concatenate([[PAD, vocabulary.eos], used])
        length = (tokens != PAD).sum(axis=1)
        codes = np.where(tokens == PAD, PAD_OUTPUT, np.searchsorted(used, tokens) + 2)
        codes = np.pad(codes, ((0, 0), (0, 1)), constant_values=PAD_OUTPUT)
        codes[np.arange(len(codes)), length] = EOS_OUTPUT
        codes = codes[:, : length.max() + 1]
        ordered, row = distinct_sids(torch.from_numpy(codes))
        trie = build_trie(ordered, len(outputs))
        arrays = {"outputs": torch.from_numpy(outputs), "codes": torch.from_numpy(codes), "ordered": ordered}
        arrays |= {"order": row.argsort()} | {f"trie_{name}": array for name, array in trie._asdict().items()}
        for name, array in arrays.items():
            self.register_buffer(name, array, persistent=False)

    @property
    def trie(self) -> Trie:
        return Trie(*(self.get_buffer(f"trie_{name}") for name in Trie._fields))

    def find(self, codes: Tensor) -> Tensor:
        """Labels [R, k] -> rows of their SIDs [R], -1 for none."""
        row = find_rows(self.ordered, codes)
        return torch.where(row >= 0, self.order[row.clamp(min=0)], -1)


def combine_rankings(rows: Tensor) -> GeneratedSids:
    """The ensemble of q rankings of each user [U, q, W]: SIDs as rows, best first, -1 for none.

    Rank j (from 0) of a ranking adds 1 / log2(j + 2) to the score of its SID. Of equal scores the SID with the better
    best rank comes first, then the smaller row.
    """
    num_users, _, width = rows.shape
    device = rows.device
    rank = torch.arange(width, device=device).expand_as(rows)
    gain = (SCORE_UNIT / torch.arange(2, width + 2, dtype=torch.float64, device=device).log2()).round().long()
    user = torch.arange(num_users, device=device)[:, None, None].expand_as(rows)
    is_sid = rows >= 0
    base = int(rows.max()) + 1 if len(rows) else 1
    key, number = torch.unique(user[is_sid] * base + rows[is_sid], return_inverse=True)  # [C] users and rows, ascending
    score = torch.zeros_like(key).index_add(0, number, gain[rank[is_sid]])
    best = torch.full_like(key, width).scatter_reduce(0, number, rank[is_sid], "amin")
    order = best.argsort(stable=True)
    order = order[score[order].argsort(descending=True, stable=True)]
    order = order[(key[order] // base).argsort(stable=True)]
    key, score = key[order], score[order]
    user = key // base
    num_distinct = torch.bincount(user, minlength=num_users)
    place = number_within(user)
    shape = (num_users, max(1, int(num_distinct.max())) if num_users else 1)
    ranked = GeneratedSids(
        rows=torch.full(shape, -1, device=device),
        scores=torch.full(shape, -torch.inf, dtype=torch.float64, device=device),
        num_generated=is_sid.sum(dim=(1, 2)),
        num_distinct=num_distinct,
    )
    ranked.rows[user, place] = key % base
    ranked.scores[user, place] = score.double() / SCORE_UNIT
    return ranked
