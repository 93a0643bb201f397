"""Straightforward TIGER, ActionPiece and ARM: digits or tokens from left to right (see plain_models.py)."""

import math
from collections import defaultdict
from itertools import pairwise

import torch
import torch.nn.functional as F
from plain import BEST, attend_cross, attend_self, feed_forward
from torch import Tensor, nn
from weights import hugging_face_t5


class PlainTIGER(nn.Module):
    def __init__(self, model):
        super().__init__()
        ids = self.ids = model.semantic_ids
        self.table = ids.lookup(torch.arange(model.n_items)) + torch.arange(ids.num_digits) * ids.codebook_size
        self.item_of = {tuple(sid): item for item, sid in enumerate(self.table.tolist()) if item > 0}
        self.start = model.num_codes
        self.t5 = make_t5(model, model.token_embedding, self.start)

    def forward(self, batch) -> Tensor:
        m, n = self.ids.codebook_size, self.ids.num_digits
        target = self.table[batch["item_id"]]
        before = F.pad(target[:, :-1], (1, 0), value=self.start)
        logits = self.t5(**self._history(batch), decoder_input_ids=before).logits  # [B, n, V]
        digits = [F.cross_entropy(logits[:, k, k * m : (k + 1) * m], target[:, k] - k * m) for k in range(n)]
        return sum(digits) / n

    def recommend(self, batch, beam: int) -> list[list[int]]:
        m, n = self.ids.codebook_size, self.ids.num_digits
        existing = OnlyExisting(list(self.item_of), lambda place: torch.arange(m) + place * m, padding=self.start)
        found = generate(self.t5, self._history(batch), beam, n, existing)  # [B * 10, n]
        items = [self.item_of[tuple(sid)] for sid in found.tolist()]
        return [items[start : start + BEST] for start in range(0, len(items), BEST)]

    def _history(self, batch) -> dict[str, Tensor]:
        items = batch["item_id_list"]
        mask = (items > 0).long().repeat_interleave(self.ids.num_digits, dim=1)
        return {"input_ids": self.table[items].flatten(1), "attention_mask": mask}


class PlainActionPiece(nn.Module):
    """Histories are segmented one by one; a softmax is over the outputs of the model, not over all tokens. `generate`
    does not count finished labels among its branches, so it may find others than the model does."""

    def __init__(self, model):
        super().__init__()
        self.ids, self.features, self.bos, self.eos = model.semantic_ids, model.features, model.bos, model.eos
        self.outputs, self.codes = model.labels.outputs, model.labels.codes
        self.count, self.seed = model.num_segmentations, model.segmentation_seed
        rules, pairs = model.rules, model.vocabulary_pairs.tolist()
        first = rules.size - len(pairs)
        self.rules = {tuple(pair): first + number for number, pair in enumerate(pairs)}
        self.labels = {tuple(self.outputs[code[code > 0]].tolist()): row for row, code in enumerate(self.codes)}
        self.item_of = {int(row): item for item, row in enumerate(self.ids.sid_index) if item > 0}
        self.t5 = make_t5(model, model.embedding.weight, 0, self.eos)

    def forward(self, batch) -> Tensor:
        items = batch["item_id_list"]
        keys = torch.rand(*items.shape, self.features.shape[1]).numpy()
        codes = self.codes[self.ids.sid_index[batch["item_id"]].long()]  # [B, k]
        before = self.outputs[F.pad(codes[:, :-1], (1, 0))]
        logits = self.t5(**self._history(items.numpy(), keys), decoder_input_ids=before).logits
        logits = logits[codes > 0][:, self.outputs[1:]]
        return F.cross_entropy(logits, codes[codes > 0] - 1)

    def recommend(self, batch, beam: int) -> list[list[int]]:
        from recbole_diffgrm.models.actionpiece.segmentation import hash_keys

        items = batch["item_id_list"].numpy()
        keys = hash_keys(items, self.features.shape[1], self.count, self.seed)  # the same segmentations
        existing = OnlyExisting(list(self.labels), lambda place: self.outputs[1:], padding=0)
        history = self._history(items.repeat(self.count, axis=0), keys)
        found = generate(self.t5, history, beam, self.codes.shape[1], existing, return_all=True)
        found = found.view(len(items), self.count, beam, -1).tolist()
        return [self._combine(rankings) for rankings in found]

    def _combine(self, rankings: list) -> list[int]:
        scores, best = defaultdict(float), {}
        for ranking in rankings:
            for rank, label in enumerate(ranking):
                row = self.labels.get(tuple(label[: label.index(self.eos) + 1]))
                if row is not None:
                    scores[row] += 1 / math.log2(rank + 2)
                    best[row] = min(rank, best.get(row, rank))
        order = sorted(scores, key=lambda row: (-scores[row], best[row], row))
        return [self.item_of[row] for row in order[:BEST]]

    def _history(self, items, keys) -> dict[str, Tensor]:
        rows = [self._segment(*row) for row in zip(items, keys)]
        tokens = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
        for row, mine in enumerate(rows):
            tokens[row, : len(mine)] = torch.tensor(mine)
        return {"input_ids": tokens, "attention_mask": (tokens > 0).long()}

    def _segment(self, items, keys) -> list[int]:
        """Of one history: the neighbours with the lowest token are merged, over and over."""
        tokens = [
            token
            for item, order in zip(items, keys.argsort(1))
            if item
            for token in self.features[item][order].tolist()
        ]
        while True:
            merged = [self.rules.get((min(pair), max(pair)), math.inf) for pair in pairwise(tokens)]
            if not merged or (lowest := min(merged)) == math.inf:
                return [self.bos, *tokens, self.eos]
            place = merged.index(lowest)
            tokens[place : place + 2] = [lowest]


def make_t5(model, embedding: Tensor, start: int, eos: int | None = None) -> nn.Module:
    """transformers' T5 with the same weights."""
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = model.sizes
    config = T5Config(
        vocab_size=len(embedding),
        d_model=sizes.hidden_size,
        d_kv=sizes.attention_size // sizes.num_heads,
        d_ff=sizes.inner_size,
        num_layers=len(model.encoder.layers),
        num_decoder_layers=len(model.decoder.layers),
        num_heads=sizes.num_heads,
        dropout_rate=model.encoder.dropout,
        decoder_start_token_id=start,
        pad_token_id=start,
        eos_token_id=eos,
    )
    t5 = T5ForConditionalGeneration(config)
    table = embedding.detach().clone()
    weights = hugging_face_t5(model.encoder, model.decoder)
    weights |= {name: table for name in t5.state_dict() if name.endswith(("shared.weight", "embed_tokens.weight"))}
    weights["lm_head.weight"] = table
    t5.load_state_dict(weights)
    return t5


def generate(t5, history: dict, beam: int, length: int, existing, return_all: bool = False) -> Tensor:
    """Tokens after the start [B * 10 (or the beam), length], best first."""
    found = t5.generate(
        **history,
        num_beams=beam,
        num_return_sequences=beam if return_all else BEST,
        max_new_tokens=length,
        length_penalty=0.0,
        do_sample=False,
        logits_processor=[existing],
    )
    return F.pad(found[:, 1:], (0, length + 1 - found.shape[1]))


class OnlyExisting:
    """For `generate`: log-probabilities over the tokens of a place, of those only that continue a sequence."""

    def __init__(self, sequences: list[tuple[int, ...]], tokens_at, padding: int):
        self.following, self.tokens_at, self.padding = following_tokens(sequences), tokens_at, padding

    def __call__(self, tokens: Tensor, scores: Tensor) -> Tensor:
        there = self.tokens_at(tokens.shape[1] - 1)
        normalized = torch.full_like(scores, -torch.inf)
        normalized[:, there] = scores[:, there].log_softmax(-1)
        allowed = torch.full_like(scores, -torch.inf)
        for row, prefix in enumerate(tokens[:, 1:].tolist()):
            allowed[row, self.following.get(tuple(prefix), [self.padding])] = 0
        return normalized + allowed


def following_tokens(sequences: list[tuple[int, ...]]) -> dict[tuple[int, ...], list[int]]:
    """{the first tokens of a sequence: those that can follow}"""
    following = defaultdict(set)
    for sequence in sequences:
        for place, token in enumerate(sequence):
            following[sequence[:place]].add(token)
    return {prefix: sorted(tokens) for prefix, tokens in following.items()}


class PlainARM(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model
        self.table = model.semantic_ids.lookup(torch.arange(model.n_items))
        self.item_of = {tuple(sid): item for item, sid in reversed(list(enumerate(self.table.tolist()))) if item > 0}
        self.following = following_tokens(list(self.item_of))

    def forward(self, batch) -> Tensor:
        target = self.table[batch["item_id"]]
        memory, mask = self._encode(batch)
        logits = self._decode(target[:, :-1], memory, mask)  # [B, n, M]
        smoothing = self.model.label_smoothing
        return F.cross_entropy(logits.flatten(0, 1), target.flatten(), label_smoothing=smoothing)

    def recommend(self, batch, beam: int) -> list[list[int]]:
        memory, mask = self._encode(batch)
        num_users, n, m = len(memory), *self.model.code_embedding.shape[:2]
        sids, scores = torch.zeros(num_users, 1, 0, dtype=torch.long), torch.zeros(num_users, 1)
        for _ in range(n):
            width = sids.shape[1]
            copies = (part.repeat_interleave(width, 0) for part in (memory, mask))
            log_probs = self._decode(sids.flatten(0, 1), *copies)[:, -1].log_softmax(-1)
            allowed = torch.full_like(log_probs, -torch.inf)
            for row, prefix in enumerate(sids.flatten(0, 1).tolist()):
                allowed[row, self.following.get(tuple(prefix), [])] = 0
            reached = (scores[..., None] + (log_probs + allowed).view(num_users, width, m)).flatten(1)
            scores, best = reached.topk(min(beam, reached.shape[1]))
            parents = sids.gather(1, (best // m)[..., None].expand(-1, -1, sids.shape[2]))
            sids = torch.cat([parents, (best % m)[..., None]], dim=2)
        return [[self.item_of[tuple(sid)] for sid in mine[:BEST]] for mine in sids.tolist()]

    def _encode(self, batch) -> tuple[Tensor, Tensor]:
        model = self.model
        codes, mask = self.table[batch["item_id_list"]], (batch["item_id_list"] > 0)[:, None, None]
        joined = torch.cat([model.code_embedding[k][codes[..., k]] for k in range(codes.shape[-1])], dim=-1)
        mlp = model.item_embedding
        x = mlp.outer(F.relu(mlp.inner(joined))) + model.position_embedding[: codes.shape[1]]
        x = F.dropout(x, model.dropout, self.training)
        for layer in model.encoder:
            x = feed_forward(layer, attend_self(layer, x, mask))
        return model.norm(x), mask

    def _decode(self, known: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        """The first t digits [B, t] -> logits of these and the next [B, t + 1, M]"""
        model, t = self.model, known.shape[1]
        codes = [model.code_embedding[k][known[:, k]] for k in range(t)]
        y = torch.stack([model.bos_embedding.expand(len(known), -1), *codes], dim=1)
        y = F.dropout(y, model.dropout, self.training)
        causal = torch.ones(t + 1, t + 1, dtype=torch.bool).tril()
        for layer in model.decoder.layers:
            y = feed_forward(layer, attend_cross(layer, attend_self(layer, y, causal), memory, mask))
        return torch.einsum("btd,tmd->btm", model.norm(y), model.code_embedding[: t + 1])
