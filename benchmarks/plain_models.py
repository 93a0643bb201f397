"""Straightforward implementations of the bench's models on the same weights: the reference of the benchmarks.

Plain PyTorch on histories padded to the longest allowed, without this project's shortcuts: the digits of an item are
gathered one by one, a beam search copies the history for every branch. TIGER and ActionPiece are transformers' T5, and
its `generate` decodes. `forward` is the loss that the model itself computes, `recommend` the best 10 items of each
user. DiffGRM's is in plain.py.
"""

from plain import BEST, decode_sids, encode
from plain import loss as diffgrm_loss
from plain_generators import PlainActionPiece, PlainARM, PlainTIGER
from plain_scorers import PlainHSTU, PlainRecJPQ, PlainRPG, PlainVQRec
from torch import Tensor, nn


class PlainDiffGRM(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model
        self.existing = set(map(tuple, model.semantic_ids.sids.tolist()))

    def forward(self, batch) -> Tensor:
        return diffgrm_loss(self.model, batch)

    def recommend(self, batch, beam: int) -> list[list[tuple[int, ...]]]:
        """SIDs, by the paper's search over all of them."""
        codes = self.model.semantic_ids.lookup(batch["item_id_list"])
        memory = encode(self.model.network, codes, batch["item_length"])
        return [sids[:BEST] for sids in decode_sids(self.model.network, memory, beam, self.existing)]


REFERENCES = {
    "DiffGRM": PlainDiffGRM,
    "TIGER": PlainTIGER,
    "ARM": PlainARM,
    "ActionPiece": PlainActionPiece,
    "RPG": PlainRPG,
    "HSTU": PlainHSTU,
    "VQRec": PlainVQRec,
    "RecJPQ": PlainRecJPQ,
}


def reference(name: str, model) -> nn.Module:
    return REFERENCES[name](model).train(model.training)
