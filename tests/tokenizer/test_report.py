"""The report against plain counting."""

import json
from pathlib import Path

import numpy as np
import pytest

from recbole_diffgrm.tokenizer.report import format_table
from tests.tokenizer.conftest import run_tokenizer


def test_numbers(settings):
    tokenized = run_tokenizer(settings)
    sids = [tuple(sid) for sid in tokenized.tokenizer.sids.tolist()]
    report = json.loads((tokenized.folder / "report.json").read_text())
    assert report == tokenized.report
    assert report["num_items"] == 40
    assert (report["quantizer"], report["num_digits"], report["codebook_size"]) == ("opq", 2, 8)
    assert report["text_encoder"] == settings["sid_text_encoder"]
    assert report["distinct_sids"] == len(set(sids))
    assert report["colliding_items"] == sum(sids.count(sid) > 1 for sid in sids)
    assert report["largest_group"] == max(map(sids.count, sids))
    assert report["text_fields"] == ["title", "categories"]
    first = [sid[0] for sid in sids]
    assert report["codes_used"][0] == len(set(first))
    shares = np.array([first.count(code) / 40 for code in set(first)])
    assert report["entropy_bits"][0] == pytest.approx(-(shares * np.log2(shares)).sum())
    pair = sum(
        sids.count(sid) / 40 * np.log2(40 * sids.count(sid) / first.count(sid[0]) / [s[1] for s in sids].count(sid[1]))
        for sid in set(sids)
    )
    assert report["mutual_information_bits"]["1-2"]["measured"] == pytest.approx(pair)


def test_targets(settings):
    tokenized = run_tokenizer(settings)
    sids = [tuple(sid) for sid in tokenized.tokenizer.sids.tolist()]
    inter_file = Path(settings["data_path"]) / "tiny" / "tiny.inter"
    last = {}
    for user, item, _, time in (line.split("\t") for line in inter_file.read_text().splitlines()[1:]):
        if float(time) >= last.get(user, ("", -1.0))[1]:
            last[user] = (item, float(time))
    sid_of = dict(zip(tokenized.tokenizer.item_ids.tolist(), sids))
    sharing = [sids.count(sid_of[item]) > 1 for item, _ in last.values()]
    assert tokenized.report["test_targets"] == len(sharing)
    assert tokenized.report["test_targets_sharing"] == pytest.approx(np.mean(sharing))


@pytest.mark.slow
def test_quantization_error(settings):
    kept = run_tokenizer(settings).report
    assert 0 < kept["quantization_error"] < 1
    assert kept["quantization_error_after_reassignment"] == kept["quantization_error"]
    unique = run_tokenizer(settings, sid_collisions="reassign").report
    assert unique["items_reassigned"] == 40 - kept["distinct_sids"]
    assert unique["quantization_error_after_reassignment"] > unique["quantization_error"] == kept["quantization_error"]


def test_no_test_targets(settings):
    """Without a test part there is nothing to count, and the table says so."""
    report = run_tokenizer(settings, eval_args={"split": {"LS": "valid_only"}}).report
    assert (report["test_targets"], report["test_targets_sharing"]) == (0, None)
    assert "test targets that share a SID  -" in format_table(report)


@pytest.mark.slow
def test_random_codes(settings):
    table = format_table(run_tokenizer(settings, sid_quantizer="random", sid_num_digits=40, sid_pca_dim=None).report)
    assert "random, 40 digits, codebook size 8" in table
    assert "quantization error" not in table
