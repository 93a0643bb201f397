"""DiffGRM for torch.export (models/programs.py)."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from recbole_diffgrm.errors import UserError
from recbole_diffgrm.models.diffgrm.network import DiffGRMNetwork, EncodedHistory
from recbole_diffgrm.models.programs import MemoryTensors, Programs

if TYPE_CHECKING:
    from recbole_diffgrm.models.diffgrm.model import DiffGRM


def make_programs(model: "DiffGRM") -> Programs:
    if model.decoding != "constrained":
        raise UserError(f"export: decoding must be constrained, not {model.decoding}")
    if model.item_scoring == "generated":
        raise UserError("export: item_scoring must be full or none: programs score all items, or none")
    search = {
        "constraint": "lattice",
        "merge": model.path_merge,
        "normalize": model.normalize_codes,
    }
    return Programs(_Encode(model), _Step(model.network), search)


class _Encode(nn.Module):
    vectors: Tensor | None  # [N + 1, d] of all items, once and for all
    code_means: Tensor | None

    def __init__(self, model: "DiffGRM"):
        super().__init__()
        self.model, prior = model, model.code_prior
        items = torch.arange(model.n_items, device=model.semantic_ids.sids.device)
        self.register_buffer("vectors", model._embed(items) if model.item_scoring == "full" else None)
        self.register_buffer("code_means", prior.mean_vectors(model._embed(prior.items)) if prior else None)

    def forward(self, items: Tensor, length: Tensor) -> tuple[MemoryTensors, Tensor | None]:
        model = self.model
        states = model._encode({model.ITEM_SEQ: items, model.ITEM_SEQ_LEN: length})
        last = states.gather(1, (length - 1)[:, None, None].expand(-1, 1, states.shape[2])).squeeze(1)  # [B, d]
        history = model.network.precompute_kv(states, length)
        memory: MemoryTensors = {"keys": list(history.keys), "values": list(history.values), "bias": history.bias}
        if model.code_prior is not None:
            memory["prior"] = model.code_prior(last, self.code_means)
        if self.vectors is None:
            return memory, None
        return memory, model.network.item_logits(last, self.vectors, items).float().log_softmax(dim=-1)


class _Step(nn.Module):
    def __init__(self, network: DiffGRMNetwork):
        super().__init__()
        self.network = network

    def forward(self, digits: Tensor, memory: dict[str, Any]) -> Tensor:
        """All digits of all branches: which ones are open differs from step to step, and programs do not."""
        return self.network.digit_logits(digits, EncodedHistory(**memory)).log_softmax(dim=-1)
