"""The C library's memory: kept where it is needed again at once, given back after a moment of much use. And what to do
where there is not enough."""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from recbole_diffgrm.errors import UserError

# How torch says it: of the processor's memory, of a GPU's, and of a tensor that nothing could hold.
_SHORTAGE = ("can't allocate memory", "not enough memory", "out of memory", "Storage size calculation overflowed")


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


@contextmanager
def explain_shortage() -> Iterator[None]:
    """Memory that cannot be had is one line that says what to reduce. Also a decorator."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not any(words in str(error) for words in _SHORTAGE):
            raise
        raise UserError(
            "there is not enough memory for these settings: reduce train_batch_size, eval_batch_size, "
            "MAX_ITEM_LIST_LENGTH or the sizes of the model, or use less data"
        ) from error


def _glibc(name: str):
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
