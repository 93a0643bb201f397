"""Every random generator that training uses, as plain data for a checkpoint."""

import random
from typing import Any

import numpy as np
import torch


def get_random_state() -> dict[str, Any]:
    version, numbers, gauss = random.getstate()
    _, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": {"version": version, "numbers": torch.tensor(numbers), "gauss": gauss},
        "numpy": {
            "keys": torch.from_numpy(np.asarray(keys).astype(np.int64)),
            "position": int(position),
            "has_gauss": int(has_gauss),
            "cached": float(cached),
        },
        "torch": torch.get_rng_state(),
        "cuda": [torch.cuda.get_rng_state()] if torch.cuda.is_available() else [],  # of the device in use
    }


def set_random_state(state: dict[str, Any]) -> None:
    python, of_numpy = state["python"], state["numpy"]
    random.setstate((python["version"], tuple(python["numbers"].tolist()), python["gauss"]))
    keys = of_numpy["keys"].cpu().numpy().astype(np.uint32)
    np.random.set_state(("MT19937", keys, of_numpy["position"], of_numpy["has_gauss"], of_numpy["cached"]))
    torch.set_rng_state(state["torch"].cpu())
    if torch.cuda.is_available() and state["cuda"]:
        torch.cuda.set_rng_state(state["cuda"][0].cpu())
