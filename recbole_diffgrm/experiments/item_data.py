"""What a model reads of the items besides the training samples: popularity, semantic IDs, text vectors."""

import numpy as np
import torch

from recbole_diffgrm import processes
from recbole_diffgrm.data.dataset import load_dataset
from recbole_diffgrm.data.splits import Split, make_split
from recbole_diffgrm.generation.semantic_ids import SemanticIds
from recbole_diffgrm.tokenizer.pipeline import share_encoding, tokenize
from recbole_diffgrm.tokenizer.text_vectors import text_vectors


def attach_item_data(config, split: Split) -> str:
    """`popularity` and, for models that need them, `semantic_ids`, `text_vectors` and what the model prepares
    itself, on every part of the split. The digest of the semantic IDs, empty without them."""
    semantic_ids = text = None
    digest = ""
    if config.model_class.needs_sids(config):
        if processes.world() > 1:
            share_encoding(config, split)
        tokenized = tokenize(config, split)
        tokenizer, digest = tokenized.tokenizer, tokenized.report["sid_digest"]
        sids = torch.from_numpy(tokenizer.table(split.item_ids).astype(np.int64))  # [N, n]
        sids = torch.cat([sids[:1], sids])  # item 0 is padding
        semantic_ids = SemanticIds.build(sids, tokenizer.codebook_size, split.popularity, config["sid_collision_order"])
    if config.model_class.needs_text_vectors(config):
        text = torch.from_numpy(text_vectors(config, split))  # [num_items, p]
    further = config.model_class.prepare(config, split, semantic_ids)
    for part in split.parts:
        part.popularity, part.semantic_ids, part.text_vectors = split.popularity, semantic_ids, text
        for name, value in further.items():
            setattr(part, name, value)
    return digest


def current_sid_digest(config) -> str:
    """Of the semantic IDs that a run of this configuration would have now; empty where it has none."""
    if not config.model_class.needs_sids(config):
        return ""
    split = make_split(config, load_dataset(config))
    return tokenize(config, split).report["sid_digest"]
