"""Arrays from .npy and .npz files of others: nothing in them is executed, and none unpacks to far more than it is."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.npyio import NpzFile

from recbole_diffgrm.files import Hostile, check_unpacked_size, reading


@contextmanager
def open_arrays(path: Path, if_missing: str = "", if_damaged: str = "") -> Iterator[Any]:
    """The array of a .npy, on disk, or the arrays of a .npz by name. Whatever goes wrong in the block is one line."""
    with reading(path, if_missing, if_damaged):
        try:
            content = np.load(path, mmap_mode="r" if path.suffix == ".npy" else None, allow_pickle=False)
            if not isinstance(content, NpzFile):
                yield content
                return
            with content:
                if path.suffix == ".npy":
                    raise ValueError("it is a .npz")
                assert content.zip is not None  # it is open
                check_unpacked_size(content.zip)
                yield content
        except ValueError as error:
            if "Object arrays" in str(error) or "Python objects" in str(error):  # numpy advises to allow them
                raise Hostile("it holds pickled Python objects") from None
            if "pickled" in str(error):  # so numpy calls every file that it does not know
                raise ValueError("it is neither .npy nor .npz") from None
            raise
