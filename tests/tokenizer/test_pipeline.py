"""From a dataset to its SIDs: against a slow reference, only from training items, and nothing computed twice."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from recbole_diffgrm import Tokenizer, UserError, checkpoint, run
from recbole_diffgrm.data.dataset import load_dataset
from recbole_diffgrm.data.splits import make_split
from recbole_diffgrm.generation.semantic_ids import SemanticIds
from recbole_diffgrm.models import build_config
from recbole_diffgrm.tokenizer import embedding_sources, text_encoder
from recbole_diffgrm.tokenizer.item_text import compose
from recbole_diffgrm.tokenizer.pipeline import tokenize
from tests.conftest import AMAZON_DATA, needs_amazon
from tests.tokenizer.conftest import IDS, run_tokenizer, write_npz


def test_from_text_to_sids_by_hand(settings):
    tokenizer = run_tokenizer(settings).tokenizer
    model = text_encoder.load(settings["sid_text_encoder"], "cpu", False)
    for item in ("i0", "i17", "i39"):
        number = int(item[1:])
        text = f"Title: Item {number}. Category: c{number % 5}, c{(number + 1) % 5}."
        codes = tokenizer.quantizer.encode(model.encode([text], normalize_embeddings=True))
        assert tokenizer.table([item]).tolist() == codes.tolist()


def test_a_second_time_no_text_is_read(settings, data, monkeypatch):
    first = run_tokenizer(settings)
    composed = []
    monkeypatch.setattr(embedding_sources, "compose", lambda *rest: composed.append(rest) or compose(*rest))
    assert run_tokenizer(settings).folder == first.folder and not composed
    path = data / "tiny" / "tiny.item"
    path.write_text(path.read_text() + "\n")  # another file, the same texts
    assert run_tokenizer(settings).folder == first.folder and len(composed) == 40


def test_one_long_id_does_not_widen_all(settings, data, tmp_path):
    """Arrays of fixed width would hold 4 bytes for each of its characters, for every item."""
    long = "i0" + 900 * "x"
    for path in (data / "tiny" / "tiny.inter", data / "tiny" / "tiny.item"):
        path.write_text(
            "\n".join(
                "\t".join(long if f == "i0" else f for f in line.split("\t")) for line in path.read_text().split("\n")
            )
        )
    tokenized = run_tokenizer(settings, sid_quantizer="random")
    tokenizer = tokenized.tokenizer
    assert long in tokenizer.item_ids and tokenizer.item_ids.nbytes <= 8 * 40
    assert (tokenized.folder / "tokenizer.npz").stat().st_size < 20_000
    assert Tokenizer.load(tokenized.folder / "tokenizer.npz").digest([long, "i1"]) == tokenizer.digest([long, "i1"])


@pytest.mark.slow
def test_only_what_depends_on_a_change_is_computed_again(settings, data, steps):
    first = run_tokenizer(settings)
    assert steps == ["encode", "fit", "resolve"]
    steps.clear()
    again = run_tokenizer(settings)
    assert steps == []
    assert again.folder == first.folder
    run_tokenizer(settings, sid_collision_order="number")  # ranks items, changes no SID
    assert steps == []
    run_tokenizer(settings, sid_collisions="reassign")
    assert steps == ["resolve"]
    steps.clear()
    run_tokenizer(settings, sid_num_digits=3)
    assert steps == ["fit", "resolve"]
    steps.clear()
    run_tokenizer(settings, sid_text_template="{text}")
    assert steps == ["encode", "fit", "resolve"]
    steps.clear()
    run_tokenizer(settings)
    assert steps == []
    item_file = data / "tiny" / "tiny.item"
    item_file.write_text(item_file.read_text().replace("Item 7\t", "Another 7\t"))
    run_tokenizer(settings)
    assert steps == ["encode", "fit", "resolve"]
    steps.clear()
    inter_file = data / "tiny" / "tiny.inter"  # one more user, one more item: other training items
    inter_file.write_text(inter_file.read_text() + "".join(f"new\ti{i}\t1\t{i}\n" for i in range(40)))
    item_file.write_text(item_file.read_text() + "i40\tOnly in the catalog\tc1\n")
    run_tokenizer(settings)
    assert steps == ["encode", "fit", "resolve"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sid_codebook_size": 64}, "sid_codebook_size: 40 .* 64: .* 32"),
        ({"sid_codebook_size": 2, "sid_collisions": "reassign"}, "sid_collisions: 40 items .* 4 "),
        ({"sid_codebook_size": 4, "sid_collisions": "reassign"}, "sid_collisions: 40 items .* 16 "),
        ({"sid_pca_dim": 1}, r"sid_pca_dim \(1\) .* sid_num_digits \(2\)"),
    ],
)
def test_errors_come_before_the_work(settings, steps, changes, words):
    with pytest.raises(UserError, match=words):
        run_tokenizer(settings, **changes)
    assert steps == []


@pytest.mark.slow
def test_codebooks_come_from_training_items_only(settings, data, tmp_path, vectors):
    """An item that is only a test target may have any embedding."""
    inter_file = data / "tiny" / "tiny.inter"
    inter_file.write_text(inter_file.read_text() + "u0\tlast\t1\t99999\n")
    ids = [*IDS, "last"]

    def tokenizer_of(name):
        return run_tokenizer(settings, sid_text_encoder=write_npz(tmp_path / name, ids, vectors)).tokenizer

    first = tokenizer_of("a.npz")
    vectors[40] = 100
    second = tokenizer_of("b.npz")
    for name, array in first.quantizer.state().items():
        assert (array == second.quantizer.state()[name]).all(), name
    assert (first.table(IDS) == second.table(IDS)).all()
    vectors[3] += 1  # and an item of training may not
    third = tokenizer_of("c.npz")
    assert (first.quantizer.whitening.mean != third.quantizer.whitening.mean).any()


@pytest.mark.slow
@pytest.mark.parametrize("quantizer", ["pq", "rq_kmeans"])
def test_other_quantizers(settings, quantizer):
    unique = run_tokenizer(settings, sid_quantizer=quantizer, sid_collisions="reassign")
    assert unique.report["distinct_sids"] == 40
    raw = run_tokenizer(settings, sid_quantizer=quantizer, sid_pca_dim=None)
    assert raw.report["dimensions"] == 16


@pytest.mark.slow
@pytest.mark.parametrize("collisions", ["keep", "reassign", "extra_digit"])
@pytest.mark.parametrize("quantizer", ["pq", "rq_kmeans", "random"])
def test_more_than_32_digits(settings, tmp_path, quantizer, collisions):
    """Twins collide, and their keys do not fit 64 bits."""
    random = np.random.default_rng(0)
    embeddings = random.standard_normal((40, 80)).astype(np.float32)
    embeddings[1::2] = embeddings[::2]
    path = write_npz(tmp_path / "a.npz", IDS, embeddings)
    tokenized = run_tokenizer(
        settings,
        sid_text_encoder=path,
        sid_quantizer=quantizer,
        sid_collisions=collisions,
        sid_num_digits=40,
        sid_pca_dim=None,
    )
    distinct = 40 if quantizer == "random" else 20
    assert tokenized.report["distinct_sids_as_quantized"] == distinct
    assert tokenized.report["distinct_sids"] == (distinct if collisions == "keep" else 40)
    assert tokenized.report["num_digits"] == 40 + (collisions == "extra_digit")


@pytest.mark.slow
def test_models_with_sids_build_them(settings, tmp_path):
    """The tokenizer runs by itself, and the run's hash covers everything that SIDs depend on."""
    options = {**settings, "output_dir": str(tmp_path / "runs"), "epochs": 1, "MAX_ITEM_LIST_LENGTH": 10}
    options |= {"hidden_size": 16, "inner_size": 16}

    def sids(result):
        state = checkpoint.load(result.run_dir / "best.pt")["state_dict"]
        return SemanticIds.from_state(state, "semantic_ids.").lookup(torch.arange(1, 41))

    first = run("DiffGRM", "tiny", **options)
    assert sids(first).shape == (40, 2)
    assert first.config["sid_codebook_size"] == 8
    other = run("DiffGRM", "tiny", **options, sid_collisions="extra_digit")
    assert sids(other).shape == (40, 3)
    assert first.config_hash != other.config_hash
    item_file = Path(settings["data_path"]) / "tiny" / "tiny.item"
    item_file.write_text(item_file.read_text().replace("Item 7\t", "Another 7\t"))
    changed = run("DiffGRM", "tiny", **options)
    assert changed.config_hash != first.config_hash
    encoder_copy = tmp_path / "encoder"
    shutil.copytree(settings["sid_text_encoder"], encoder_copy)
    hashes = []
    for last_byte in (b"\1", b"\2"):  # another model in the same folder
        weights = encoder_copy / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1] + last_byte)
        hashes.append(run("DiffGRM", "tiny", **{**options, "sid_text_encoder": str(encoder_copy)}).config_hash)
    assert hashes[0] != hashes[1]


@pytest.mark.slow
@needs_amazon
def test_sids_of_amazon_beauty(tmp_path):
    """Facts about these SIDs that are known from elsewhere."""
    overrides = {
        "data_path": str(AMAZON_DATA),
        "cache_dir": str(tmp_path),
        "sid_file": str(AMAZON_DATA / "Amazon_Beauty" / "Amazon_Beauty.sentence-t5-base.sid"),
    }
    config = build_config("HistoryCopy", "Amazon_Beauty", overrides=overrides)
    assert config["sid_text_encoder"] == "sentence-transformers/sentence-t5-base"
    report = tokenize(config, make_split(config, load_dataset(config))).report
    assert (report["num_items"], report["distinct_sids"], report["largest_group"]) == (12101, 10619, 40)
    assert report["test_targets_sharing"] == pytest.approx(0.208, abs=0.0005)
