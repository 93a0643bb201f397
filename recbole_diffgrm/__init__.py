"""DiffGRM and sequential baselines in RecBole: one command from interactions to metrics."""

__version__ = "0.1.0"

_EXPORTS = {
    "run": "recbole_diffgrm.running.run",
    "compare": "recbole_diffgrm.running.comparison",
    "Comparison": "recbole_diffgrm.running.comparison",
    "RunResult": "recbole_diffgrm.running.result",
    "Recommender": "recbole_diffgrm.running.recommender",
    "Tokenizer": "recbole_diffgrm.tokenizer.artefact",
    "UserError": "recbole_diffgrm.errors",
}
__all__ = ["__version__", *_EXPORTS]


def __getattr__(name: str):
    """Load parts when they are asked for: torch and RecBole take seconds, --help should not."""
    if name in _EXPORTS:
        import importlib

        return getattr(importlib.import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module {__name__} has no attribute {name}")
