"""A device that calculates like the CPU but is another one: for want of a GPU, it shows where work would wait for one.

Its tensors say that they are on `meta` (the only name for which autograd needs no driver) and hold real values. Mixing
them with tensors of the CPU is an error, as with CUDA; operations at which the processor waits for a GPU are counted.
"""

import functools
from collections import Counter

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map

DEVICE = torch.device("meta")

# Operations whose result has a size or value that the processor needs.
WAITS = {
    "_local_scalar_dense",  # item(), int(), bool(), if
    "nonzero",
    "masked_select",
    "unique_dim",
    "unique_consecutive",
    "_unique2",
    "bincount",
    "equal",
    "is_nonzero",
}
# Of tensors of the CPU with those of the device: copies, and numbers.
MAY_MIX = {"copy_", "_to_copy", "index", "index_put", "index_put_", "_index_put_impl_"}


class StubTensor(Tensor):
    @staticmethod
    def __new__(cls, inner: Tensor):
        return torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            layout=inner.layout,
            device=DEVICE,
            requires_grad=False,
        )

    def __init__(self, inner: Tensor):
        self.inner = inner

    def new_tensor(self, data, **kw):
        return torch.tensor(data, dtype=self.dtype, device=DEVICE)

    def tolist(self):
        return self.cpu().tolist()

    def __repr__(self) -> str:
        return f"StubTensor({self.inner})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {}, Counter())


class StubDevice(TorchDispatchMode):
    """While open, tensors can be made on the device; `waits` counts what the processor waits for, by operation."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()
        self.operations = 0

    def __enter__(self):
        # These copy values to a device without an operation that could be seen here.
        self.originals = {name: getattr(torch, name) for name in ("tensor", "as_tensor")}
        for name, original in self.originals.items():
            setattr(torch, name, functools.partial(_make, original))
        return super().__enter__()

    def __exit__(self, *rest):
        for name, original in self.originals.items():
            setattr(torch, name, original)
        return super().__exit__(*rest)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.operations += 1
        return _run(func, args, kwargs or {}, self.waits)


def _run(func, args, kwargs, waits: Counter):
    tensors = [part for part in tree_flatten((args, kwargs))[0] if isinstance(part, Tensor)]
    is_ours = [isinstance(tensor, StubTensor) for tensor in tensors]
    asked = kwargs.get("device")
    stays = any(is_ours) if asked is None else torch.device(asked).type == DEVICE.type
    if not any(is_ours) and not stays:
        return func(*args, **kwargs)
    name = func.overloadpacket.__name__
    if name not in MAY_MIX:
        strangers = [tensor for tensor, ours in zip(tensors, is_ours) if not ours and tensor.dim() > 0]
        assert not strangers, f"{name} mixes devices"
    _count(name, args, kwargs, stays, any(is_ours), waits)
    plain = tree_map(_unwrap, kwargs)
    if asked is not None:
        plain["device"] = torch.device("cpu")
    out = func(*tree_map(_unwrap, args), **plain)
    if name == "copy_" and not is_ours[0]:
        return args[0]
    if not stays:
        return out
    wrapped = tree_map(lambda part: StubTensor(part) if isinstance(part, Tensor) else part, out)
    return return_and_correct_aliasing(func, args, kwargs, wrapped) if any(is_ours) else wrapped


def _count(name: str, args, kwargs, stays: bool, has_ours: bool, waits: Counter) -> None:
    if name in WAITS or (name == "repeat_interleave" and kwargs.get("output_size") is None):
        waits[name] += 1
    elif name in ("index", "index_put", "index_put_", "_index_put_impl_"):
        indices = [index for index in args[1] if index is not None]
        is_filled = name != "index" and args[2].dim() == 0  # a mask and one value: no sizes are needed
        if any(index.dtype == torch.bool for index in indices) and not is_filled:
            waits["mask as index"] += 1
        if not all(isinstance(index, StubTensor) for index in indices):
            waits["index from the CPU"] += 1
    elif name == "_to_copy" and not stays:
        waits["to the CPU"] += 1
    elif name == "_to_copy" and not has_ours and not kwargs.get("non_blocking"):
        waits["from the CPU"] += 1
    elif name == "copy_" and not all(isinstance(part, StubTensor) for part in args[:2]):
        waits["copy"] += 1


def _make(original, data, device=None, **settings) -> Tensor:
    made = data if isinstance(data, StubTensor) else original(data, **settings)
    return made.to(device or made.device)


def _unwrap(part):
    return part.inner if isinstance(part, StubTensor) else part
