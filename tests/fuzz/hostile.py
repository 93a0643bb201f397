"""What an attacker might leave on a disk: unpickling it makes a folder where the canary is looked for."""

import hashlib
import io
import os
import pickle
from pathlib import Path

import torch

from recbole_diffgrm.checkpoint import MARK
from tests.fuzz.strategies import CANARY
from tests.fuzz.world import insert


class Hostile:
    def __init__(self, root: str):
        self.root = root

    def __reduce__(self):
        return os.mkdir, (insert(CANARY, Path(self.root)),)


def hostile_files(root: Path) -> dict[str, bytes]:
    """By name."""
    checkpoint, legacy = io.BytesIO(), io.BytesIO()
    torch.save({"state_dict": Hostile(str(root))}, checkpoint)
    torch.save({"state_dict": Hostile(str(root))}, legacy, _use_new_zipfile_serialization=False)
    signed = checkpoint.getvalue()
    return {
        "pickle": pickle.dumps(Hostile(str(root))),
        "checkpoint": signed,
        "checkpoint with checksum": signed + MARK + hashlib.sha256(signed).digest(),
        "checkpoint of old": legacy.getvalue(),
        "yaml": f"!!python/object/apply:os.mkdir ['{insert(CANARY, root)}']\n".encode(),
        "empty": b"",
        "zeros": b"\0" * 5000,
    }
