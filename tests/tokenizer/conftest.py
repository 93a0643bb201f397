"""A dataset and settings for tests of the tokenizer, and tokenization as a command does it."""

from typing import Any

import numpy as np
import pytest

from recbole_diffgrm.data.dataset import load_dataset
from recbole_diffgrm.data.splits import Split, make_split
from recbole_diffgrm.models import build_config
from recbole_diffgrm.tokenizer import pipeline, text_encoder
from recbole_diffgrm.tokenizer.pipeline import Tokenized, tokenize
from recbole_diffgrm.tokenizer.quantizers.codebook import CodebookQuantizer
from tests.conftest import write_dataset

IDS = [f"i{i}" for i in range(40)]


@pytest.fixture
def data(tmp_path):
    """A dataset that the test may change."""
    return write_dataset(tmp_path / "data")


@pytest.fixture
def settings(data, encoder_folder, tmp_path) -> dict:
    return {
        "data_path": str(data),
        "cache_dir": str(tmp_path / "cache"),
        "sid_text_encoder": str(encoder_folder),
        "sid_num_digits": 2,
        "sid_codebook_size": 8,
        "seq_separator": "|",
        "load_col": {"inter": ["user_id", "item_id", "timestamp"], "item": ["item_id", "categories"]},
        "show_progress": False,
    }


def load_split(settings: dict, **changes) -> tuple[Any, Split]:
    config = build_config("HistoryCopy", "tiny", overrides={**settings, **changes})
    return config, make_split(config, load_dataset(config))


def run_tokenizer(settings: dict, **changes) -> Tokenized:
    return tokenize(*load_split(settings, **changes))


@pytest.fixture
def steps(monkeypatch) -> list[str]:
    """Costly steps that were taken."""
    taken = []

    def record(name, original):
        def call(*arguments, **keywords):
            taken.append(name)
            return original(*arguments, **keywords)

        return call

    monkeypatch.setattr(text_encoder, "encode_to_file", record("encode", text_encoder.encode_to_file))
    monkeypatch.setattr(CodebookQuantizer, "fit", classmethod(record("fit", CodebookQuantizer.fit.__func__)))
    monkeypatch.setattr(pipeline, "resolve_collisions", record("resolve", pipeline.resolve_collisions))
    return taken


def write_npz(path, ids, vectors):
    np.savez(path, item_id=np.array(ids), embedding=np.asarray(vectors, np.float32))
    return str(path)


@pytest.fixture
def vectors() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((41, 12)).astype(np.float32)


def correlated(count: int, dim: int = 24, seed: int = 0) -> np.ndarray:
    """Vectors with correlated dimensions, as embeddings have."""
    random = np.random.default_rng(seed)
    mixing = random.standard_normal((dim, dim))
    return (random.standard_normal((count, dim)) @ mixing).astype(np.float32)
