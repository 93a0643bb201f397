"""Runs whose semantic IDs differ are not the same run, whatever their configuration."""

import json
from dataclasses import replace

import pytest

from recbole_diffgrm import UserError, run
from recbole_diffgrm.experiments import item_data
from recbole_diffgrm.experiments.comparison import compare
from recbole_diffgrm.experiments.pipeline import retest, run_config
from recbole_diffgrm.experiments.results_table import Row, warn_of_other_sids
from recbole_diffgrm.models import build_config
from recbole_diffgrm.tokenizer.pipeline import tokenize


@pytest.fixture
def other_sids(monkeypatch):
    """Call it, and the tokenizer gives two items each other's SIDs, as on a processor that calculates otherwise."""

    def change():
        def swapped(config, split):
            tokenized = tokenize(config, split)
            tokenized.tokenizer.sids[[0, 1]] = tokenized.tokenizer.sids[[1, 0]]
            digest = tokenized.tokenizer.digest(split.item_ids)
            return replace(tokenized, report={**tokenized.report, "sid_digest": digest})

        monkeypatch.setattr(item_data, "tokenize", swapped)

    return change


def build(options: dict, **changes):
    settings = {**options, **changes}
    return build_config("HistoryCopy", "tiny", settings.pop("config_files"), settings)


def test_the_digest_is_in_the_result(options):
    first = run_config(build(options))
    assert json.loads((first.run_dir / "result.json").read_text())["sid_digest"] == first.sid_digest
    assert len(first.sid_digest) == 16
    assert run_config(build(options, seed=3)).sid_digest == first.sid_digest
    assert run_config(build(options, sid_seed=3)).sid_digest != first.sid_digest
    assert run("Pop", "tiny", **options).sid_digest == ""


def test_a_finished_run_with_other_sids_is_not_used_again(options, other_sids, capsys):
    first = run_config(build(options))
    assert run_config(build(options), reuse=True).run_dir == first.run_dir
    other_sids()
    second = run_config(build(options), reuse=True)
    assert second.run_dir != first.run_dir
    assert second.sid_digest != first.sid_digest
    assert f"{first.run_dir} is not used again: its semantic IDs" in capsys.readouterr().out


def test_a_finished_run_without_a_digest_says_so(options, capsys):
    first = run_config(build(options))
    replace(first, sid_digest="").save()
    assert run_config(build(options), reuse=True).run_dir == first.run_dir
    assert "of a version that may have made other semantic IDs" in capsys.readouterr().out


def test_an_unfinished_run_with_other_sids_does_not_go_on(options, other_sids):
    begun = run_config(build(options))
    (begun.run_dir / "result.json").unlink()
    assert run_config(build(options), resume=True).run_dir == begun.run_dir
    (begun.run_dir / "result.json").unlink()
    other_sids()
    with pytest.raises(UserError, match=rf"has other semantic IDs \(digest {begun.sid_digest}\).*train it anew"):
        run_config(build(options), resume=True)


def test_weights_are_not_tested_with_other_sids(options, other_sids):
    config_files = options.pop("config_files")
    trained = run("DiffGRM", "tiny", config_files, **options | {"epochs": 1})
    other_sids()
    with pytest.raises(UserError, match="has other semantic IDs"):
        retest(trained.run_dir, beam_size=11)


def test_a_comparison_warns_of_other_sids(options):
    config_files = options.pop("config_files")
    comparison = compare(["HistoryCopy", "Pop"], "tiny", config_files, **options)
    assert comparison.warning == ""
    (finished,) = comparison.rows[0].runs
    other = replace(finished, sid_digest="0123456789abcdef")
    warning = warn_of_other_sids([Row("A", [finished]), Row("B", [other, other])])
    assert "different semantic IDs" in warning
    assert f"{finished.sid_digest}: A; 0123456789abcdef: B" in warning
    elsewhere = replace(other, config=other.config | {"sid_seed": 7})
    assert warn_of_other_sids([Row("A", [finished]), Row("B", [elsewhere])]) == ""
