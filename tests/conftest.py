"""Small data made on the spot, one builder of tiny models, and where the larger data is that some tests use."""

import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

# Test processes run side by side: with more threads than cores each of them crawls. Read when torch is imported.
os.environ["OMP_NUM_THREADS"] = "1"

ROOT = Path(__file__).resolve().parent.parent

# Real Amazon data, where the machine has it: a folder with Amazon_Beauty/ in it.
AMAZON_DATA = Path(os.environ.get("RECBOLE_DIFFGRM_DATA", ROOT.parent / "shared" / "dataset"))
needs_amazon = pytest.mark.skipif(
    not (AMAZON_DATA / "Amazon_Beauty" / "Amazon_Beauty.inter").exists(),
    reason="set RECBOLE_DIFFGRM_DATA to a folder that has Amazon_Beauty/",
)


# Models that read semantic IDs, or may: sizes that a test can afford.
T5 = "hidden_size: 16, inner_size: 32, n_heads: 2, head_size: 8, encoder_layers: 1, decoder_layers: 1"
SMALL = {
    "RPG": "hidden_size: 16, inner_size: 32, n_heads: 2, sid_quantizer: random, graph_edges: 10, train_batch_size: 16",
    "HSTU": "hidden_size: 16, n_heads: 2, n_layers: 2, sid_quantizer: random, train_batch_size: 16",
    "RecJPQ": "hidden_size: 24, n_layers: 1, train_batch_size: 16",
    "VQRec": "hidden_size: 16, inner_size: 32, sid_quantizer: random, train_batch_size: 16",
    "ARM": "hidden_size: 16, inner_size: 32, n_heads: 2, encoder_layers: 1, decoder_layers: 1, sid_quantizer: random, "
    "eval_from: 1, eval_step: 1, min_history: 1, max_history: ~, beam_size: 12, valid_beam_size: 10",
    "TIGER": f"{T5}, sid_quantizer: random, beam_size: 12, valid_beam_size: 10",
    "ActionPiece": f"{T5}, sid_quantizer: random, sid_hash_size: 8, vocabulary_size: 60, beam_size: 12, "
    "valid_beam_size: 10",
}


def write_dataset(folder: Path, name: str = "tiny", users: int = 60, items: int = 40, seed: int = 0) -> Path:
    """Users walk through the items in steps of one or two; every item has two of five categories."""
    draw = random.Random(seed)
    target = folder / name
    target.mkdir(parents=True)
    lines = ["user_id:token\titem_id:token\trating:float\ttimestamp:float"]
    for user in range(users):
        item, time = draw.randrange(items), draw.randrange(1000)
        for _ in range(draw.randrange(4, 13)):
            lines.append(f"u{user}\ti{item}\t{draw.randrange(1, 6)}\t{time}")
            item, time = (item + draw.randrange(1, 3)) % items, time + draw.randrange(0, 3)
    (target / f"{name}.inter").write_text("\n".join(lines) + "\n", encoding="utf-8")
    rows = ["item_id:token\ttitle:token\tcategories:token_seq"]
    rows += [f"i{i}\tItem {i}\tc{i % 5}|c{(i + 1) % 5}" for i in range(items)]
    (target / f"{name}.item").write_text("\n".join(rows) + "\n", encoding="utf-8")
    (folder / f"{name}.yaml").write_text(
        'seq_separator: "|"\n'
        "load_col: {inter: [user_id, item_id, timestamp], item: [item_id, categories]}\n"
        "models:\n"
        "  FDSA: {selected_features: [categories]}\n"
        "  S3Rec: {item_attribute: categories}\n"
        "  DiffGRM: {hidden_size: 16, inner_size: 32, n_heads: 2, decoder_layers: 2, warmup_steps: 0,\n"
        f"    sid_quantizer: random, sid_num_digits: 3, sid_codebook_size: 8, cache_dir: {folder / 'cache'}}}\n"
        f"  HistoryCopy: {{sid_quantizer: random, sid_num_digits: 3, sid_codebook_size: 8,\n"
        f"    cache_dir: {folder / 'cache'}}}\n"
        + "".join(
            f"  {model}: {{{sizes}, warmup_steps: 0, sid_num_digits: 3, sid_codebook_size: 8,\n"
            f"    cache_dir: {folder / 'cache'}}}\n"
            for model, sizes in SMALL.items()
        )
    )
    return folder


@pytest.fixture(scope="session")
def tiny(tmp_path_factory) -> Path:
    """A folder with the data set `tiny` and tiny.yaml, its configuration."""
    return write_dataset(tmp_path_factory.mktemp("data"))


@pytest.fixture
def options(tiny, tmp_path) -> dict:
    """Settings of a run that takes a second; tests add or change some."""
    return {
        "config_files": [tiny / "tiny.yaml"],
        "data_path": str(tiny),
        "output_dir": str(tmp_path / "runs"),
        "epochs": 2,
        "train_batch_size": 64,
        "MAX_ITEM_LIST_LENGTH": 10,
        "show_progress": False,
    }


@pytest.fixture
def properties(tmp_path, monkeypatch) -> Path:
    """A copy of properties/ that a test may edit."""
    from recbole_diffgrm.config import layers

    copy = tmp_path / "properties"
    shutil.copytree(ROOT / "properties", copy)
    monkeypatch.setattr(layers, "properties_dir", lambda: copy)
    return copy


class Tiny(NamedTuple):
    """A model with random weights, and what it was made from."""

    config: Any
    split: Any
    model: Any
    loader: Any  # of the test users


def build_tiny(options: dict, model: str = "DiffGRM", *, seed: int = 0, std: float | None = 0.3, **changes) -> Tiny:
    """In double precision, so that sums in another order agree. `std` of all weights, None for the model's own."""
    import torch

    from recbole_diffgrm.data.dataset import load_dataset
    from recbole_diffgrm.data.loader import EvalLoader
    from recbole_diffgrm.data.splits import make_split
    from recbole_diffgrm.experiments.item_data import attach_item_data
    from recbole_diffgrm.models import build_config
    from recbole_diffgrm.models.base import users_per_batch

    settings = {**options, **changes}
    config = build_config(model, "tiny", settings.pop("config_files"), settings, settings.pop("preset", ()))
    split = make_split(config, load_dataset(config))
    attach_item_data(config, split)
    trim = config.model_class.variable_length
    loader = EvalLoader(config, split.test, trim, users_per_batch(config, split.dataset.item_num), split.target_counts)
    torch.manual_seed(seed)
    built = config.model_class(config, split.train).double().eval()
    if std is not None:
        for parameter in built.parameters():
            torch.nn.init.normal_(parameter, std=std)
    return Tiny(config, split, built, loader)


def run_python(*arguments, **environment) -> subprocess.CompletedProcess:
    """Python in a process of its own, from the checkout, as a user would."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


def error_line(written: str) -> str:
    """The one line on standard error that says what is wrong, after those that say what was done."""
    *steps, answer = written.splitlines()
    assert all(re.match(r"\d\d:\d\d:\d\d ", step) for step in steps) and answer.startswith("error: "), written
    return answer


@pytest.fixture(scope="session")
def encoder_folder(tmp_path_factory) -> Path:
    """A sentence-transformers model of 16 dimensions that spells: any text has its own vector."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from transformers import BertConfig, BertModel, BertTokenizerFast

    parts, folder = tmp_path_factory.mktemp("parts"), tmp_path_factory.mktemp("encoder") / "tiny"
    letters = "abcdefghijklmnopqrstuvwxyz0123456789.:,"
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters)]
    BertTokenizerFast(vocab={word: i for i, word in enumerate(words)}, model_max_length=64).save_pretrained(parts)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
        initializer_range=0.3,
    )
    BertModel(config).save_pretrained(parts)
    SentenceTransformer(modules=[Transformer(str(parts)), Pooling(16)], device="cpu").save(str(folder))
    return folder
