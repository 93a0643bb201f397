"""Any file as a configuration, a study's plan or a space to search."""

from hypothesis import strategies as st

from tests.fuzz.properties import check_call, fuzz
from tests.fuzz.strategies import ROOT, yaml_files
from tests.fuzz.world import STUDY, arguments, world

FILE = f"{ROOT}/files/fuzzed.yaml"
COMMANDS = {
    "run": arguments(model="SASRec", config_files=FILE),
    "tokenizer": arguments(config_files=FILE, sid_quantizer="random", cache_dir=f"{ROOT}/cache"),
    "tune": arguments(model="SASRec", space=FILE, trials=1),
    "study": [FILE, *(f"--{key}={value}" for key, value in STUDY.items())],
}


@fuzz(st.tuples(st.sampled_from(["run", *COMMANDS]), yaml_files()), examples=60)
def test_yaml_files(example):
    program, content = example
    (world() / "files" / "fuzzed.yaml").write_bytes(content)
    check_call(COMMANDS[program], program)
