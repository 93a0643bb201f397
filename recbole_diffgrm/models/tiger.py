"""TIGER (Rajput et al., NeurIPS 2023): T5 reads the digits of a user's items and writes those of the next one."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recbole_diffgrm.models.autoregressive import AutoregressiveModel, Sizes
from recbole_diffgrm.models.t5_options import t5_config
from recbole_diffgrm.models.tiger_options import TIGEROptions
from recbole_diffgrm.nn.kv_cache import BranchCache, Memory
from recbole_diffgrm.nn.t5 import T5Decoder, T5Encoder


class TIGER(AutoregressiveModel):
    Options = TIGEROptions
    family = "generative"

    def __init__(self, config, dataset):
        super().__init__(config, dataset)
        network = t5_config(config)
        attention_size = network.num_heads * network.head_size
        self.sizes = Sizes(
            network.hidden_size, network.inner_size, attention_size, network.num_heads, network.decoder_layers
        )
        self.logit_scale = network.hidden_size**-0.5  # of a tied head
        self.user_tokens = config["user_tokens"]
        self.num_codes = self.semantic_ids.num_digits * self.semantic_ids.codebook_size  # of all digits
        # Codes by digit, then the decoder's start, then users; T5 draws embeddings from N(0, 1).
        self.token_embedding = nn.Parameter(torch.randn(self.num_codes + 1 + self.user_tokens, network.hidden_size))
        self.encoder = T5Encoder(network)
        self.decoder = T5Decoder(network)

    @property
    def code_table(self) -> Tensor:
        return self.token_embedding[: self.num_codes].view(self.semantic_ids.num_digits, -1, self.sizes.hidden_size)

    @property
    def start_embedding(self) -> Tensor:
        return self.token_embedding[self.num_codes]

    def encode(self, batch) -> Memory:
        items, length = batch[self.ITEM_SEQ], batch[self.ITEM_SEQ_LEN]
        n, m, _ = self.code_table.shape
        tokens = (self.semantic_ids.lookup(items) + torch.arange(n, device=items.device) * m).flatten(1)  # [B, L * n]
        length = length * n
        if self._has_user_token(batch):
            user = self.num_codes + 1 + batch[self.USER_ID] % self.user_tokens
            tokens, length = torch.cat([user[:, None], tokens], dim=1), length + 1
        return self.decoder.precompute_kv(self.encoder(F.embedding(tokens, self.token_embedding), length), length)

    def _has_user_token(self, batch) -> bool:
        """A history that someone asks about (serving) has no user."""
        return self.user_tokens > 0 and self.USER_ID in batch

    def count_states(self, batch) -> int:
        return batch[self.ITEM_SEQ].shape[1] * self.semantic_ids.num_digits + self._has_user_token(batch)

    def decode(self, x: Tensor, memory: Memory) -> Tensor:
        return self.decoder(x, memory)

    def decode_step(self, x: Tensor, memory: Memory, cache: BranchCache, parent: Tensor | None) -> Tensor:
        return self.decoder.step(x, memory, cache, parent)
