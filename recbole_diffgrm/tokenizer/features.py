"""The vectors that IDs are made of, for models that read them as well: finer than the codes."""

from collections.abc import Sequence

import numpy as np

from recbole_diffgrm.config.config import Config
from recbole_diffgrm.data.dataset import FlatSequentialDataset
from recbole_diffgrm.errors import UserError
from recbole_diffgrm.tokenizer.prepare import Catalogue
from recbole_diffgrm.tokenizer.quantiser import project, whitening
from recbole_diffgrm.tokenizer.sources import vectors_of
from recbole_diffgrm.tokenizer.vectors import NO_VECTOR


def text_vectors(config: Config, dataset: FlatSequentialDataset, parts: Sequence[FlatSequentialDataset]) -> np.ndarray:
    """[items, p] float32 of length 1, by item number: whitened as for IDs; 0 for padding and for items without text."""
    catalogue = Catalogue.of(dataset, parts)
    items = vectors_of(config, catalogue.item_ids).open()
    has_vector = items.row != NO_VECTOR
    in_training = np.isin(catalogue.item_ids, catalogue.training_items) & has_vector
    if not in_training.any():
        raise UserError("item_text: no item that occurs in training has text: do the ids in .inter and .item agree?")
    mean, projection = whitening(items.vectors[np.sort(items.row[in_training])], 1, config["sid_pca_dim"])
    found = project(items.of(has_vector), mean, projection)
    length = np.linalg.norm(found, axis=1, keepdims=True)
    names = dataset.id2token(dataset.iid_field, np.arange(1, dataset.item_num))
    number = 1 + np.argsort(names)  # of the catalogue's items, which are sorted
    vectors = np.zeros((dataset.item_num, found.shape[1]), np.float32)
    vectors[number[has_vector]] = found / np.where(length > 0, length, 1)
    return vectors
