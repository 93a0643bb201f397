"""What RecBole's create_dataset makes for the project's models."""

from collections import Counter

from recbole_diffgrm.data.dataset import FlatSequentialDataset
from recbole_diffgrm.data.source import check_files
from recbole_diffgrm.data.splits import make_split, sample_test_users, sample_users
from recbole_diffgrm.experiments.item_data import attach_item_data


class StockDataset(FlatSequentialDataset):
    """Downloads what it lacks; its parts have all that a model reads of the items, made from training data only."""

    target_counts: Counter

    def __init__(self, config):
        check_files(config)
        super().__init__(config)

    def build(self) -> list[FlatSequentialDataset]:
        split = make_split(self.config, self)
        attach_item_data(self.config, split)
        for part in split.parts:
            part.target_counts = split.target_counts
        valid = sample_users(split.valid, self.config["num_valid_users"], self.config["seed"])
        return [split.train, valid, sample_test_users(self.config, split)]

    @property
    def item_counter(self) -> Counter:
        """For metrics of popularity. RecBole would count the samples, which differ from model to model."""
        return self.target_counts
