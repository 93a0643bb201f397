"""Learning rates as a function of the step alone, so that a resumed run needs no scheduler state."""

import math


def rate_factor(scheduler: str, step: int, warmup_steps: int, total_steps: int) -> float:
    """Share of the peak rate at optimizer step `step` (from 0): linear warm-up, then constant, linear or cosine."""
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    if scheduler == "constant":
        return 1.0
    progress = min(1.0, (step - warmup_steps) / max(1, total_steps - warmup_steps))
    return 1 - progress if scheduler == "linear" else 0.5 * (1 + math.cos(math.pi * progress))
