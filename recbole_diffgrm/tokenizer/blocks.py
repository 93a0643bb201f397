"""Work on many rows in blocks of fixed size: all cores, and results that do not depend on how many there are.

BLAS splits a product differently for every number of threads, which changes the last bits, and k-means makes other
codes of them. So BLAS gets one thread, and whole blocks go to the cores.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch
from threadpoolctl import threadpool_limits

Result = TypeVar("Result")

BLOCK_CELLS = 1 << 21  # numbers in the largest array of a block, where a block is not simply some rows


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread for BLAS and faiss in the calling thread."""
    with threadpool_limits(1):
        yield


def map_blocks(function: Callable[[int, int], Result], rows: int, size: int) -> list[Result]:
    """[function(0, size), function(size, 2 * size), ...], computed on as many cores as torch may use."""
    threads = torch.get_num_threads()  # before the limit, which holds for torch as well
    with one_thread(), ThreadPoolExecutor(threads) as pool:
        return list(pool.map(lambda start: function(start, min(start + size, rows)), range(0, rows, size)))
