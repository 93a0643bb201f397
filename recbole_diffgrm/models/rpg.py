"""RPG (Hou et al., KDD 2025): all digits of a long semantic ID are predicted at once, each by a head of its own.

An item is the mean of its code embeddings; GPT-2 reads the history; head j turns a state into a distribution over the
codes of digit j. Digits are independent given the history, so the score of an item is the mean of the log-probabilities
of its codes: of every item (`exhaustive`), or of those that a walk over a graph of similar SIDs meets (`graph`).

Letters in shapes: B samples, L items of a history, T targets, m digits with M codes each, d hidden size, D distinct
SIDs, E edges of a node, W beams.
"""

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recbole_diffgrm.generation.item_ranking import GeneratedSids, concat
from recbole_diffgrm.models.base import LossOutput, Model
from recbole_diffgrm.models.candidates import Candidates, GeneratedItems, SidItemScores
from recbole_diffgrm.models.rpg_options import RPGOptions
from recbole_diffgrm.nn.dropout import dropout
from recbole_diffgrm.nn.gpt2 import GPT2Layer, causal_bias
from recbole_diffgrm.nn.item_embeddings import sum_codes
from recbole_diffgrm.progress import progress_bar

TARGETS_AT_ONCE = 512  # in the loss
NODES_AT_ONCE = 256  # of the graph, when it is built
VISITED_AT_ONCE = 2**24  # codes of visited nodes that a walk holds


class RPG(Model):
    Options = RPGOptions
    family = "generative"
    variable_length = True
    sample_units = ("sequence", "prefix")

    def __init__(self, config, dataset):
        super().__init__(config, dataset)
        ids = self.semantic_ids = dataset.semantic_ids
        d, num_layers = config["hidden_size"], config["n_layers"]
        self.embedding_dropout, self.temperature = config["embedding_dropout_prob"], config["temperature"]
        self.scoring, self.beams, self.steps = config["scoring"], config["graph_beams"], config["graph_steps"]
        self.seed, self.show_progress = config["seed"], config["show_progress"]
        self.code_embedding = nn.Parameter(torch.empty(ids.num_digits, ids.codebook_size, d))
        self.position_embedding = nn.Parameter(torch.empty(config["MAX_ITEM_LIST_LENGTH"], d))
        layers = [
            GPT2Layer(d, config["inner_size"], config["n_heads"], config["attn_dropout_prob"], eps=1e-12)
            for _ in range(num_layers)
        ]
        self.layers = nn.ModuleList(layers)
        self.norm = nn.LayerNorm(d, eps=1e-12)
        self.head_weight = nn.Parameter(torch.zeros(ids.num_digits, d, d))
        self.head_bias = nn.Parameter(torch.empty(ids.num_digits, d))
        num_edges = min(config["graph_edges"], ids.num_sids)
        self.register_buffer("graph", torch.zeros(ids.num_sids, num_edges, dtype=torch.int32))  # [D, E]
        for embedding in (self.code_embedding, self.position_embedding):
            nn.init.normal_(embedding, std=0.02)
        for layer in layers:
            layer.initialize(num_layers)
        nn.init.uniform_(self.head_bias, -1 / math.sqrt(d), 1 / math.sqrt(d))

    @classmethod
    def needs_sids(cls, config) -> bool:
        return True

    @classmethod
    def add_items(cls, config, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Room for the graph of a larger catalogue."""
        num_sids = len(state["semantic_ids.sids"])
        num_edges = min(config["graph_edges"], num_sids)
        return {**state, "graph": torch.zeros(num_sids, num_edges, dtype=torch.int32)}

    def finish_items(self) -> None:
        self.finish_training()

    # Training

    def losses(self, batch) -> LossOutput:
        """The mean over digits of their cross-entropy."""
        targets = self.targets(batch)
        states = self._encode(batch)[targets.row, targets.position]  # [T, d]: only where there is a target
        sids = self.semantic_ids.lookup(targets.item)  # [T, m]
        # Chunks of one size, whatever the batch, as in nn.losses: the heads make m vectors of each target.
        parts = zip(states.split(TARGETS_AT_ONCE), sids.split(TARGETS_AT_ONCE))
        losses = [F.cross_entropy(self._logits(of).flatten(0, 1), to.T.flatten(), reduction="sum") for of, to in parts]
        return LossOutput({"sid": torch.stack(losses).sum() / sids.numel()}, len(sids))

    def _encode(self, batch) -> Tensor:
        """States of the history's items [B, L, d]."""
        sids = self.semantic_ids.lookup(batch[self.ITEM_SEQ])  # [B, L, m]
        x = sum_codes(sids, self.code_embedding) / sids.shape[-1]
        x = dropout(x + self.position_embedding[: x.shape[1]], self.embedding_dropout, self.training)
        bias = causal_bias(x.shape[1], x.device)
        for layer in self.layers:
            x = layer(x, bias)
        return self.norm(x)

    def _logits(self, state: Tensor) -> Tensor:
        """[T, d] -> [m, T, M]"""
        projected = torch.baddbmm(
            self.head_bias[:, None], state.expand(len(self.head_weight), -1, -1), self.head_weight
        )
        outputs = F.normalize(state + F.silu(projected), dim=-1)  # [m, T, d]
        codes = F.normalize(self.code_embedding, dim=-1)  # [m, M, d]
        return torch.bmm(outputs, codes.transpose(1, 2) / self.temperature)

    # Ranking

    def candidates(self, batch, depth: int, validation: bool = False) -> Candidates:
        log_probs = self._log_probs(batch)
        if self.scoring == "exhaustive" or validation:
            scores = self._score_sids(log_probs)  # [B, D]
            return SidItemScores(scores[:, self.semantic_ids.sid_index.long()], self.semantic_ids)
        return GeneratedItems(self._walk(log_probs), self.semantic_ids, depth)

    def _log_probs(self, batch) -> Tensor:
        """[m, M, B] log-probability of each code."""
        last = self.gather_indexes(self._encode(batch), batch[self.ITEM_SEQ_LEN] - 1)  # [B, d]
        return self._logits(last).float().log_softmax(dim=-1).transpose(1, 2)

    def _score_sids(self, log_probs: Tensor) -> Tensor:
        """[m, M, B] -> [B, D]: the mean over digits. Rows of all users are added up at once."""
        sids = self.semantic_ids.sids.long()
        return sum_codes(sids, log_probs.contiguous()).T / sids.shape[1]

    # The graph

    def finish_training(self) -> bool:
        if self.graph.shape[1] == 0:
            return False
        self.graph.copy_(self._build_graph())
        return True

    @torch.inference_mode()
    def _build_graph(self) -> Tensor:
        """[D, E]: the most similar SIDs of each, itself among them. Similarity: the mean over digits of
        (1 + cosine of the codes' embeddings) / 2."""
        codes = F.normalize(self.code_embedding.detach(), dim=-1)
        similarity = (1 + torch.bmm(codes, codes.transpose(1, 2))) / 2  # [m, M, M]
        sids = self.semantic_ids.sids.long()
        digit = torch.arange(sids.shape[1], device=sids.device)
        graph = torch.empty_like(self.graph)
        shown = {"desc": "graph", "unit": "block", "leave": False, "show": self.show_progress}
        for start in progress_bar(range(0, len(sids), NODES_AT_ONCE), **shown):
            nodes = sids[start : start + NODES_AT_ONCE]  # [C, m]
            to_codes = similarity[digit, nodes].permute(1, 2, 0).contiguous()  # [m, M, C]
            to_sids = sum_codes(sids, to_codes).T  # [C, D]
            graph[start : start + NODES_AT_ONCE] = to_sids.topk(graph.shape[1], dim=1).indices.int()
        return graph

    def _walk(self, log_probs: Tensor) -> GeneratedSids:
        """Log-probabilities [m, M, B] -> the best SIDs met. All users start from the same random ones."""
        per_user = self.beams * self.graph.shape[1] * len(log_probs)
        chunk = max(1, VISITED_AT_ONCE // per_user)
        return concat([self._walk_chunk(part) for part in log_probs.split(chunk, dim=2)])

    def _walk_chunk(self, log_probs: Tensor) -> GeneratedSids:
        num_digits, _, num_users = log_probs.shape
        sids, digit = self.semantic_ids.sids.long(), torch.arange(num_digits, device=log_probs.device)
        start = torch.randperm(len(sids), generator=torch.Generator().manual_seed(self.seed))[: self.beams]
        beams = start.to(sids.device).expand(num_users, -1)  # [B, W]
        scores = log_probs.new_zeros(beams.shape)
        user = torch.arange(num_users, device=sids.device)[:, None, None]
        for _ in range(self.steps):
            met = self.graph[beams].long().flatten(1).sort(dim=1).values  # [B, W * E]
            scores = log_probs[digit, sids[met], user].mean(dim=-1)
            is_repeated = F.pad(met[:, 1:] == met[:, :-1], (1, 0))
            scores = scores.masked_fill(is_repeated, -torch.inf)
            scores, best = scores.topk(min(self.beams, scores.shape[1]), dim=1)
            beams = met.gather(1, best)
        count = (scores > -torch.inf).sum(dim=1)
        return GeneratedSids(beams.masked_fill(scores == -torch.inf, -1), scores, count, count)
