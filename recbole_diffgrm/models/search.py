"""What models share that generate semantic IDs by beam search: the widths of their beams, and that they need SIDs."""

from collections.abc import Mapping

import torch
from torch import Tensor

from recbole_diffgrm.models.base import Model
from recbole_diffgrm.models.search_options import as_widths


def free_gpu_memory(device: torch.device) -> float:
    """In MiB; 0 on a CPU, where more users at once than fit its caches are slower, not faster."""
    return torch.cuda.mem_get_info(device)[0] / 2**20 if device.type == "cuda" else 0.0


class SearchModel(Model):
    def __init__(self, config, dataset):
        super().__init__(config, dataset)
        self.beam_widths = as_widths(config["beam_size"])
        self.valid_beam_widths = as_widths(config["valid_beam_size"])
        self.normalize_codes = config["normalize_codes"]
        self.decoding_memory = max(config["decoding_memory"], free_gpu_memory(config["device"]) / 8)  # MiB

    @classmethod
    def needs_sids(cls, config) -> bool:
        return True

    @classmethod
    def add_items(cls, config, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return dict(state)

    @classmethod
    def scores_every_item(cls, config, num_items: int) -> bool:
        return False
