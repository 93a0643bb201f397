"""Any .inter, .item and .user."""

from hypothesis import strategies as st

from tests.fuzz.properties import check_call, fuzz
from tests.fuzz.strategies import ROOT, edit_table, table_edits
from tests.fuzz.world import arguments, world

SPLITS = ["{LS: valid_and_test}", "{LS: test_only}", "{RS: [0.8, 0.1, 0.1]}", "{TS: [0.8, 0.1, 0.1]}"]
COLUMNS = "{inter: [user_id, item_id, timestamp], item: [item_id, categories], user: [user_id, age]}"
AGES = "user_id:token\tage:float\n" + "".join(f"u{user}\t{user}\n" for user in range(60))
examples = st.fixed_dictionaries(
    {
        "model": st.sampled_from(["Pop", "SASRec", "FDSA", "HistoryCopy"]),
        "split": st.sampled_from(SPLITS),
        "load_col": st.sampled_from([None, COLUMNS]),
        "inter": table_edits,
        "item": table_edits,
        "user": table_edits,
    }
)


@fuzz(examples, examples=45)
def test_atomic_files(example):
    root = world()
    folder = root / "files" / "fuzzed"
    folder.mkdir()
    texts = {name: (root / "data" / "tiny" / f"tiny.{name}").read_text() for name in ("inter", "item")} | {"user": AGES}
    for name, text in texts.items():
        (folder / f"fuzzed.{name}").write_bytes(edit_table(text, example[name]))
    settings = {"dataset": "fuzzed", "data_path": f"{ROOT}/files", "load_col": example["load_col"]}
    check_call(arguments(model=example["model"], eval_args=f"{{split: {example['split']}, order: TO}}", **settings))
