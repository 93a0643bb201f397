"""Which models of RecBole can be run, known from its files: importing it takes seconds, and --help should not."""

from functools import cache

from recbole_diffgrm.recbole_compat import recbole_dir

# Sequential models of RecBole that read more than .inter and .item, or the padded interaction table itself.
NEEDS_OTHER_DATA = {
    "DIN": "user and item features joined into every sample",
    "DIEN": "user and item features joined into every sample",
    "GRU4RecKG": "pretrained entity vectors",
    "KSR": "a knowledge graph",
    "FEARec": "RecBole's padded copies of all prefixes",
}


@cache
def all_model_names() -> frozenset[str]:
    """As RecBole spells them."""
    return frozenset(path.stem for path in (recbole_dir() / "properties" / "model").glob("*.yaml"))


@cache
def sequential_model_names() -> frozenset[str]:
    modules = {path.stem for path in (recbole_dir() / "model" / "sequential_recommender").glob("*.py")}
    return frozenset(name for name in all_model_names() if name.lower() in modules and name not in NEEDS_OTHER_DATA)
