"""What models share that generate semantic IDs by beam search: the widths of their beams, and that they need SIDs."""

from recbole_diffgrm.models.base import Model
from recbole_diffgrm.models.search_options import as_widths


class SearchModel(Model):
    def __init__(self, config, dataset):
        super().__init__(config, dataset)
        self.beam_widths = as_widths(config["beam_size"])
        self.valid_beam_widths = as_widths(config["valid_beam_size"])
        self.normalize_codes, self.decoding_memory = config["normalize_codes"], config["decoding_memory"]

    @classmethod
    def needs_sids(cls, config) -> bool:
        return True

    @classmethod
    def scores_every_item(cls, config, num_items: int) -> bool:
        return False
