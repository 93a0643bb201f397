"""What a model reads of the items besides the training samples: popularity, semantic IDs, text vectors."""

from pathlib import Path

import numpy as np
import torch

from recbole_diffgrm import processes
from recbole_diffgrm.data.dataset import load_dataset
from recbole_diffgrm.data.splits import Split, make_split
from recbole_diffgrm.files import atomic_write, reading
from recbole_diffgrm.generation.semantic_ids import SemanticIds
from recbole_diffgrm.tokenizer.pipeline import TOKENIZER_FILE, share_encoding, tokenize
from recbole_diffgrm.tokenizer.text_vectors import fit_text_vectors

WHITENING_FILE = "text_whitening.npz"  # of the text vectors, which are not those that codes are made of


def attach_item_data(config, split: Split) -> str:
    """`popularity` and, for models that need them, `semantic_ids`, `text_vectors` and what the model prepares
    itself, on every part of the split. The digest of the semantic IDs, empty without them."""
    semantic_ids = text = tokenizer_file = whitening = None
    digest = ""
    if config.model_class.needs_sids(config):
        if processes.world() > 1:
            share_encoding(config, split)
        tokenized = tokenize(config, split)
        tokenizer, digest = tokenized.tokenizer, tokenized.report["sid_digest"]
        sids = torch.from_numpy(tokenizer.table(split.item_ids).astype(np.int64))  # [N, n]
        tokenizer_file = tokenized.folder / TOKENIZER_FILE
        sids = torch.cat([sids[:1], sids])  # item 0 is padding
        semantic_ids = SemanticIds.build(sids, tokenizer.codebook_size, split.popularity, config["sid_collision_order"])
    if config.model_class.needs_text_vectors(config):
        vectors, whitening = fit_text_vectors(config, split)
        text = torch.from_numpy(vectors)  # [num_items, p]
    further = config.model_class.prepare(config, split, semantic_ids)
    for part in split.parts:
        part.popularity, part.semantic_ids, part.text_vectors = split.popularity, semantic_ids, text
        part.tokenizer_file, part.text_whitening = tokenizer_file, whitening
        for name, value in further.items():
            setattr(part, name, value)
    return digest


def save_tokenizer(dataset, run_dir: Path) -> None:
    """What gives new items semantic IDs and text vectors, for serving: a run directory needs nothing else."""
    if dataset.tokenizer_file:
        with reading(dataset.tokenizer_file):
            content = dataset.tokenizer_file.read_bytes()
        with atomic_write(run_dir / TOKENIZER_FILE) as file:
            file.write(content)
    if dataset.text_whitening:
        dataset.text_whitening.save(run_dir / WHITENING_FILE)


def current_sid_digest(config) -> str:
    """Of the semantic IDs that a run of this configuration would have now; empty where it has none."""
    if not config.model_class.needs_sids(config):
        return ""
    split = make_split(config, load_dataset(config))
    return tokenize(config, split).report["sid_digest"]
