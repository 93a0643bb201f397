"""ARM: DiffGRM's backbone with a decoder that generates digits from left to right (the paper's "ARM 1x / 4x"; AR_GRM in
the authors' release)."""

import torch
from torch import Tensor, nn

from recbole_diffgrm.models.arm_options import ARMOptions
from recbole_diffgrm.models.autoregressive import AutoregressiveModel, Sizes
from recbole_diffgrm.nn.attention import is_before, mask_to_bias
from recbole_diffgrm.nn.dropout import dropout
from recbole_diffgrm.nn.item_embeddings import ConcatenatedCodes
from recbole_diffgrm.nn.kv_cache import BranchCache, Memory
from recbole_diffgrm.nn.transformer import CausalDecoder, EncoderLayer


class ARM(AutoregressiveModel):
    Options = ARMOptions
    family = "generative"

    def __init__(self, config, dataset):
        super().__init__(config, dataset)
        d, inner_size, num_heads = config["hidden_size"], config["inner_size"], config["n_heads"]
        self.dropout, self.label_smoothing = config["dropout_prob"], config["label_smoothing"]
        self.sizes = Sizes(d, inner_size, d, num_heads, config["decoder_layers"])
        num_digits, num_codes = self.semantic_ids.num_digits, self.semantic_ids.codebook_size
        self.code_embedding = nn.Parameter(torch.empty(num_digits, num_codes, d))
        self.bos_embedding = nn.Parameter(torch.empty(d))
        self.position_embedding = nn.Parameter(torch.empty(config["MAX_ITEM_LIST_LENGTH"], d))
        self.item_embedding = ConcatenatedCodes(num_digits, d)
        self.encoder = nn.ModuleList(
            EncoderLayer(d, inner_size, num_heads, self.dropout) for _ in range(config["encoder_layers"])
        )
        self.decoder = CausalDecoder(d, inner_size, num_heads, config["decoder_layers"], self.dropout)
        self.norm = nn.LayerNorm(d)  # of the encoder's and the decoder's output
        self._initialize()

    def _initialize(self) -> None:
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif "norm" not in name:
                nn.init.normal_(parameter, std=0.02)

    @property
    def code_table(self) -> Tensor:
        return self.code_embedding

    @property
    def start_embedding(self) -> Tensor:
        return self.bos_embedding

    def encode(self, batch) -> Memory:
        items, length = batch[self.ITEM_SEQ], batch[self.ITEM_SEQ_LEN]
        x = self.item_embedding(self.semantic_ids.lookup(items), self.code_embedding)  # [B, L, d]
        x = dropout(x + self.position_embedding[: x.shape[1]], self.dropout, self.training)
        bias = mask_to_bias(is_before(x.shape[1], length))[:, None, None]  # [B, 1, 1, L]
        for layer in self.encoder:
            x = layer(x, bias)
        return self.decoder.precompute_kv(self.norm(x), length)

    def decode(self, x: Tensor, memory: Memory) -> Tensor:
        return self.norm(self.decoder(dropout(x, self.dropout, self.training), memory))

    def decode_step(self, x: Tensor, memory: Memory, cache: BranchCache, parent: Tensor | None) -> Tensor:
        return self.norm(self.decoder.step(x, memory, cache, parent))
