"""The processes of a run that torchrun has started: which of them this one is, and what they tell each other.

A process alone is the first of one: then nothing here does anything. Of several, each has the same weights and a share
of every batch. All of them go through the same steps in the same order, since a call that only some make would wait for
ever: what differs between processes, as clocks, signals and files do, is asked of all of them or decided by the first.
The first one writes all files and says all that is said.
"""

import atexit
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from recbole_diffgrm.errors import UserError
from recbole_diffgrm.files import first_line

if TYPE_CHECKING:
    import torch
    from torch import Tensor

T = TypeVar("T")

TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")  # what it sets


class LostProcess(Exception):
    """Another process of the run has ended. The command line exits with code 1."""


class FirstFailed(LostProcess):
    """The first one has failed at what the others wait for. It says why; all of them know."""


def world() -> int:
    """How many processes there are."""
    return int(os.environ["WORLD_SIZE"]) if all(name in os.environ for name in TORCHRUN) else 1


def rank() -> int:
    """Which one this is, from 0."""
    return int(os.environ["RANK"]) if world() > 1 else 0


def local_rank() -> int:
    """Which one of this machine."""
    return int(os.environ["LOCAL_RANK"]) if world() > 1 else 0


def is_first() -> bool:
    return rank() == 0


def share(index: "Tensor") -> "Tensor":
    """The part of a batch that is this process's."""
    return index[rank() :: world()]


def join(device: "torch.device") -> None:
    """Meet the others: gloo between CPUs, NCCL between GPUs. Once in the life of a process."""
    if world() == 1:
        return
    import torch.distributed as dist

    # Before the group: what is imported later has it as the default of its arguments, so that it would never be
    # destroyed, and its threads would still run when Python ends ("terminate called without an active exception").
    import torch.distributed.nn.functional  # noqa: F401

    if dist.is_initialized():
        return
    try:
        dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    except RuntimeError as error:
        raise UserError(
            f"the processes of this run cannot meet ({first_line(error)}): are all of them started?"
        ) from None
    atexit.register(_leave)


def add_up(values: "Tensor") -> "Tensor":
    """The sum over all processes, in place."""
    return _reduce(values, "SUM")


def least(values: "Tensor") -> "Tensor":
    """The smallest of all processes, in place."""
    return _reduce(values, "MIN")


def greatest(value: int) -> int:
    """The largest number that a process has."""
    if world() == 1:
        return value
    import torch

    return int(_reduce(torch.tensor(int(value)), "MAX"))


def every(value: T) -> list[T]:
    """What each process has, by rank; small plain data."""
    if world() == 1:
        return [value]
    import torch.distributed as dist

    values: list[Any] = [None] * world()
    with _together():
        dist.all_gather_object(values, value)
    return values


def from_first(make: Callable[[], T]) -> T:
    """What the first process makes or decides, as it alone may write; the others wait for it. Its mistakes are those of
    all of them."""
    if world() == 1:
        return make()
    import torch
    import torch.distributed as dist

    result, error = None, None
    if is_first():
        try:
            result = make()
        except Exception as caught:
            error = caught
    sent = error if error is None or isinstance(error, UserError | OSError) else FirstFailed("the first process failed")
    content: list[Any] = [result, sent]
    with _together():
        dist.broadcast_object_list(content, device=torch.device("cpu"))
    failure = error or content[1]
    if isinstance(failure, Exception):
        raise failure
    return result if is_first() else content[0]  # type: ignore[return-value]


def make_same(tensors: "Iterator[Tensor]") -> None:
    """Those of the first process, for all."""
    if world() == 1:
        return
    import torch
    import torch.distributed as dist

    for tensor in tensors:
        if tensor.numel() == 0:
            continue
        content = tensor.detach().contiguous()
        with _together():
            dist.broadcast(content.view(-1).view(torch.uint8), src=0)  # gloo does not know every type
        if content.data_ptr() != tensor.data_ptr():
            tensor.detach().copy_(content)


def is_first_to_fail() -> bool:
    """Asked by a process that ends with an error: the first one to do so says why, the others end because of it."""
    if world() == 1:
        return True
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    if not dist.is_initialized():  # every process checks the same command
        return local_rank() == 0
    try:
        return distributed_c10d._get_default_store().add("failed", 1) == 1
    except RuntimeError:  # who kept it has ended
        return is_first()


_failures = itertools.count()


def all_fail() -> bool:
    """Asked by a process whose run has failed, before it goes on with another: have all the others failed too?"""
    if world() == 1:
        return True
    from datetime import timedelta

    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    if not dist.is_initialized():
        return True
    store, number = distributed_c10d._get_default_store(), next(_failures)
    try:
        if store.add(f"failed in {number}", 1) == world():
            store.set(f"all failed in {number}", "")
        store.wait([f"all failed in {number}"], timedelta(seconds=20))
    except RuntimeError:
        return False
    return True


def _reduce(values: "Tensor", operation: str) -> "Tensor":
    if world() > 1:
        import torch.distributed as dist

        with _together():
            dist.all_reduce(values, getattr(dist.ReduceOp, operation))
    return values


@contextmanager
def _together() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # a connection was closed, or nobody answers
        raise LostProcess(
            f"another process of this run has ended ({first_line(error)}): the same command with --resume goes on"
        ) from error


def _leave() -> None:
    import torch.distributed as dist

    with suppress(Exception):
        dist.destroy_process_group()
