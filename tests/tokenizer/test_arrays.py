"""Files of arrays that someone else made."""

import io
import os
import pickle
import zipfile

import numpy as np
import pytest

from recbole_diffgrm import UserError
from recbole_diffgrm.tokenizer.arrays import open_arrays


class Payload:
    """Unpickling it makes a folder."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_pickles_are_not_executed(tmp_path):
    touched = tmp_path / "touched"
    payload = np.array([Payload(touched)], dtype=object)
    np.savez(tmp_path / "a.npz", item_id=payload)
    np.save(tmp_path / "a.npy", payload)
    (tmp_path / "b.npz").write_bytes(pickle.dumps(Payload(touched)))
    for name, words in {"a.npz": "is refused", "a.npy": "is refused", "b.npz": "neither .npy nor .npz"}.items():
        with pytest.raises(UserError, match=words) as error, open_arrays(tmp_path / name) as content:
            content["item_id"]
        assert "allow_pickle" not in str(error.value)
    assert not touched.exists()


def test_a_bomb_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive, archive.open("x.npy", "w") as file:
        np.lib.format.write_array(file, np.zeros((1 << 24), np.float64))
    assert (tmp_path / "a.npz").stat().st_size < 1 << 18
    words = r"a.npz is refused \(.* bytes that unpack to 134,217,\d+\)"
    with pytest.raises(UserError, match=words), open_arrays(tmp_path / "a.npz"):
        pass


def test_an_array_that_says_it_is_larger_than_memory(tmp_path):
    header = io.BytesIO()
    claimed = {"descr": "<f8", "fortran_order": False, "shape": (10**12,)}
    np.lib.format.write_array_header_1_0(header, claimed)
    (tmp_path / "x.npy").write_bytes(header.getvalue() + bytes(800))
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.write(tmp_path / "x.npy", "x.npy")
    for name in ("x.npy", "x.npz"):
        words = rf"{name} (is damaged|does not fit into memory)"
        with pytest.raises(UserError, match=words), open_arrays(tmp_path / name) as opened:
            opened["x"]


def test_an_archive_with_the_name_of_an_array(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros(3))
    (tmp_path / "a.npz").rename(tmp_path / "a.npy")
    with pytest.raises(UserError, match=r"a.npy is damaged \(it is a .npz\)"), open_arrays(tmp_path / "a.npy"):
        pass


def test_real_arrays_that_repeat_themselves(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros(1 << 20))
    with open_arrays(tmp_path / "a.npz") as arrays:
        assert (arrays["x"] == 0).all()
