"""What the processes of a run tell each other at every training step, in one message: gradients, losses, signals.

Each process has the gradient of the mean over its share of the batch. Weighted by the targets of the shares, their mean
is the gradient of the whole batch, whatever the number of processes.
"""

import signal
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch.nn import Parameter

from recbole_diffgrm import processes
from recbole_diffgrm.models.base import LossOutput


class StepFacts(NamedTuple):
    """Of all processes together, and the same for each of them."""

    losses: dict[str, float]  # each part, mean over the batch
    num_targets: int
    signal: int  # that one of them has had; 0: none
    is_due: bool  # is it time for a checkpoint?


def exchange(
    parameters: Sequence[Parameter], output: LossOutput, has_share: bool, received: int, is_due: bool
) -> StepFacts:
    """Gradients become those of the whole batch. `has_share` False: this process had no sample of it. Reading the
    facts is the only moment of a step at which the processor waits for the GPU."""
    losses = torch.stack([part.detach().reshape(()) for part in output.parts.values()])  # RecBole's TransRec: [1]
    if processes.world() == 1:
        return StepFacts(dict(zip(output.parts, losses.tolist())), output.num_targets, received, is_due)
    weight = output.num_targets if has_share else 0
    has_gradient = [parameter.grad is not None for parameter in parameters]
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    numbers = [weight, received == signal.SIGINT, received == signal.SIGTERM, is_due, *has_gradient]
    last = torch.tensor(numbers, dtype=losses.dtype, pin_memory=losses.is_cuda).to(losses.device, non_blocking=True)
    message = torch.cat([*(gradient.flatten() * weight for gradient in gradients), losses * weight, last])
    processes.add_up(message)
    num_losses, num_facts = len(losses), len(losses) + len(numbers)
    facts = message[-num_facts:].tolist()
    num_targets, interrupts, terminations, due, *of_parameters = facts[num_losses:]
    mean = message[:-num_facts] / num_targets
    for parameter, gradient, is_there in zip(parameters, mean.split([p.numel() for p in parameters]), of_parameters):
        parameter.grad = gradient.view_as(parameter) if is_there else None
    return StepFacts(
        {name: total / num_targets for name, total in zip(output.parts, facts)},
        int(num_targets),
        signal.SIGTERM if terminations else signal.SIGINT if interrupts else 0,
        due > 0,
    )
