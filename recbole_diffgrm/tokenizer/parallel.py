"""Work on many rows in blocks of fixed size: all cores, and results that do not depend on how many there are.

BLAS splits a product differently for every number of threads, which changes the last bits, and with them the codes that
k-means finds. So BLAS gets one thread, and whole blocks go to the cores.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from threadpoolctl import threadpool_limits

Result = TypeVar("Result")

BLOCK_ROWS = 8192  # in a block of vectors
BLOCK_CELLS = 1 << 21  # numbers in the largest array of a block, where rows become much wider on the way


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread for BLAS and faiss in the calling thread."""
    with threadpool_limits(1):
        yield


def map_blocks(function: Callable[[int, int], Result], num_rows: int, block_rows: int) -> list[Result]:
    """[function(0, block_rows), function(block_rows, 2 * block_rows), ...] on as many cores as torch may use."""
    import torch  # here: keys are checked before it is loaded

    threads = torch.get_num_threads()  # before the limit, which holds for torch as well
    with one_thread(), ThreadPoolExecutor(threads) as pool:
        starts = range(0, num_rows, block_rows)
        return list(pool.map(lambda start: function(start, min(start + block_rows, num_rows)), starts))
