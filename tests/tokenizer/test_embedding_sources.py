"""Where item vectors come from: texts of .item, items without text, and what is refused."""

from pathlib import Path

import numpy as np
import pytest

from recbole_diffgrm import UserError
from recbole_diffgrm.tokenizer.embedding_sources import input_files
from tests.tokenizer.conftest import load_split, run_tokenizer


def set_texts(data, change) -> None:
    """Rewrite .item line by line; None drops a line."""
    path = data / "tiny" / "tiny.item"
    head, *lines = path.read_text().splitlines()
    path.write_text("\n".join([head, *(new for line in lines if (new := change(line)) is not None)]) + "\n")


@pytest.mark.slow
def test_items_without_text(settings, data):
    """Random codes, counted in the report, no influence on codebooks; an empty line is the same as a missing one."""
    set_texts(data, lambda line: None if line.startswith("i1\t") else line)
    missing = run_tokenizer(settings)
    assert missing.report["items_without_text"] == 1
    set_texts(data, lambda line: "i2\t<br> \t|" if line.startswith("i2\t") else line)
    both = run_tokenizer(settings)
    assert both.report["items_without_text"] == 2
    assert (both.tokenizer.table(["i1"]) == missing.tokenizer.table(["i1"])).all()
    set_texts(data, lambda line: line.split("\t")[0] + "\t\t" if int(line[1:].split("\t")[0]) < 20 else line)
    many = run_tokenizer(settings, sid_codebook_size=4)
    assert many.report["items_without_text"] == 20
    random = many.tokenizer.table([f"i{i}" for i in range(20)])
    assert len(np.unique(random, axis=0)) > 5
    unique = run_tokenizer(settings, sid_codebook_size=8, sid_collisions="reassign")
    assert unique.report["distinct_sids"] == 40
    set_texts(data, lambda line: line.split("\t")[0] + "\t\t")
    with pytest.raises(UserError, match=r"sid_text_fields: .* tiny .* title, categories"):
        run_tokenizer(settings)


@pytest.mark.slow
def test_items_without_text_do_not_influence_codebooks(settings, data):
    """The same codebooks as when the items did not occur in training."""
    set_texts(data, lambda line: None if line.startswith("i1\t") else line)
    first = run_tokenizer(settings).tokenizer.quantizer
    inter_file = data / "tiny" / "tiny.inter"
    lines = [line for line in inter_file.read_text().splitlines() if "\ti1\t" not in line]
    inter_file.write_text("\n".join(lines) + "\n")
    second = run_tokenizer(settings).tokenizer.quantizer
    for name, array in first.state().items():
        assert (array == second.state()[name]).all(), name


def test_repeated_lines_of_an_item(settings, data, caplog):
    first = run_tokenizer(settings).tokenizer
    path = data / "tiny" / "tiny.item"
    path.write_text(path.read_text() + "i3\tAnother title\tc1\n")
    again = run_tokenizer(settings).tokenizer
    assert "1 line not read: an earlier one has this item_id ('i3')" in caplog.text
    assert (first.sids == again.sids).all()


@pytest.mark.slow
def test_items_of_another_catalog(settings, data, caplog):
    set_texts(data, lambda line: "B" + line if line.startswith("i1\t") else line)
    run_tokenizer(settings)
    assert "1 of 41 items ('i1')" in caplog.text  # Bi1 is an item as well
    settings["load_col"] = {"inter": ["user_id", "item_id", "timestamp"]}
    run_tokenizer(settings)
    assert "1 of 40 items ('i1')" in caplog.text
    set_texts(data, lambda line: "B" + line)
    with_features = {"inter": ["user_id", "item_id", "timestamp"], "item": ["item_id", "categories"]}
    with pytest.raises(UserError, match="no item that occurs in training has text"):
        run_tokenizer(settings, load_col=with_features)
    with pytest.raises(UserError, match=r"tiny.item .* 'i0'; .* 'Bi0'"):
        run_tokenizer(settings)


def test_item_ids_can_be_text(settings):
    with_ids = run_tokenizer(settings, sid_text_fields=["item_id", "title"])
    assert with_ids.report["text_fields"] == ["item_id", "title"]
    assert with_ids.tokenizer.compose({"item_id": "i3", "title": "Item 3"}) == "Item id: i3. Title: Item 3."


def test_wrong_text_fields(settings, caplog):
    with pytest.raises(UserError, match=r"sid_text_fields: .*tiny.item .* name; it has item_id, title, categories"):
        run_tokenizer(settings, sid_text_fields=["name"])
    with caplog.at_level("INFO"):
        run_tokenizer(settings, sid_text_fields=["titel", "categories"], sid_codebook_size=4)
    assert "has no titel" in caplog.text
    assert "Did you mean title?" in caplog.text


def test_no_item_file(settings, data, steps):
    (data / "tiny" / "tiny.item").unlink()
    settings["load_col"] = {"inter": ["user_id", "item_id", "timestamp"]}
    with pytest.raises(UserError, match=r"tiny.item does not exist; .*sid_text_encoder .*sid_quantizer .*sid_file"):
        run_tokenizer(settings)
    tokenized = run_tokenizer(settings, sid_quantizer="random", sid_collisions="reassign")
    assert tokenized.report["distinct_sids"] == 40
    assert steps == ["resolve"]
    assert tokenized.report["quantization_error"] is None
    assert tokenized.report["text_encoder"] is None


def test_input_files(settings, encoder_folder, tmp_path):
    def names(with_text_vectors, **changes):
        config, _ = load_split(settings, **changes)
        files = input_files(config, with_text_vectors)
        if not files:
            return None
        item_file, *others = files
        assert item_file == Path(settings["data_path"]) / "tiny" / "tiny.item"
        return [str(path) for path in others]

    encoder_files = names(False)
    assert str(encoder_folder / "model.safetensors") in encoder_files
    assert names(True) == encoder_files
    assert names(False, sid_file="a.sid") == []
    assert names(True, sid_file="a.sid") == encoder_files
    assert names(False, sid_text_encoder="bundled") == []
    assert names(False, sid_text_encoder="a.npy") == ["a.npy", "a.ids.txt"]
    for quantizer in ("svd", "random"):  # read no text
        assert names(False, sid_quantizer=quantizer) is None
        assert names(True, sid_quantizer=quantizer) == encoder_files
        assert names(False, sid_quantizer=quantizer, sid_file="a.npz") == []
