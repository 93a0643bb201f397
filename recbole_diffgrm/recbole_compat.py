"""RecBole 1.2.1 on today's libraries: every patch of it is here.

Three more of its rough edges are avoided elsewhere, by not using the part that has them: the command line, `eval` and
rounded metrics (config.recbole_config), checkpoints that pickle the whole Config (training.checkpoint).
"""

import importlib
import importlib.util
import sys
import warnings
from functools import cache, wraps
from pathlib import Path
from types import ModuleType

import numpy as np

from recbole_diffgrm.errors import UserError

# RecBole still says np.float and friends; its Config sets these names, from others that numpy 2 removed (float_, ...),
# and its metrics are used without a Config as well.
for _name, _type in {
    "float": np.float64,
    "int": np.int64,
    "long": np.int64,
    "bool": np.bool_,
    "object": object,
    "float_": np.float64,
    "complex_": np.complex128,
    "unicode_": np.str_,
}.items():
    if _name not in np.__dict__:
        setattr(np, _name, _type)

warnings.filterwarnings("ignore", category=FutureWarning, module=r"recbole\..*")


def recbole_dir() -> Path:
    """The installed RecBole, found without importing it (importing takes seconds)."""
    spec = importlib.util.find_spec("recbole")
    if spec is None or spec.origin is None:  # Python 3.12 and later: pip cannot meet RecBole's pins
        raise UserError("RecBole is not installed: pip install --no-deps recbole==1.2.1")
    return Path(spec.origin).parent


@cache
def load_layers() -> ModuleType:
    """Layers of RecBole's models."""
    import torch

    layers = importlib.import_module("recbole.model.layers")
    # RecBole writes GELU out as five operations, each a pass over the largest tensor of a layer.
    layers.FeedForward.gelu = lambda self, x: torch.nn.functional.gelu(x)
    return layers


@cache
def load_sequential_model(name: str) -> type:
    """A sequential model of RecBole with its slow spots fixed. What it computes stays the same (tested)."""
    import torch

    model = getattr(importlib.import_module(f"recbole.model.sequential_recommender.{name.lower()}"), name)
    # Importing RecBole's models switches on autograd's anomaly detection for the whole process (sine.py): every
    # backward pass then looks for NaN in every gradient.
    torch.autograd.set_detect_anomaly(False)
    load_layers()
    if name == "S3Rec":
        # RecBole multiplies the attribute table with each position separately: gigabytes for a batch. The same product:
        model._associated_attribute_prediction = lambda self, x, table: self.aap_norm(x).flatten(0, 1) @ table.T
        model._masked_attribute_prediction = lambda self, x, table: self.map_norm(x).flatten(0, 1) @ table.T
    if name == "BERT4Rec":
        model.calculate_loss = _bert4rec_loss(model.calculate_loss)
    return model


def _bert4rec_loss(original):
    """RecBole scores all items at 10 positions of every sample, then drops those that hold no mask, most of them."""
    import torch

    def calculate_loss(self, interaction):
        if self.loss_type != "CE":
            return original(self, interaction)
        position = interaction[self.MASK_INDEX]  # [B, masks], 0 where there is none
        sample, mask = torch.nonzero(position > 0, as_tuple=True)
        states = self.forward(interaction[self.MASK_ITEM_SEQ])[sample, position[sample, mask]]  # [M, hidden]
        logits = states @ self.item_embedding.weight[: self.n_items].T + self.output_bias  # [M, items]
        target = interaction[self.POS_ITEMS][sample, mask]
        # A batch may hold no mask at all (histories of one item): it teaches nothing, where RecBole divides by 0.
        return torch.nn.functional.cross_entropy(logits, target, reduction="sum") / max(1, len(target))

    return calculate_loss


@cache
def mend_stock_recbole() -> None:
    """Let RecBole's own programs run on today's libraries, for the whole process (recbole_diffgrm.register)."""
    import torch

    _mend_torch_load()
    _mend_collector()
    allow_missing_ray()
    importlib.import_module("recbole.model.sequential_recommender")
    torch.autograd.set_detect_anomaly(False)  # see load_sequential_model


@cache
def allow_missing_ray() -> None:
    """Import recbole.quick_start without ray, which it uses in one line: objective_function reports its result.

    The stub is there for this import only: other libraries look for ray too, and would find it.
    """
    try:
        importlib.import_module("ray.tune")
    except ImportError:  # not installed, or broken: ray 2.6.3, which RecBole pins, needs an old setuptools
        ray, tune = ModuleType("ray"), ModuleType("ray.tune")
        tune.report = lambda **metrics: None  # type: ignore[attr-defined]  # nobody listens outside of ray
        ray.tune = tune  # type: ignore[attr-defined]
        sys.modules["ray"] = ray
        try:
            importlib.import_module("recbole.quick_start")
        finally:
            del sys.modules["ray"]


def _mend_torch_load() -> None:
    """RecBole's checkpoints hold its whole Config, which torch 2.6 and later load only when told to. For calls from
    RecBole's modules only."""
    import torch

    original = torch.load

    @wraps(original)
    def load(*args, **kwargs):
        if sys._getframe(1).f_globals.get("__name__", "").startswith("recbole."):
            kwargs.setdefault("weights_only", False)
        return original(*args, **kwargs)

    torch.load = load


def _mend_collector() -> None:
    """RecBole calls .cpu() on all that it has collected, also on numbers: metrics such as ItemCoverage fail."""
    import torch

    collector = importlib.import_module("recbole.evaluator.collector").Collector
    original = collector.get_data_struct

    @wraps(original)
    def get_data_struct(self):
        collected = self.data_struct._data_dict
        others = {name: value for name, value in collected.items() if not isinstance(value, torch.Tensor)}
        for name in others:
            del collected[name]
        struct = original(self)
        collected.update(others)
        struct._data_dict.update(others)
        return struct

    collector.get_data_struct = get_data_struct
