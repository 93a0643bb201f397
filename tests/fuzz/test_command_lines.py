"""Any words on the command lines."""

from tests.fuzz.properties import check_call, fuzz
from tests.fuzz.strategies import command_lines
from tests.fuzz.world import SETTINGS, STUDY

DEFAULTS = {"run": SETTINGS, "tokenizer": SETTINGS, "tune": {**SETTINGS, "trials": "1"}, "study": STUDY}


@fuzz(command_lines, examples=80)
def test_command_lines(example):
    program, words = example
    given = {{"-d": "dataset"}.get(word, word.partition("=")[0].lstrip("-")) for word in words}
    more = [f"--{key}={value}" for key, value in DEFAULTS[program].items() if key not in given]
    check_call([*words, *more], program)
