"""RecBole 1.2.1 on today's libraries: the one place that knows its rough edges.

Import RecBole's parts through this module. What is smoothed elsewhere and why: the command line and `eval`
(config.config), checkpoints that pickle the whole Config (training.checkpoint), rounded metrics (config.config).
"""

import ctypes
import importlib
import importlib.util
import sys
import warnings
from functools import cache
from pathlib import Path

import numpy as np

# RecBole still says np.float and friends; its Config sets these names, but its metrics are used without one as well.
for _name, _type in {
    "float": np.float64,
    "int": np.int64,
    "long": np.int64,
    "bool": np.bool_,
    "object": object,
}.items():
    if _name not in np.__dict__:
        setattr(np, _name, _type)

warnings.filterwarnings("ignore", category=FutureWarning, module=r"recbole\..*")
warnings.filterwarnings("ignore", message=r".*pkg_resources is deprecated.*")

# This project's own models, looked up before RecBole's.
OWN_MODELS = {
    "DiffGRM": "recbole_diffgrm.model.diffgrm",
    "HistoryCopy": "recbole_diffgrm.model.floors",
    "Pop": "recbole_diffgrm.model.floors",
}

# Sequential models of RecBole that read more than .inter and .item, or the padded interaction table itself.
NEEDS_OTHER_DATA = {
    "DIN": "user and item features joined into every sample",
    "DIEN": "user and item features joined into every sample",
    "GRU4RecKG": "pretrained entity vectors",
    "KSR": "a knowledge graph",
    "FEARec": "RecBole's padded copies of all prefixes",
}

# RecBole models whose scores do not change when right padding is trimmed off (tested). Ours say so themselves, with an
# attribute `variable_length = True`. All others are given histories padded to MAX_ITEM_LIST_LENGTH.
VARIABLE_LENGTH = {"SASRec", "GRU4Rec", "FDSA", "S3Rec", "BERT4Rec"}


def recbole_dir() -> Path:
    """The installed RecBole, found without importing it (importing takes seconds)."""
    spec = importlib.util.find_spec("recbole")
    return Path(spec.origin).parent


@cache
def model_names() -> list[str]:
    """Sequential models that can be run: ours, and RecBole's as it spells them."""
    root = recbole_dir()
    modules = {path.stem for path in (root / "model" / "sequential_recommender").glob("*.py")}
    named = (path.stem for path in (root / "properties" / "model").glob("*.yaml"))
    theirs = (name for name in named if name.lower() in modules and name not in NEEDS_OTHER_DATA)
    return sorted([*OWN_MODELS, *theirs])


def other_model_names() -> set[str]:
    """Models of RecBole that this project does not run (no sequential recommenders, or with other data)."""
    return {path.stem for path in (recbole_dir() / "properties" / "model").glob("*.yaml")} - set(model_names())


@cache
def model_class(name: str):
    """One of ours, or a RecBole model with its slow spots mended. What the models compute stays the same (tested)."""
    import torch

    if name in OWN_MODELS:
        return getattr(importlib.import_module(OWN_MODELS[name]), name)
    found = getattr(importlib.import_module(f"recbole.model.sequential_recommender.{name.lower()}"), name)
    # Importing RecBole's models switches on autograd's anomaly detection for the whole process (sine.py): every
    # backward pass then looks for NaN in every gradient.
    torch.autograd.set_detect_anomaly(False)
    # RecBole writes GELU out as five operations, each a pass over the largest tensor of a layer.
    importlib.import_module("recbole.model.layers").FeedForward.gelu = lambda self, x: torch.nn.functional.gelu(x)
    if name == "S3Rec":
        # RecBole multiplies the attribute table with each position apart: gigabytes for a batch. The same product:
        found._associated_attribute_prediction = lambda self, x, table: self.aap_norm(x).flatten(0, 1) @ table.T
        found._masked_attribute_prediction = lambda self, x, table: self.map_norm(x).flatten(0, 1) @ table.T
    if name == "BERT4Rec":
        found.calculate_loss = _bert4rec_loss(found.calculate_loss)
    return found


def _bert4rec_loss(original):
    """RecBole scores all items at 10 places a sample and then drops those that hold no mask, most of them."""
    import torch

    def calculate_loss(self, interaction):
        if self.loss_type != "CE":
            return original(self, interaction)
        place = interaction[self.MASK_INDEX]  # [B, masks], 0 where there is none
        sample, number = torch.nonzero(place > 0, as_tuple=True)
        states = self.forward(interaction[self.MASK_ITEM_SEQ])[sample, place[sample, number]]  # [M, hidden]
        logits = states @ self.item_embedding.weight[: self.n_items].T + self.output_bias  # [M, items]
        target = interaction[self.POS_ITEMS][sample, number]
        # A batch may hold no mask at all (histories of one item): it teaches nothing, where RecBole divides by 0.
        return torch.nn.functional.cross_entropy(logits, target, reduction="sum") / max(1, len(target))

    return calculate_loss


def takes_variable_length(model: type) -> bool:
    return getattr(model, "variable_length", model.__name__ in VARIABLE_LENGTH)


def uses_sids(model: type) -> bool:
    """Models of ours that read semantic IDs say so with an attribute `uses_sids = True`."""
    return getattr(model, "uses_sids", False)


def makes_lists(model: type) -> bool:
    """Models of ours that rank without scoring all items have a method `rank`."""
    return hasattr(model, "rank")


def learns(model: type) -> bool:
    """Models of ours that have nothing to train say so with an attribute `learns = False`."""
    return getattr(model, "learns", True)


def keep_freed_memory() -> None:
    """Let glibc keep large freed blocks instead of giving them back and faulting them in again at the next step.

    Worth a fifth of a training step of SASRec on 2 cores. Does nothing where the C library is another.
    """
    mallopt = _glibc("mallopt")
    if mallopt is not None:
        m_trim_threshold, m_mmap_max = -1, -4
        mallopt(m_mmap_max, 0)
        mallopt(m_trim_threshold, 2**31 - 1)


def release_freed_memory() -> None:
    """Give freed memory back after a step that needed much of it for a moment."""
    malloc_trim = _glibc("malloc_trim")
    if malloc_trim is not None:
        malloc_trim(0)


def _glibc(name: str):
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
