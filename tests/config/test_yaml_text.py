"""YAML that a few bytes can blow up is refused before anything is made of it; all other YAML is read."""

import pytest
import yaml

from recbole_diffgrm.config import yaml_text
from recbole_diffgrm.config.yaml_text import DEEPEST, MOST_VALUES, TextLoader, load

ANCHORS = """
small: &small {hidden_size: 16, n_layers: 1}
models: {SASRec: *small, GRU4Rec: {<<: *small, n_layers: 2}}
list: [&one 1, *one, &two [a, b], *two]
"""


def test_anchors_are_fine():
    assert load(ANCHORS) == yaml.safe_load(ANCHORS)
    assert load("") is None and load("a: 1e-3") == {"a": 0.001}


def test_depth_with_and_without_aliases():
    assert load("[" * DEEPEST + "]" * DEEPEST) == eval("[" * DEEPEST + "]" * DEEPEST)
    chain = "b0: &b0 [1]\n" + "".join(f"b{i}: &b{i} [*b{i - 1}]\n" for i in range(1, 3 * DEEPEST))
    for text in ("[" * (DEEPEST + 1) + "]" * (DEEPEST + 1), "[" * 300_000, "{a: " * 300, "- " * 300, chain):
        with pytest.raises(ValueError, match=f"nested more than {DEEPEST} deep"):
            load(text)


def test_values_are_counted_as_if_aliases_were_written_out(monkeypatch):
    constructed = []
    monkeypatch.setattr(yaml, "load", lambda *arguments, **named: constructed.append(arguments))
    for form in ("[{}]", "{{<<: [{}]}}"):  # merges are written out when they are read
        text = "a: &a {x: 1, y: 2}\n"
        for before, name in zip("abcdefghi", "bcdefghij"):
            text += f"{name}: &{name} {form.format(', '.join([f'*{before}'] * 9))}\n"
        with pytest.raises(ValueError, match=r"more than 100,000 values"):
            load(text)
    assert not constructed
    load("[" + "1," * (MOST_VALUES - 10) + "]")
    assert len(constructed) == 1


@pytest.mark.parametrize("text", ["&a [*a]", "&a {b: *a}", "&a [[[*a]]]", "x: &a\n  y: [1, {z: *a}]"])
def test_what_contains_itself(text):
    with pytest.raises(ValueError, match=r"\*a contains itself"):
        load(text)


@pytest.mark.parametrize(
    "text",
    [
        *("!!bool x", "!!timestamp x", "!!int x", "!!int ''", "!!float ''", "!!binary x", "!!set [a]", "!!str [a]"),
        *(
            "!!python/object/apply:os.system [x]",
            "!!python/name:os.system",
            "=",
            "a: *b",
            "2024-02-30",
            "\0",
            "9" * 5000,
        ),
        *("--- 1\n--- 2", "{a: [}", "? [a]\n: b", "'a", "a: b: c", "%YAML 9.9\n--- a", "!<!", "{<<: 1}", "\t- a"),
    ],
)
def test_whatever_is_wrong_is_one_line(text):
    with pytest.raises(ValueError) as caught:
        load(text)
    message = str(caught.value)
    assert message and "\n" not in message and len(message) <= 160 and type(caught.value) is ValueError


def test_texts_stay_as_they_are_written():
    assert load("[007, 1e5, 0x10, yes, ~, 'a b', 2024-01-01]", TextLoader) == [
        *("007", "1e5", "0x10", "yes", "~", "a b", "2024-01-01")
    ]


def test_it_works_without_the_c_library_too(monkeypatch):
    class Loader(yaml.SafeLoader):
        pass

    monkeypatch.setattr(yaml_text, "Loader", Loader)
    with pytest.raises(ValueError, match="nested more than"):
        load("[" * 5000, Loader)
    with pytest.raises(ValueError, match="contains itself"):
        load("&a [*a]", Loader)
