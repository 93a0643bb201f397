"""Inputs to try. An example is plain data (text, bytes, numbers, lists, dicts), so that its repr can be read again."""

import json
from typing import Any

from hypothesis import strategies as st

from recbole_diffgrm.models import get_options, model_names

ROOT = "{root}"  # stands for the folder of an example
CANARY = f"{ROOT}/canary"  # what hostile input tries to make

# From these lists only: hypothesis fills st.text() and st.integers() with constants of the modules that happen to be
# imported, and the examples of `make test` would not always be the same.
LETTERS = [*map(chr, range(1, 256)), *"ıİßﬁΣ١日本𝟙😀\u0301\u200b\u2028\u202e\ufeff\uffff"]  # no NUL: a shell has none
words = st.lists(st.sampled_from(LETTERS), max_size=12).map("".join)

ABSURD_NUMBERS = [-1, 0, 1, 2, 3, 5, 8, 31, 64, 2**31 - 1, 2**31, 2**63 - 1, 2**63, 10**26, -(10**26)]
ABSURD_FLOATS = [-1.0, -0.0, 1e-320, 1e-9, 0.5, 0.999999, 1.0, 1.5, 1e4, 1e38, 1e300]
ABSURD_TEXTS = [
    *(
        "",
        " ",
        "~",
        "null",
        "nan",
        ".nan",
        ".inf",
        "-.inf",
        "1e400",
        "0x1F",
        "0o7",
        "010",
        "1_000",
        "yes",
        "2024-02-30",
    ),
    *(
        "[]",
        "{}",
        "[[]]",
        "{a: 1}",
        "[1, [2, {x: [~]}]]",
        "[1, x",
        "{",
        "}",
        "'",
        '"',
        "a: b: c",
        "- x",
        "*",
        "&a [*a]",
    ),
    *("!!bool x", "!!timestamp x", "!!int x", "!!float x", "!!binary x", "!!set {x}", "!!omap [x]", "!x y", "? x"),
    *("{text}", "{text:>99999999999}", "{text.__class__}", "{0}", "{text!r:{label}}", "%s", "..", "../..", "|", "\t"),
    *("é", "e\u0301", "日本", "\u202e", "\x1b[31m", "a\nb", "a\rb", "\u2028", "x" * 5000, "[" * 3000, "{a: " * 3000),
    f"!!python/object/apply:os.mkdir ['{CANARY}']",
    f"!!python/object/new:os.mkdir [['{CANARY}']]",
]

absurd_values = st.one_of(
    st.sampled_from(ABSURD_TEXTS), st.sampled_from([*ABSURD_NUMBERS, *ABSURD_FLOATS]).map(str), words
)


# Configurations

MODELS = ["SASRec", "GRU4Rec", "BERT4Rec", "FDSA", "DiffGRM", "HSTU", "RPG", "RecJPQ", "TIGER", "ARM", "ActionPiece"]
MODELS += ["VQRec", "HistoryCopy", "Pop"]
# Minutes of compiling, other programs, other machines, code of others (asked for by name), and how long it takes.
NOT_TRIED = {"compile", "log_wandb", "log_mlflow", "sid_trust_remote_code", "epochs", "pretrain_epochs"}
FOLDERS = {"data_path", "output_dir", "cache_dir", "sid_file", "sid_text_encoder"}
PATHS = [f"{ROOT}/files", f"{ROOT}/files/new/er", f"{ROOT}/data/tiny.yaml", f"{ROOT}/files/{'x' * 300}", f"{ROOT}/none"]
PATHS += [f"{ROOT}/files/é ~[]'", ""]


@st.composite
def configurations(draw) -> tuple[str, dict[str, str]]:
    """(model, {key: value in YAML}), mostly of the right type."""
    model = draw(st.one_of(st.sampled_from(MODELS), st.sampled_from(model_names())))
    schema = get_options(model).model_json_schema()
    keys = draw(st.lists(st.sampled_from(sorted(set(schema["properties"]) - NOT_TRIED)), min_size=1, max_size=3))
    return model, {key: draw(_value_of(key, schema["properties"][key], schema.get("$defs", {}))) for key in keys}


def _value_of(key: str, field: dict[str, Any], defined: dict[str, Any]) -> st.SearchStrategy[str]:
    if key in FOLDERS:
        return st.sampled_from(PATHS)
    fitting = _fitting(field, defined).map(lambda value: json.dumps(value, ensure_ascii=False))
    return st.one_of([fitting] * 5 + [absurd_values])


def _fitting(field: dict[str, Any], defined: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values of the type that a key's JSON schema asks for, near and far beyond its limits."""
    if "$ref" in field:
        return _fitting(defined[field["$ref"].rsplit("/", 1)[1]], defined)
    if "anyOf" in field:
        return st.one_of([_fitting(part, defined) for part in field["anyOf"]])
    if "enum" in field or "const" in field:
        return st.sampled_from(field.get("enum", [field.get("const")]))
    limits = [field[name] for name in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum") if name in field]
    near = [limit + step for limit in limits for step in (-1, 0, 1)]
    small = st.sampled_from(range(1, 21))
    kinds = {
        "integer": st.one_of(st.sampled_from([*map(int, near), *ABSURD_NUMBERS]), small, small),
        "number": st.one_of(
            st.sampled_from([*map(float, near), *ABSURD_FLOATS]),
            st.sampled_from(range(200)).map(lambda hundredths: hundredths / 100),
        ),
        "boolean": st.booleans(),
        "null": st.none(),
        "string": st.sampled_from([*COLUMNS, "[1,inf)", "[3,5]", "(0,1)", "NDCG@10", "x", "1", "é"]),
        "array": st.deferred(lambda: st.lists(_fitting(field.get("items", {}), defined), max_size=3)),
        "object": st.dictionaries(st.sampled_from([*COLUMNS, *PARTS]), _nested, max_size=3),
    }
    return kinds.get(str(field.get("type")), st.sampled_from(ABSURD_NUMBERS))


COLUMNS = ["user_id", "item_id", "rating", "timestamp", "title", "categories", "nothing"]
PARTS = ["inter", "item", "user", "split", "order", "group_by", "mode", "LS", "TS", "RS", "distribution", "sample_num"]
PARTS += ["alpha", "valid", "test", "max_norm", "SASRec"]
_nested = st.recursive(
    st.one_of(
        st.sampled_from(
            [*COLUMNS, "[3,inf)", "valid_and_test", "test_only", "TO", "RO", "user", "full", "uni5", "pop5"]
        ),
        st.sampled_from([*ABSURD_NUMBERS[:9], 10**26, 0.1, 0.8, 1e38, None, True, "popularity", "uniform"]),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(PARTS), inner, max_size=2)),
    max_leaves=5,
)


# Command lines

KEYS = ["model", "dataset", "seed", "seeds", "preset", "config_files", "resume", "rerun", "retest", "recommend", "topk"]
KEYS += ["history", "explain", "skip_unknown", "save_topk", "epoch", "lr", "beam_size", "n_layers", "mod", "help"]
KEYS += [
    "loss_type",
    "train_batch_size",
    "metrics",
    "valid_metric",
    "eval_args",
    "repeatable",
    "space",
    "trials",
    "only",
]
ARGUMENTS = [
    "SASRec",
    "Pop",
    "SASRec,Pop",
    "SASRec,BERT4REC",
    "Pop,Pop",
    "pop",
    "tiny",
    "tin",
    "Amazon_Foo",
    "Amazon_Beauty",
]
ARGUMENTS += [
    "item",
    "cpu",
    "1",
    "1,2",
    "1,1",
    "x",
    "True",
    "False",
    f"{ROOT}/data/tiny.yaml",
    f"{ROOT}/finished/Pop",
    ROOT,
]
ARGUMENTS += [f"{ROOT}/data/tiny", "i1 i2", "[i1, i2]", "[1e5, 010, ~]", "NDCG@10", "[NDCG, Recall]", "CE", "BPR"]


FORMS = ["--{key}={value}"] * 5 + ["--{key}", "{value}", "-{key}", "--{key}==", "-m", "-d", "--"]


@st.composite
def _word(draw) -> str:
    key, value = draw(st.sampled_from(KEYS)), draw(st.one_of(st.sampled_from(ARGUMENTS), absurd_values))
    form = draw(st.sampled_from(FORMS))
    return form.replace("{key}", key).replace("{value}", value)


command_lines = st.tuples(
    st.sampled_from(["run", "run", "run", "run", "tokenizer", "tune", "study"]), st.lists(_word(), max_size=4)
)


# Bytes and tables with something wrong in them

_anywhere = st.sampled_from(range(1 << 20))  # taken modulo the length
Edit = tuple[Any, ...]

_bytes = st.one_of(
    st.lists(st.sampled_from(range(256)), min_size=1, max_size=8).map(bytes), st.sampled_from([b"\0" * 64, b"\n"])
)

byte_edits = st.lists(
    st.one_of(
        st.tuples(st.just("flip"), _anywhere, st.sampled_from(range(0, 8))),
        st.tuples(st.just("cut"), _anywhere),
        st.tuples(st.just("drop"), _anywhere, st.sampled_from(range(1, 51))),
        st.tuples(
            st.just("put"),
            _anywhere,
            _bytes,
        ),
        st.tuples(st.just("repeat"), _anywhere, st.sampled_from(range(1, 201))),
    ),
    min_size=1,
    max_size=3,
)


def edit_bytes(content: bytes, edits: list[Edit]) -> bytes:
    for name, where, *more in edits:
        at = where % (len(content) + 1)
        before, after = content[:at], content[at:]
        if name == "flip":
            content = before + (bytes([after[0] ^ 1 << more[0]]) + after[1:] if after else b"")
        elif name == "cut":
            content = before
        elif name == "drop":
            content = before + after[more[0] :]
        elif name == "put":
            content = before + more[0] + after
        else:
            content = before + after[: more[0]] + after
    return content


FIELDS = [
    "",
    " ",
    "nan",
    "inf",
    "-inf",
    "1e400",
    "-1",
    "1e19",
    "9" * 30,
    "i1",
    "u1",
    "[PAD]",
    '"',
    '"i1"',
    '"i1',
    'i"1',
    "NA",
]
FIELDS += [
    "None",
    "#",
    "0x10",
    "1.5.2",
    "1,5",
    "a|b",
    "|",
    "é",
    "e\u0301",
    "\ufeff",
    "\0",
    "a\u2028b",
    "i1 ",
    "\u0661",
    "x" * 200_000,
]
FIELDS += [
    "user_id:token",
    "0",
    "1",
    "1.0",
    "01",
    "3 4",
    "0 0 0",
    "7 7 7",
    "8 8 8",
    "-1 0 0",
    "1 2",
    "{text}",
    "\x1b[31m",
    "a\rb",
]
HEADERS = [
    "",
    "user_id",
    "item_id:token",
    "item_id:float",
    "user_id:token",
    "timestamp:token",
    "x:y",
    "x:float_seq",
    ":",
    "user_id:token:x",
]
HEADERS += [
    "\ufeffuser_id:token",
    "item_id:token_seq",
    "sid:token",
    "sid:token_seq",
    "title:float",
    "USER_ID:token",
    "'user_id:token'",
]

table_edits = st.lists(
    st.one_of(
        st.tuples(st.just("field"), _anywhere, st.sampled_from(range(0, 4)), st.one_of(st.sampled_from(FIELDS), words)),
        st.tuples(st.just("column"), st.sampled_from(range(0, 4)), st.one_of(st.sampled_from(FIELDS), words)),
        st.tuples(st.just("header"), st.sampled_from(range(0, 4)), st.sampled_from(HEADERS)),
        st.tuples(st.just("drop column"), st.sampled_from(range(0, 4))),
        st.tuples(st.just("drop"), _anywhere, st.sampled_from([1, 2, 1000])),
        st.tuples(st.just("repeat"), _anywhere, st.sampled_from([1, 2, 100])),
        st.tuples(st.just("line"), _anywhere, st.one_of(st.sampled_from([*FIELDS, "\t" * 10]), words)),
        st.tuples(st.just("encoding"), st.sampled_from(["utf-16", "utf-8-sig", "latin-1", "utf-7"])),
        st.tuples(st.just("newline"), st.sampled_from(["\r\n", "\r", "\n\n", "\n\r", " \n"])),
        st.tuples(st.just("bytes"), byte_edits),
    ),
    max_size=3,
)


def edit_table(text: str, edits: list[Edit]) -> bytes:
    """An atomic file with its fields, lines, header, encoding or bytes changed. The first line is the header."""
    rows = [line.split("\t") for line in text.splitlines()]
    newline, encoding, changes = "\n", "utf-8", []
    for name, *more in edits:
        if name == "field":
            _set(rows[more[0] % len(rows)], more[1], more[2]) if rows else None
        elif name == "column":
            for row in rows[1:]:
                _set(row, more[0], more[1])
        elif name == "header":
            _set(rows[0], more[0], more[1]) if rows else None
        elif name == "drop column":
            rows = [row[: more[0]] + row[more[0] + 1 :] for row in rows]
        elif name == "drop":
            at = more[0] % (len(rows) + 1)
            rows = rows[:at] + rows[at + more[1] :]
        elif name == "repeat":
            at = more[0] % (len(rows) + 1)
            rows = rows[:at] + rows[at : at + 1] * more[1] + rows[at:]
        elif name == "line":
            rows.insert(more[0] % (len(rows) + 1), [more[1]])
        elif name == "encoding":
            encoding = more[0]
        elif name == "newline":
            newline = more[0]
        else:
            changes += more[0]
    changed = newline.join("\t".join(row) for row in [*rows, []])
    return edit_bytes(changed.encode(encoding, "replace"), changes)


def _set(row: list[str], column: int, value: str) -> None:
    row[column : column + 1] = [value]


# YAML files

_yaml_line = st.builds(
    "{}: {}".format,
    st.one_of(
        st.sampled_from(["n_layers", "loss_type", "seed", "load_col", "models", "<<", "topk", "x", "1", "~"]),
        absurd_values,
    ),
    st.one_of(
        absurd_values, st.sampled_from(["2", "CE", "[5, 10]", "{SASRec: {n_layers: 1}}", "&a {b: *a}", "*a", ">-\n  x"])
    ),
)
_yaml_text = st.lists(
    st.one_of(_yaml_line, absurd_values, st.sampled_from(["---", "...", "%YAML 1.2", "# x"])), max_size=5
)


@st.composite
def yaml_files(draw) -> bytes:
    content = "\n".join(draw(_yaml_text)).encode(
        draw(st.sampled_from(["utf-8", "utf-8", "utf-16", "latin-1"])), "replace"
    )
    return draw(st.one_of(st.just(content), byte_edits.map(lambda edits: edit_bytes(content, edits))))


# Histories

KNOWN = [f"i{number}" for number in range(40)]
_ids = st.lists(st.sampled_from(KNOWN), min_size=1, max_size=30)
_odd_ids = st.lists(st.sampled_from([*KNOWN[:5], "01", "1e5", "nothing", "[PAD]", "0", "~", "é"]), max_size=5)
histories = st.one_of(
    _ids.map(" ".join),
    _ids.map(lambda ids: f"[{', '.join(ids)}]"),
    _odd_ids.map(" ".join),
    _odd_ids.map(lambda ids: f"[{', '.join(ids)}]"),
    absurd_values,
)
