"""One run with text and item head, and with generated IDs only, for all tests of serving."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def text_options(tiny, encoder_folder, tmp_path_factory) -> dict:
    """Settings of a run whose semantic IDs come from text."""
    return {
        "config_files": [tiny / "tiny.yaml"],
        "data_path": str(tiny),
        "output_dir": str(tmp_path_factory.mktemp("runs")),
        "epochs": 1,
        "train_batch_size": 64,
        "MAX_ITEM_LIST_LENGTH": 10,
        "show_progress": False,
        "sid_quantizer": "opq",
        "sid_text_fields": ["title", "categories"],
        "sid_pca_dim": 12,
        "sid_text_encoder": str(encoder_folder),
    }


@pytest.fixture(scope="session")
def text_run(text_options) -> Path:
    """Of DiffGRM with its item head."""
    from recbole_diffgrm import run

    head = {"item_head": True, "item_text": True}
    return run("DiffGRM", "tiny", **text_options, **head).run_dir
