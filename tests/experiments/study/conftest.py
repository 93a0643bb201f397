"""A small study, for all tests of studies."""

import pytest
import yaml


@pytest.fixture
def study(options, tmp_path):
    """(path of a plan with three runs, its content, command-line options)."""
    config = yaml.safe_load(options["config_files"][0].read_text())
    models = config.pop("models")
    common = {**config, "epochs": 2, "train_batch_size": 64, "MAX_ITEM_LIST_LENGTH": 10}
    content = {
        "dataset": "tiny",
        "title": "A small study",
        "text": "Why it was made.",
        "settings": common,
        "sections": [
            {"title": "Baselines", "runs": {"Pop": {"model": "Pop"}, "SASRec": {"model": "SASRec", "seeds": [1, 2]}}},
            {
                "title": "DiffGRM",
                "text": "What was tried.",
                "reference": "plain",
                "runs": {
                    "plain": {"model": "DiffGRM", "settings": models["DiffGRM"]},
                    "with items": {"model": "DiffGRM", "settings": {**models["DiffGRM"], "item_head": True}},
                    "SIDs alone": {"weights_of": "with items", "settings": {"item_scoring": "none"}},
                },
            },
        ],
        "short_table": {"SASRec": ["SASRec"], "Pop": ["Pop"], "DiffGRM": ["plain", "with items"]},
        "reference": "DiffGRM",
        "published": {"text": "Other: theirs.", "rows": {"Other": {"level": "sid", "recall@10": 0.5, "ndcg@10": 0.25}}},
    }
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    words = [f"--data_path={options['data_path']}", f"--output_dir={tmp_path / 'runs'}", "--show_progress=False"]
    return path, content, [*words, f"--results={tmp_path / 'results'}"]
