"""A moving average of a model's weights."""

import copy

import torch
from torch.optim.swa_utils import get_ema_multi_avg_fn


class AveragedWeights:
    """`model` is a copy whose parameters are the average. Buffers are the same tensors in both: what training does not
    change is not copied at every step (torch's AveragedModel does, and asks the GPU each time how many there were)."""

    def __init__(self, model: torch.nn.Module, decay: float):
        buffers = {id(buffer): buffer for buffer in model.buffers()}
        self.model = copy.deepcopy(model, memo=buffers)  # type: ignore[arg-type]
        self.averaged = [parameter.detach() for parameter in self.model.parameters()]
        self.current = [parameter.detach() for parameter in model.parameters()]
        self.move_average = get_ema_multi_avg_fn(decay)

    def update(self, is_first: bool) -> None:
        """After a step; the average begins with the weights after the first one."""
        with torch.no_grad():
            if is_first:
                torch._foreach_copy_(self.averaged, self.current)
            else:
                self.move_average(self.averaged, self.current, 0)
