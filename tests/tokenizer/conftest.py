"""A data set and settings for tests of the tokenizer, and the whole way from one to the other."""

import numpy as np
import pytest

from recbole_diffgrm.config.config import build_config
from recbole_diffgrm.data.dataset import load_dataset
from recbole_diffgrm.tokenizer import encoder, prepare, quantiser
from tests.conftest import write_dataset

IDS = [f"i{i}" for i in range(40)]


@pytest.fixture
def data(tmp_path):
    """A data set of the test's own, which it may change."""
    return write_dataset(tmp_path / "data")


@pytest.fixture
def settings(data, encoder_folder, tmp_path) -> dict:
    return {
        "data_path": str(data),
        "cache_dir": str(tmp_path / "cache"),
        "sid_encoder": str(encoder_folder),
        "sid_digits": 2,
        "sid_codes": 8,
        "seq_separator": "|",
        "load_col": {"inter": ["user_id", "item_id", "timestamp"], "item": ["item_id", "categories"]},
        "show_progress": False,
    }


def make(settings: dict, **changes) -> prepare.Prepared:
    config = build_config("DiffGRM", "tiny", overrides={**settings, **changes})
    dataset = load_dataset(config)
    return prepare.prepare(config, dataset, dataset.build())


@pytest.fixture
def work(monkeypatch) -> list[str]:
    """Which costly steps were taken."""
    steps = []

    def watched(name, original):
        def call(*arguments, **keywords):
            steps.append(name)
            return original(*arguments, **keywords)

        return call

    monkeypatch.setattr(encoder, "encode_to", watched("encode", encoder.encode_to))
    monkeypatch.setattr(quantiser, "fit", watched("fit", quantiser.fit))
    monkeypatch.setattr(prepare, "resolve", watched("resolve", prepare.resolve))
    return steps


def write_npz(path, ids, vectors):
    np.savez(path, item_id=np.array(ids), embedding=np.asarray(vectors, np.float32))
    return str(path)


@pytest.fixture
def vectors() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((41, 12)).astype(np.float32)
