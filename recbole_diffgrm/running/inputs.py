"""What models of ours read of a data set besides its samples: popularity in training, and the catalogue of IDs."""

import numpy as np
import torch

from recbole_diffgrm import compat
from recbole_diffgrm.data.dataset import FlatSequentialDataset
from recbole_diffgrm.data.sequences import training_rows
from recbole_diffgrm.decoding.catalogue import Catalogue
from recbole_diffgrm.tokenizer.features import text_vectors
from recbole_diffgrm.tokenizer.prepare import prepare


def attach(config, dataset: FlatSequentialDataset, parts: list[FlatSequentialDataset]) -> None:
    """`popularity` and, for models with semantic IDs, `catalogue` and, where wanted, `text_vectors` on all parts."""
    flat, held_out = dataset.inter_feat.flat, [part.inter_feat for part in parts[1:]]
    rows = training_rows(flat, held_out)
    popularity = torch.bincount(flat.item[rows].long(), minlength=dataset.item_num)  # [items]
    catalogue = None
    if compat.uses_sids(config.model_class):
        tokenizer = prepare(config, dataset, parts).tokenizer
        names = dataset.id2token(dataset.iid_field, np.arange(1, dataset.item_num))
        sids = torch.from_numpy(tokenizer.table(names).astype(np.int64))  # [N, n]
        sids = torch.cat([sids[:1], sids])  # item 0 is padding
        catalogue = Catalogue.build(sids, tokenizer.size, popularity, config["shared_id_order"])
    text = torch.from_numpy(text_vectors(config, dataset, parts)) if config["item_text"] else None
    for part in (dataset, *parts):
        part.popularity, part.catalogue, part.text_vectors = popularity, catalogue, text
