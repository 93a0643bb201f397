"""What models share that generate a semantic ID digit by digit, from left to right.

Trained with teacher forcing: the digits before it and the history predict each digit. Ranked by beam search over the
prefixes that exist; the score of a SID is the sum of the log-probabilities of its digits, each of a softmax over all
codes of the digit, whether they exist after the prefix or not. Letters in shapes: B samples (U users in a search), W
branches of a user, n digits, M codes per digit, d hidden size.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recbole_diffgrm.generation.beam_search import Beams, Step, beam_search
from recbole_diffgrm.generation.constraints import Constraint, TrieConstraint
from recbole_diffgrm.generation.item_ranking import GeneratedSids, concat, keep_existing
from recbole_diffgrm.generation.semantic_ids import MASKED
from recbole_diffgrm.models.base import LossOutput
from recbole_diffgrm.models.candidates import GeneratedItems
from recbole_diffgrm.models.programs import MemoryTensors, Programs
from recbole_diffgrm.models.search import SearchModel
from recbole_diffgrm.nn.kv_cache import BranchCache, Memory
from recbole_diffgrm.nn.linear import linear_per_digit


@dataclass(frozen=True)
class Sizes:
    """Of the network, to estimate memory."""

    hidden_size: int
    inner_size: int  # of the feed-forward layers
    attention_size: int  # of all heads together
    num_heads: int
    decoder_layers: int


class AutoregressiveModel(SearchModel):
    """A subclass has the network: an encoder, a decoder, and one embedding per code for input and output."""

    variable_length = True
    generates_stepwise = True
    label_smoothing = 0.0
    logit_scale = 1.0
    sizes: Sizes

    def __init__(self, config, dataset):
        super().__init__(config, dataset)
        self.semantic_ids = dataset.semantic_ids.with_trie()

    # The network

    @property
    @abstractmethod
    def code_table(self) -> Tensor:
        """[n, M, d]"""

    @property
    @abstractmethod
    def start_embedding(self) -> Tensor:
        """[d] input of the decoder at the first digit"""

    @abstractmethod
    def encode(self, batch) -> Memory:
        """Histories, as the decoder attends to them."""

    @abstractmethod
    def decode(self, x: Tensor, memory: Memory) -> Tensor:
        """Embedded digits, from the start on [B, n, d] -> states [B, n, d]"""

    @abstractmethod
    def decode_step(self, x: Tensor, memory: Memory, cache: BranchCache, parent: Tensor | None) -> Tensor:
        """The last known digit of every branch [U, W, d] -> states [U, W, d]"""

    def count_states(self, batch) -> int:
        """Encoder states of a history of this batch."""
        return batch[self.ITEM_SEQ].shape[1]

    # Training

    def losses(self, batch) -> LossOutput:
        """Cross-entropy of the digits, given those before them."""
        sids = self.semantic_ids.lookup(batch[self.ITEM_ID])  # [B, n]
        logits = self._logits(batch, sids)  # [B, n, M]
        losses = F.cross_entropy(
            logits.flatten(0, 1), sids.flatten(), reduction="none", label_smoothing=self.label_smoothing
        ).view_as(sids)
        with torch.no_grad():
            statistics = {
                "loss": losses.sum(0).float(),
                "correct": (logits.argmax(dim=-1) == sids).sum(0).float(),
                "count": torch.ones_like(sids).sum(0).float(),
            }
        return LossOutput({"sid": losses.mean()}, len(sids), statistics)

    def _logits(self, batch, sids: Tensor) -> Tensor:
        return self.decode_logits(sids, self.encode(batch))

    def decode_logits(self, sids: Tensor, memory: Memory) -> Tensor:
        """Of all digits of SIDs [B, n], each given those before it: [B, n, M]"""
        table = self.code_table
        n, m, _ = table.shape
        index = sids[:, :-1] + torch.arange(n - 1, device=sids.device) * m
        start = self.start_embedding.expand(sids.shape[0], 1, -1)
        x = torch.cat([start, F.embedding(index, table.flatten(0, 1))], dim=1)  # [B, n, d]
        states = self.decode(x, memory) * self.logit_scale
        return linear_per_digit(states, table)

    def summarize_statistics(self, sums: Mapping[str, list[float]], epoch: int) -> dict[str, Any]:
        return {
            f"digit_{name}": [total / count for total, count in zip(sums[key], sums["count"])]
            for name, key in (("loss", "loss"), ("accuracy", "correct"))
        }

    # Ranking

    def candidates(self, batch, depth: int, validation: bool = False) -> GeneratedItems:
        generated = self.generate(batch, self.valid_beam_widths if validation else self.beam_widths)
        return GeneratedItems(generated, self.semantic_ids, depth)

    def generate(self, batch, widths: Sequence[int]) -> GeneratedSids:
        """By beam search, in chunks of as many users as the memory for it allows."""
        num_digits, num_codes = self.semantic_ids.num_digits, self.semantic_ids.codebook_size
        numbers = numbers_per_user(self.sizes, self.count_states(batch), max(widths), num_digits, num_codes)
        chunk = max(1, int(self.decoding_memory * 2**20 / (4 * numbers)))
        parts = [batch[start : start + chunk] for start in range(0, len(batch), chunk)]
        return concat([keep_existing(self._search(part, widths), self.semantic_ids) for part in parts])

    def generate_beams(self, batch) -> Beams:
        return self._search(batch, self.beam_widths)

    def search_parts(self, batch) -> tuple[Step, Constraint]:
        constraint = TrieConstraint(self.semantic_ids.trie, self.semantic_ids.sids, self.normalize_codes)
        return self._make_step(self.encode(batch)), constraint

    def _search(self, batch, widths: Sequence[int]) -> Beams:
        device = batch[self.ITEM_SEQ].device
        return beam_search(*self.search_parts(batch), widths, len(batch), device, int(self.normalize_codes))

    def _make_step(self, memory: Memory) -> Step:
        """Keys and values of the history serve all branches and steps; those of a branch's own digits are cached."""
        cache, table = BranchCache(), self.code_table

        def step(known: Tensor, parent: Tensor | None) -> Tensor:
            num_users, _, n = known.shape
            digit = int((known[0, 0] != MASKED).sum())  # the same for all: the next one to fill
            if digit == 0:
                x = self.start_embedding.expand(num_users, 1, -1)
            else:
                # Where a user has fewer branches there is no code: any one will do.
                x = F.embedding(known[..., digit - 1].clamp(min=0), table[digit - 1])  # [U, W, d]
            states = self.decode_step(x, memory, cache, parent) * self.logit_scale
            log_probs = (states @ table[digit].T).log_softmax(dim=-1)  # [U, W, M]
            return log_probs[:, :, None].expand(-1, -1, n, -1)  # only those of the next digit are read

        return step

    def programs(self) -> Programs:
        search = {"constraint": "trie", "normalize": self.normalize_codes}
        return Programs(_Encode(self), _PrefixStep(self), search)


class _Encode(nn.Module):
    """For torch.export (models/programs.py)."""

    def __init__(self, model: AutoregressiveModel):
        super().__init__()
        self.model = model

    def forward(self, items: Tensor, length: Tensor) -> tuple[MemoryTensors, None]:
        memory = self.model.encode({self.model.ITEM_SEQ: items, self.model.ITEM_SEQ_LEN: length})
        return {"keys": list(memory.keys), "values": list(memory.values), "bias": memory.bias}, None


class _PrefixStep(nn.Module):
    """For torch.export: without a cache, whose size would change from step to step; branches are decoded from their
    first digit on."""

    def __init__(self, model: AutoregressiveModel):
        super().__init__()
        self.model = model

    def forward(self, digits: Tensor, memory: dict[str, Any]) -> Tensor:
        num_users, width, n = digits.shape
        keys, values, [bias] = (
            [part[:, None].expand(-1, width, -1, -1, -1).flatten(0, 1) for part in parts]
            for parts in (memory["keys"], memory["values"], [memory["bias"]])
        )
        # A digit that is still open is not read: those before it do not see it.
        logits = self.model.decode_logits(digits.flatten(0, 1).clamp(min=0), Memory(keys, values, bias))
        return logits.log_softmax(dim=-1).view(num_users, width, n, -1)


def numbers_per_user(sizes: Sizes, num_states: int, width: int, num_digits: int, num_codes: int) -> int:
    """That a user's search holds at its peak, an estimate: in the encoder, or in the last step of the decoder."""
    token = 6 * sizes.hidden_size + 2 * sizes.inner_size + 4 * sizes.attention_size + 3 * sizes.num_heads * num_states
    memory = 2 * sizes.decoder_layers * num_states * sizes.attention_size
    branch = token + 3 * num_codes + 4 * sizes.decoder_layers * num_digits * sizes.attention_size  # its cache, twice
    return max(num_states * token, memory + width * branch)
