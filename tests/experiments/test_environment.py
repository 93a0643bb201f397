"""What a result depends on besides its configuration."""

import pytest

from recbole_diffgrm.experiments import environment
from recbole_diffgrm.experiments.pipeline import run


@pytest.mark.parametrize(
    ("text", "has"),
    [
        ("model name\t: EPYC\nflags\t\t: fpu avx2 avx512_bf16\n", True),
        ("flags\t\t: fpu avx2 avx512f\n", False),
        ("Features\t: fp asimd bf16\n", True),
        ("nothing known\n", True),
    ],
)
def test_bfloat16_of_the_processor(tmp_path, text, has):
    (tmp_path / "cpuinfo").write_text(text)
    assert environment.has_bfloat16(tmp_path / "cpuinfo") == has
    assert environment.has_bfloat16(tmp_path / "missing")


def test_says_where_mixed_precision_does_not_pay(options, monkeypatch, caplog):
    monkeypatch.setattr(environment, "has_bfloat16", lambda: False)
    run("SASRec", "tiny", **{**options, "epochs": 1}, enable_amp=True)
    assert "no bfloat16 instructions" in caplog.text
    caplog.clear()
    run("SASRec", "tiny", **{**options, "epochs": 1})
    assert "bfloat16" not in caplog.text
