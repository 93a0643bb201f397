"""Generative and sequential recommenders in RecBole: one command from interactions to metrics."""

import importlib

__version__ = "0.1.0"

_EXPORTS = {
    "run": "recbole_diffgrm.experiments.pipeline",
    "retest": "recbole_diffgrm.experiments.pipeline",
    "compare": "recbole_diffgrm.experiments.comparison",
    "Comparison": "recbole_diffgrm.experiments.comparison",
    "Dataset": "recbole_diffgrm.data.frame",
    "RunResult": "recbole_diffgrm.experiments.result",
    "Recommender": "recbole_diffgrm.serving.recommender",
    "Tokenizer": "recbole_diffgrm.tokenizer.tokenizer",
    "UserError": "recbole_diffgrm.errors",
}
__all__ = ["__version__", *_EXPORTS]


def __getattr__(name: str):
    """Load parts when they are asked for: torch and RecBole take seconds, --help should not."""
    if name in _EXPORTS:
        from recbole_diffgrm.recbole_compat import recbole_dir

        recbole_dir()  # one line instead of a traceback where RecBole is missing
        return getattr(importlib.import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module {__name__} has no attribute {name}")
