"""What RecBole's plugins have: its quick start with its arguments and its result, on this project's pipeline.

The program's command line is not read: run_recbole_diffgrm.py is the one that has options.
"""

import math
from typing import Any

from recbole_diffgrm import processes
from recbole_diffgrm.config.recbole_arguments import read_arguments
from recbole_diffgrm.experiments.pipeline import run_config
from recbole_diffgrm.models import build_from_layers


def run_recbole_diffgrm(
    model=None, dataset=None, config_file_list=None, config_dict=None, saved: bool = True
) -> dict[str, Any]:
    """Train and test one model. With `saved` False its run directory keeps the results, not the weights.

    >>> run_recbole_diffgrm("DiffGRM", "ml-100k", config_dict={"preset": "item"})["test_result"]["ndcg@10"]
    """
    arguments = read_arguments(model, dataset, config_file_list, config_dict)
    config = build_from_layers(arguments.model, arguments.dataset, arguments.user_layers, arguments.presets)
    result = run_config(config)
    if not saved:
        processes.from_first((result.run_dir / "best.pt").unlink)
    return {  # without validation or test: what RecBole has there
        "best_valid_score": config.valid_metric_terms.score(result.valid) if result.valid else -math.inf,
        "valid_score_bigger": True,
        "best_valid_result": result.valid or None,
        "test_result": next(iter(result.test.values()), None),  # of the ranking asked for
    }


def objective_function(config_dict=None, config_file_list=None, saved: bool = True) -> dict[str, Any]:
    """For RecBole's HyperTuning; model and dataset are in the dictionary or in a file."""
    model = read_arguments(None, None, config_file_list, config_dict).model
    return {"model": model, **run_recbole_diffgrm(None, None, config_file_list, config_dict, saved)}
