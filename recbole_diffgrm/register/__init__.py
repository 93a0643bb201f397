"""`import recbole_diffgrm.register`: RecBole's own functions know this project's models, for the whole process.

RecBole finds what belongs to a model by name: a module in recbole.model.sequential_recommender, `<Model>Dataset` in
recbole.data.dataset, `<Model>Trainer` in recbole.trainer. Names that RecBole itself has (Pop) stay RecBole's. The same
import lets RecBole run on today's libraries (recbole_compat).
"""

import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any

from recbole_diffgrm import recbole_compat
from recbole_diffgrm.config.recbole_config import Config
from recbole_diffgrm.models import MODELS, get_model
from recbole_diffgrm.models.recbole_names import all_model_names
from recbole_diffgrm.register.config import StockConfig, asked_model
from recbole_diffgrm.register.dataset import StockDataset
from recbole_diffgrm.register.trainer import StockTrainer

import recbole.config  # isort: skip  # after recbole_compat
import recbole.data.dataset  # isort: skip
import recbole.trainer  # isort: skip

__all__ = ["NAMES"]

NAMES = sorted(set(MODELS) - all_model_names())


def _register() -> None:
    recbole_compat.mend_stock_recbole()
    for name in NAMES:
        module = importlib.import_module(MODELS[name])
        sys.modules[f"recbole.model.sequential_recommender.{name.lower()}"] = module  # where find_spec looks first
        setattr(recbole.data.dataset, f"{name}Dataset", StockDataset)
        setattr(recbole.trainer, f"{name}Trainer", StockTrainer)
    ours = [*NAMES, *map(get_model, NAMES)]
    _replace(recbole.config.Config, StockConfig, lambda *given, **named: asked_model(*given, **named) in ours)
    _replace(recbole.trainer.Trainer, StockTrainer, lambda config, model: isinstance(config, Config))


def _replace(stock: Any, ours: Any, is_ours: Callable[..., bool]) -> None:
    """Let `stock(...)` make an instance of `ours`, a subclass, where `is_ours(...)`. The class itself is patched, since
    RecBole and its users have imported it by name."""
    original = stock.__init__

    @functools.wraps(original)
    def __init__(self, *given, **named):
        if type(self) is stock and is_ours(*given, **named):
            self.__class__ = ours
            self.__init__(*given, **named)
        else:
            original(self, *given, **named)

    stock.__init__ = __init__


_register()
