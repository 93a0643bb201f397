"""Any table of semantic IDs, saved tokenizer, and file of embeddings."""

import io
import pickle
from functools import cache
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.fuzz.hostile import Hostile
from tests.fuzz.properties import check_call, fuzz
from tests.fuzz.strategies import ROOT, absurd_values, byte_edits, edit_bytes, edit_table, table_edits
from tests.fuzz.world import arguments, call, start_afresh, world

TABLE = "item_id:token\tsid:token_seq\n" + "".join(f"i{i}\t{i % 8} {i // 8} {i % 3}\n" for i in range(40))


@fuzz(st.tuples(st.sampled_from(["HistoryCopy", "HSTU", "DiffGRM"]), table_edits), examples=25)
def test_id_tables(example):
    model, edits = example
    (world() / "files" / "fuzzed.sid").write_bytes(edit_table(TABLE, edits))
    check_call(arguments(model=model, sid_file=f"{ROOT}/files/fuzzed.sid"))


SMALL = {"sid_quantizer": "random", "sid_num_digits": 3, "sid_codebook_size": 8, "epochs": None}


@cache
def saved_tokenizer() -> bytes:
    call(arguments(**SMALL), "tokenizer")
    [saved] = (world() / "cache").glob("tiny/sid-*/tokenizer.npz")
    content = saved.read_bytes()
    start_afresh(world())
    return content


@fuzz(byte_edits, examples=20)
def test_tokenizers(example):
    """A saved one, damaged."""
    content = edit_bytes(saved_tokenizer(), example)
    (world() / "files" / "fuzzed.npz").write_bytes(content)
    check_call(arguments(**SMALL, sid_file=f"{ROOT}/files/fuzzed.npz"), "tokenizer")


DTYPES = ["float32", "float64", "float16", "int8", "complex64", ">f4", "bool", "U5", "S3", "M8[s]", "object"]
VALUES = ["normal", "zero", "equal", "one column", "nan", "inf", "1e38", "1e-40", "1e300"]
embeddings = st.fixed_dictionaries(
    {
        "format": st.sampled_from(["npz", "npy"] * 3 + ["npy as npz", "pickle"]),
        "shape": st.one_of(
            st.tuples(st.just(40), st.sampled_from(range(3, 41))),
            st.tuples(st.just(40), st.sampled_from(range(3, 41))),
            st.sampled_from([(), (40,), (0, 8), (39, 8), (41, 8), (40, 0), (40, 1), (40, 2, 4), (40, 64)]),
        ),
        "dtype": st.sampled_from(["float32"] * len(DTYPES) + DTYPES),
        "values": st.sampled_from(["normal"] * len(VALUES) + VALUES),
        "ids": st.one_of(st.none(), st.none(), st.none(), table_edits),
        "edits": st.one_of(st.just([]), st.just([]), st.just([]), byte_edits),
        "quantizer": st.sampled_from(["opq", "pq", "rq_kmeans", "rq_vae", "svd"]),
        "sid_pca_dim": st.sampled_from(["~", "3", "8"]),
        "sid_codebook_size": st.sampled_from(["2", "8", "8", "32", "64"]),
        "sid_collisions": st.sampled_from(["keep", "reassign", "extra_digit", "random_digit"]),
    }
)


@fuzz(embeddings, examples=20)
def test_embeddings(example):
    folder = world() / "files"
    vectors = make_vectors(example["shape"], example["dtype"], example["values"])
    ids = "".join(f"i{i}\n" for i in range(40)).encode()
    if example["ids"]:
        ids = edit_table(ids.decode(), example["ids"])
    suffix = "npy" if example["format"] == "npy" else "npz"
    path = folder / f"fuzzed.{suffix}"
    path.write_bytes(edit_bytes(serialize(example["format"], vectors, ids), example["edits"]))
    (folder / "fuzzed.ids.txt").write_bytes(ids)
    keys = {key: example[key] for key in ("sid_pca_dim", "sid_codebook_size", "sid_collisions")}
    source = {"sid_text_encoder": f"{ROOT}/files/fuzzed.{suffix}", "sid_quantizer": example["quantizer"]}
    small = {"sid_num_digits": 3, "rq_vae_epochs": 1, "sid_hash_size": 2, "epochs": None, "train_batch_size": None}
    check_call(arguments(**source, **keys, **small), "tokenizer")


def make_vectors(shape: tuple[int, ...], dtype: str, values: str) -> np.ndarray:
    vectors = np.random.default_rng(0).normal(size=shape)
    if values == "one column" and vectors.ndim:
        vectors[..., 1:] = 0
    elif values not in ("normal", "one column"):
        constants = {"zero": 0.0, "equal": 1.0}
        vectors = vectors * 0 + constants[values] if values in constants else vectors * float(values)
    with np.errstate(all="ignore"):
        if dtype == "object":
            return np.full(shape, Hostile(str(world())), dtype=object)
        return vectors.astype(np.int64).astype(dtype) if dtype == "M8[s]" else vectors.astype(dtype)


def serialize(form: str, vectors: np.ndarray, ids: bytes) -> bytes:
    file: Any = io.BytesIO()
    if form == "npz":
        np.savez(file, item_id=np.array(ids.decode("utf-8", "replace").split("\n")[:-1]), embedding=vectors)
    elif form == "pickle":
        pickle.dump(Hostile(str(world())), file)
    else:
        np.save(file, vectors, allow_pickle=True)
    return file.getvalue()


TEMPLATES = ["{label}: {text}", "{text:>20}", "{text!r}", "{text[0]}", "{text.__class__}", "{text}{text}", "{{{text}}}"]
COLUMNS = ["[title]", "{title: T, categories: é}", "[title, nothing]", "[nothing]", "[item_id]", "[title, title]"]
text_settings = st.one_of(
    st.tuples(st.just("sid_text_template"), st.one_of(st.sampled_from(TEMPLATES), absurd_values)),
    st.tuples(st.just("sid_text_fields"), st.one_of(st.sampled_from(COLUMNS), absurd_values)),
    st.tuples(st.just("sid_text_encoder"), absurd_values),
)


@fuzz(text_settings, examples=15)
def test_text_settings(example):
    key, value = example
    settings = {"sid_text_encoder": "bundled", "sid_quantizer": "pq", "sid_codebook_size": 8, key: value}
    check_call(arguments(epochs=None, train_batch_size=None, **settings), "tokenizer")
