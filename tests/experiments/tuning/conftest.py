"""A small search, for all tests of searches."""

import pytest

SPACE = """\
learning_rate: {log_uniform: [1e-3, 1e-1]}
hidden_size: [16, 32]
n_layers: {int: [1, 2]}
"""


@pytest.fixture
def space(tmp_path):
    path = tmp_path / "space.yaml"
    path.write_text(SPACE)
    return path


@pytest.fixture
def arguments(tiny, tmp_path, space):
    """The command line of a search whose trials take a fraction of a second; tests add to it or change it."""

    def make(**changes) -> list[str]:
        settings = {
            "model": "SASRec",
            "dataset": "tiny",
            "data_path": tiny,
            "config_files": tiny / "tiny.yaml",
            "output_dir": tmp_path / "runs",
            "space": space,
            "epochs": 2,
            "trials": 2,
            "MAX_ITEM_LIST_LENGTH": 10,
            "show_progress": False,
        }
        return [f"--{key}={value}" for key, value in {**settings, **changes}.items()]

    return make
