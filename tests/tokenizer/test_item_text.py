"""Item text: cleaning and the template."""

import numpy as np
import pytest

from recbole_diffgrm.tokenizer.item_text import clean, compose, label_fields


@pytest.mark.parametrize(
    ("raw", "plain"),
    [
        ("Salt &amp; Pepper", "Salt & Pepper"),
        ("Salt &amp;amp; Pepper", "Salt & Pepper"),
        ("&lt;b&gt;Bold&lt;/b&gt; lip&nbsp;stick", "Bold lip stick"),
        ("<p>One</p><p>Two<br/>three</p>", "One Two three"),
        ("a<script>alert('x < y')</script>b<!-- no --> c<style>p {}</style>", "a b c"),
        ('<a href="http://x.y/?a=1&b=2">link</a>', "link"),
        ("weighs < 5 oz, > 2 oz", "weighs < 5 oz, > 2 oz"),
        ("I <3 this, a <- b", "I <3 this, a <- b"),
        ("  many \t spaces\nand lines ", "many spaces and lines"),
        ("caf&eacute; &#8482; \u00e9", "caf\u00e9 \u2122 \u00e9"),
        ("<br>", ""),
        ('<!DOCTYPE html><?xml version="1.0"?>text', "text"),
        ('<a title="a>b">link</a>', "link"),
        ("zero\u200bwidth\u00ad", "zerowidth"),
        ("\u200b", ""),
        ("fish & chips &c", "fish & chips &c"),
    ],
)
def test_clean(raw, plain):
    assert clean(raw) == plain


def test_endless_texts_are_cut():
    """No encoder reads that far, and a browser's rules take long on millions of brackets."""
    assert clean("a" * 10_000_000) == "a" * 100_000
    assert len(clean("<" * 10_000_000)) <= 100_000


FIELDS = {"title": "Title", "price": "Price", "categories": "Category"}


def text(columns, lists=None, template="{label}: {text}."):
    return compose(columns, FIELDS, template, lists or {"categories": "|"})


def test_compose():
    columns = {"categories": "Beauty|Skin &amp; Face||", "title": "Cream", "price": "9.5", "brand": "unused"}
    assert text(columns) == "Title: Cream. Price: 9.5. Category: Beauty, Skin & Face."
    assert text(columns, template="{text}") == "Cream 9.5 Beauty, Skin & Face"


def test_empty_fields_are_left_out():
    assert text({"title": "Cream", "price": "", "categories": "|"}) == "Title: Cream."
    assert text({"title": "<br>", "price": " "}) == ""
    assert text({}) == ""


def test_numbers_and_lists():
    assert (
        text({"title": 5, "price": 9.5, "categories": ["Beauty", "Skin"]})
        == "Title: 5. Price: 9.5. Category: Beauty, Skin."
    )
    assert text({"title": None}) == ""


def test_lists_of_words():
    """ml-100k has titles as lists separated by spaces."""
    assert text({"categories": "Toy Story"}, {"categories": " "}) == "Category: Toy Story."


def test_braces_in_a_text():
    assert text({"title": "{label} {0}"}) == "Title: {label} {0}."


def test_labels():
    assert label_fields(["release_year", "title"]) == {"release_year": "Release year", "title": "Title"}
    assert label_fields(FIELDS) == FIELDS


def test_values_of_pandas():
    assert text({"title": float("nan"), "categories": np.array(["c1", "c2"])}) == "Category: c1, c2."
