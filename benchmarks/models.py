"""Models of the bench as they come (properties/model), for the sides of a benchmark.

Semantic IDs and text vectors are random: their values do not change the work, and no text encoder is needed.
"""

from typing import NamedTuple

import torch
from torch import Tensor

DATASET = "Amazon_Beauty"  # its histories are used
MODELS = ("DiffGRM", "TIGER", "ARM", "ActionPiece", "RPG", "HSTU", "VQRec", "RecJPQ")
CORNAC = ("DiffGRM", "TIGER")  # those that Cornac 3.0.1 has


class Built(NamedTuple):
    config: object
    split: object
    model: torch.nn.Module


def parse_names(text: str) -> list[str]:
    names = list(MODELS) if text == "all" else text.split(",")
    if unknown := set(names) - set(MODELS):
        raise SystemExit(f"--model: {', '.join(sorted(unknown))} is none of {', '.join(MODELS)}")
    return names


def build(name: str, options, settings: dict | None = None, keep_memory: bool = True) -> Built:
    """The model with random weights. `keep_memory`: as in this project's runs (memory.keep_freed_memory)."""
    from recbole_diffgrm import memory
    from recbole_diffgrm.data.dataset import load_dataset
    from recbole_diffgrm.data.splits import make_split
    from recbole_diffgrm.experiments.item_data import attach_item_data
    from recbole_diffgrm.models import build_config

    settings = {"data_path": options.data_path, "show_progress": False} | (settings or {})
    config = build_config(name, DATASET, overrides=settings)
    if config.model_class.needs_sids(config):
        settings = {"sid_quantizer": "random", "cache_dir": options.cache} | settings
        config = build_config(name, DATASET, overrides=settings)
    split = make_split(config, load_dataset(config))
    attach_item_data(config, split)
    if keep_memory:
        memory.keep_freed_memory()
    torch.manual_seed(0)
    return Built(config, split, config.model_class(config, split.train))


def loss_of(model, batch) -> Tensor:
    return sum(model.losses(batch).parts.values())
