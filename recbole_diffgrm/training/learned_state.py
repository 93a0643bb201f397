"""What of a model training changes. The rest, tables of all items, is made from the data again when a run goes on."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn


def learned_state(model: Any) -> dict[str, Tensor]:
    """Its state dict without `rebuilt_state`."""
    return {name: tensor for name, tensor in model.state_dict().items() if not name.startswith(model.rebuilt_state)}


def load_learned(model: Any, state: Mapping[str, Tensor]) -> None:
    """What `learned_state` gave, into a model of the same data."""
    module: nn.Module = model
    missing, unexpected = module.load_state_dict(state, strict=False)
    wrong = [*(name for name in missing if not name.startswith(model.rebuilt_state)), *unexpected]
    if wrong:
        raise RuntimeError(f"the checkpoint and the model differ in {', '.join(wrong[:3])}")
