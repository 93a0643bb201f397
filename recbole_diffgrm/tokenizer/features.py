"""The vectors that IDs are made of, for models that read them as well: finer than the codes."""

from collections.abc import Sequence

import numpy as np

from recbole_diffgrm.config.config import Config
from recbole_diffgrm.data.dataset import FlatSequentialDataset
from recbole_diffgrm.errors import UserError
from recbole_diffgrm.tokenizer.prepare import Catalogue
from recbole_diffgrm.tokenizer.quantiser import project, whitening
from recbole_diffgrm.tokenizer.sources import source_of
from recbole_diffgrm.tokenizer.vectors import NO_VECTOR


def text_vectors(config: Config, dataset: FlatSequentialDataset, parts: Sequence[FlatSequentialDataset]) -> np.ndarray:
    """[items, p] float32 of length 1, by item number: whitened as for IDs; 0 for padding and for items without text."""
    if config["sid_quantiser"] == "random":
        raise UserError("item_text: sid_quantiser random reads no text; use another, or sid_file with a sid_encoder")
    catalogue = Catalogue.of(dataset, parts)
    items = source_of(config, catalogue.item_ids).open()
    has_vector = items.row != NO_VECTOR
    in_training = np.isin(catalogue.item_ids, catalogue.training_items) & has_vector
    mean, projection = whitening(items.vectors[np.sort(items.row[in_training])], 1, config["sid_pca_dim"])
    found = project(items.of(has_vector), mean, projection)
    names = dataset.id2token(dataset.iid_field, np.arange(1, dataset.item_num))
    number = np.searchsorted(catalogue.item_ids[has_vector], names)  # item ids are sorted
    number = np.minimum(number, len(found) - 1)
    is_there = catalogue.item_ids[has_vector][number] == names
    vectors = np.zeros((dataset.item_num, found.shape[1]), np.float32)
    vectors[1:][is_there] = found[number[is_there]]
    return vectors
