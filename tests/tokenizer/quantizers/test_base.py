"""A quantizer that this test registers is tokenized with, saved, loaded and offered, without any other edit."""

import numpy as np
import pytest

from recbole_diffgrm import Tokenizer, UserError
from recbole_diffgrm.config.options import expected_words
from recbole_diffgrm.tokenizer.options import TokenizerOptions
from recbole_diffgrm.tokenizer.quantizers import QUANTIZERS, Quantizer, register
from recbole_diffgrm.tokenizer.quantizers.distances import cheapest_sums
from tests.tokenizer.conftest import run_tokenizer


class ScalarQuantizer(Quantizer):
    """Cuts each of the first n dimensions into M equal bins."""

    name = "scalar"

    def __init__(self, low, high, num_digits, codebook_size):
        self.low, self.high = low, high
        self.num_digits, self.codebook_size = int(num_digits), int(codebook_size)
        self.input_dim, self.dim = len(low), self.num_digits

    @classmethod
    def fit(cls, vectors, num_digits, codebook_size, pca_dim, seed):
        return cls(vectors.min(axis=0), vectors.max(axis=0), num_digits, codebook_size)

    def transform(self, inputs):
        scaled = (np.asarray(inputs, float) - self.low) / (self.high - self.low)
        return scaled[:, : self.num_digits].clip(0, 1) * self.codebook_size

    def nearest(self, points, count):
        return cheapest_sums((points[..., None] - self._centers()) ** 2, count)

    def errors(self, points, codes):
        return ((points - self._centers()[codes]) ** 2).sum(axis=1)

    def _centers(self):
        return np.arange(self.codebook_size) + 0.5

    def state(self):
        sizes = {"num_digits": np.array(self.num_digits), "codebook_size": np.array(self.codebook_size)}
        return {"low": self.low, "high": self.high, **sizes}

    @classmethod
    def from_state(cls, state):
        return cls(**state)


@pytest.fixture
def scalar():
    register(ScalarQuantizer)
    yield
    del QUANTIZERS["scalar"]


@pytest.mark.parametrize("collisions", ["keep", "reassign", "extra_digit"])
@pytest.mark.usefixtures("scalar")
def test_tokenize(settings, collisions):
    tokenized = run_tokenizer(settings, sid_quantizer="scalar", sid_codebook_size=16, sid_collisions=collisions)
    tokenizer = tokenized.tokenizer
    assert isinstance(tokenizer.quantizer, ScalarQuantizer)
    assert tokenized.report["quantizer"] == "scalar"
    assert 0 < tokenized.report["quantization_error"] < 1
    assert len(np.unique(tokenizer.codes, axis=0)) > 10
    assert collisions == "keep" or tokenized.report["distinct_sids"] == 40
    sids = tokenizer.assign(["new", "no text"], texts=["Title: Item 7.", ""])
    assert (Tokenizer.load(tokenized.folder / "tokenizer.npz").sids == tokenizer.sids[:40]).all()
    assert sids.shape == (2, 3 if collisions == "extra_digit" else 2)


def test_offered(settings, scalar):
    schema = TokenizerOptions.model_json_schema()["properties"]["sid_quantizer"]
    assert "scalar" in schema["enum"]
    assert "scalar" in expected_words(schema)
    with pytest.raises(UserError, match=r"sid_quantizer .* scalar, not 'scalr'"):
        run_tokenizer(settings, sid_quantizer="scalr")


def test_not_registered(settings):
    with pytest.raises(UserError, match=r"sid_quantizer .* opq, pq, rq_kmeans, rq_vae, svd, random, not 'scalar'"):
        run_tokenizer(settings, sid_quantizer="scalar")
    register(ScalarQuantizer)
    try:
        path = run_tokenizer(settings, sid_quantizer="scalar").folder / "tokenizer.npz"
    finally:
        del QUANTIZERS["scalar"]
    with pytest.raises(UserError, match=r"tokenizer.npz .* 'scalar'"):
        Tokenizer.load(path)
