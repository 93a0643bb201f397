"""Straightforward RPG, HSTU, VQ-Rec and RecJPQ: the scores of all items (see plain_models.py)."""

import torch
import torch.nn.functional as F
from plain import BEST, attention
from torch import Tensor, nn


class PlainScorer(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model
        if getattr(model, "semantic_ids", None) is not None:
            self.table = model.semantic_ids.lookup(torch.arange(model.n_items))

    def recommend(self, batch, beam: int) -> list[list[int]]:
        rows = torch.arange(len(batch["item_length"]))
        scores = self.score(self.encode(batch)[rows, batch["item_length"] - 1])  # [B, N + 1]
        scores[:, 0] = -torch.inf
        return scores.topk(BEST).indices.tolist()

    def states_and_targets(self, batch) -> tuple[Tensor, Tensor]:
        """States [T, d] and the items [T] that they are to predict, of one padded row a user."""
        states, targets = self.encode(batch), self.model.targets(batch)
        return states[targets.row, targets.position], targets.item


class PlainRPG(PlainScorer):
    def forward(self, batch) -> Tensor:
        states, items = self.states_and_targets(batch)
        target = self.table[items]
        logits = self._digits(states)
        return sum(F.cross_entropy(of, target[:, k]) for k, of in enumerate(logits)) / len(logits)

    def score(self, states: Tensor) -> Tensor:
        log_probs = [logits.log_softmax(-1) for logits in self._digits(states)]
        return sum(of[:, self.table[:, k]] for k, of in enumerate(log_probs)) / len(log_probs)

    def encode(self, batch) -> Tensor:
        model, codes = self.model, self.table[batch["item_id_list"]]
        x = torch.stack([model.code_embedding[k][codes[..., k]] for k in range(codes.shape[-1])]).mean(0)
        x = F.dropout(x + model.position_embedding[: x.shape[1]], model.embedding_dropout, self.training)
        causal = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        for layer in model.layers:
            layer.dropout = layer.attention_dropout
            mixed = attention(layer, *layer.query_key_value(layer.attention_norm(x)).chunk(3, -1), causal)
            x = x + layer.attention_out(mixed)
            x = x + layer.outer(F.gelu(layer.inner(layer.norm(x)), approximate="tanh"))
        return model.norm(x)

    def _digits(self, states: Tensor) -> list[Tensor]:
        """Logits [T, M] of each digit."""
        model, logits = self.model, []
        for weight, bias, codes in zip(model.head_weight, model.head_bias, model.code_embedding):
            output = F.normalize(states + F.silu(states @ weight + bias), dim=-1)
            logits.append(output @ F.normalize(codes, dim=-1).T / model.temperature)
        return logits


class PlainHSTU(PlainScorer):
    """With item ids."""

    def forward(self, batch) -> Tensor:
        states, target = self.states_and_targets(batch)
        model = self.model
        states, vectors = F.normalize(states, dim=-1), F.normalize(model.embedding, dim=-1)
        negatives = torch.randint(1, model.n_items, (model.num_negatives,))
        of_target = (states * vectors[target]).sum(-1, keepdim=True)
        of_others = (states @ vectors[negatives].T).masked_fill(negatives == target[:, None], -torch.inf)
        return F.cross_entropy(torch.cat([of_target, of_others], 1) / model.temperature, torch.zeros_like(target))

    def score(self, states: Tensor) -> Tensor:
        return F.normalize(states, dim=-1) @ F.normalize(self.model.embedding, dim=-1).T

    def encode(self, batch) -> Tensor:
        model, items = self.model, batch["item_id_list"]
        size, d = items.shape[1], model.embedding.shape[1]
        x = model.embedding[items] * d**0.5 + model.position_embedding[:size]
        x = F.dropout(x, model.embedding_dropout, self.training)
        position = torch.arange(size)
        bias = model.position_bias[position - position[:, None] + model.longest - 1][None]  # [1, L, L, layers]
        if model.time_bias is not None:
            bias = bias + model.time_bias[self._time_buckets(batch)]
        causal = torch.ones(size, size).tril()
        for number, layer in enumerate(model.layers):
            parts = F.silu(layer.gate_value_query_key(F.layer_norm(x, (d,), eps=1e-6))).chunk(4, -1)
            gate, (v, q, k) = (
                parts[0],
                (part.unflatten(-1, (layer.num_heads, -1)).transpose(1, 2) for part in parts[1:]),
            )
            weights = F.silu(q @ k.transpose(-1, -2) + bias[:, None, ..., number]) / layer.normalizer * causal
            mixed = F.layer_norm((weights @ v).transpose(1, 2).flatten(2), (d,), eps=1e-6)
            x = x + layer.out(F.dropout(gate * mixed, layer.dropout, self.training))
        return x

    def _time_buckets(self, batch) -> Tensor:
        time, last = batch[self.model.time_list].double(), batch["item_length"][:, None] - 1
        following = time.roll(-1, 1).scatter(1, last, time.gather(1, last))
        difference = (following[:, :, None] - time[:, None]).abs().clamp(min=1)
        return (difference.log() / 0.301).long().clamp(max=128)


class PlainVQRec(PlainScorer):
    def forward(self, batch) -> Tensor:
        states, target = self.states_and_targets(batch)
        return F.cross_entropy(self.score(states)[:, 1:], target - 1)

    def score(self, states: Tensor) -> Tensor:
        items = F.normalize(self._embed(self.table), dim=-1)
        return F.normalize(states, dim=-1) @ items.T / self.model.temperature

    def encode(self, batch) -> Tensor:
        model, items = self.model, batch["item_id_list"]
        x = model.norm(self._embed(self.table[items]) + model.position_embedding[: items.shape[1]])
        x = F.dropout(x, model.dropout, self.training)
        later = torch.ones(items.shape[1], items.shape[1], dtype=torch.bool).triu(1)
        bias = torch.zeros(later.shape).masked_fill(later, -10000.0)  # RecBole's
        return model.encoder(x, bias)[-1]

    def _embed(self, codes: Tensor) -> Tensor:
        table = self.model.code_embedding
        return sum(table[k][codes[..., k]] for k in range(len(table))) / len(table)


class PlainRecJPQ(PlainScorer):
    """A dense table of items is made for scores. With the published loss."""

    def forward(self, batch) -> Tensor:
        states, target = self.states_and_targets(batch)
        negative = torch.randint_like(target, 1, self.model.n_items)
        scores = [(states * self._embed(self.table[items])).sum(-1) for items in (target, negative)]
        losses = [F.binary_cross_entropy_with_logits(of, torch.full_like(of, 1 - k)) for k, of in enumerate(scores)]
        return sum(losses) / 2

    def score(self, states: Tensor) -> Tensor:
        return states @ self._embed(self.table).T

    def encode(self, batch) -> Tensor:
        model, (items, length) = self.model, (batch["item_id_list"], batch["item_length"])
        longest = len(model.position_embedding)
        position = (longest - length[:, None] + torch.arange(items.shape[1])).clamp(max=longest - 1)
        x = self._embed(self.table[items]) + model.position_embedding[position]
        x = F.dropout(x, model.dropout, self.training)
        causal = torch.ones(items.shape[1], items.shape[1], dtype=torch.bool).tril()
        for layer in model.layers:
            query = layer.query_norm(x)
            x = layer.norm(query + attention(layer, layer.query(query), layer.key(x), layer.value(x), causal))
            inner = F.dropout(F.relu(layer.inner(x)), layer.dropout, self.training)
            x = x + F.dropout(layer.outer(inner), layer.dropout, self.training)
        return model.norm(x)

    def _embed(self, codes: Tensor) -> Tensor:
        table = self.model.item_embedding.weight
        return torch.cat([table[k][codes[..., k]] for k in range(len(table))], dim=-1)
