"""Whitened item vectors for models that read them next to SIDs: finer than codes."""

import numpy as np

from recbole_diffgrm.config.recbole_config import Config
from recbole_diffgrm.data.splits import Split
from recbole_diffgrm.errors import UserError
from recbole_diffgrm.tokenizer.embedding_sources import text_source
from recbole_diffgrm.tokenizer.split_items import SplitItems
from recbole_diffgrm.tokenizer.whitening import Whitening


def text_vectors(config: Config, split: Split) -> np.ndarray:
    """[num_items, p] float32 of length 1, by item number, whitened as for SIDs; 0 for padding and without text."""
    items = SplitItems.from_split(split)
    embedded = text_source(config, items.item_ids).load()
    has_vector = embedded.has_vector
    in_training = items.in_training & has_vector
    if not in_training.any():
        raise UserError(
            "no item that occurs in training has text for its vector: do the ids in .inter and .item agree?"
        )
    whitening = Whitening.fit(embedded.vectors[np.sort(embedded.row[in_training])], config["sid_pca_dim"])
    whitened = whitening.apply(embedded.select(has_vector))
    length = np.linalg.norm(whitened, axis=1, keepdims=True)
    vectors = np.zeros((split.dataset.item_num, whitened.shape[1]), np.float32)
    vectors[items.number[has_vector]] = whitened / np.where(length > 0, length, 1)
    return vectors
