"""RecBole's metrics, known from its source: importing it takes seconds, and a misspelt name is answered at once."""

import ast
from functools import cache
from typing import NamedTuple

from recbole_diffgrm.recbole_compat import recbole_dir


class Metric(NamedTuple):
    name: str  # as RecBole spells it
    is_ranking: bool  # of lists of items, not of predicted values
    needs: frozenset[str]  # what has to be collected for it
    less_is_better: bool


@cache
def recbole_metrics() -> dict[str, Metric]:
    """{name in lower case: metric}"""
    attributes: dict[str, dict[str, str]] = {}  # {class: {attribute: value, as written}}, with what it inherits
    metrics = {}
    for file in ("base_metric.py", "metrics.py"):
        source = (recbole_dir() / "evaluator" / file).read_text(encoding="utf-8")
        for node in ast.parse(source).body:
            if not isinstance(node, ast.ClassDef):
                continue
            own = {
                ast.unparse(line.targets[0]): ast.unparse(line.value)
                for line in node.body
                if isinstance(line, ast.Assign)
            }
            inherited = [attributes.get(ast.unparse(base), {}) for base in node.bases]
            attributes[node.name] = all_of_it = {
                key: value for part in [*inherited, own] for key, value in part.items()
            }
            if file == "metrics.py":
                metrics[node.name.lower()] = Metric(
                    node.name,
                    all_of_it["metric_type"].endswith("RANKING"),
                    frozenset(ast.literal_eval(all_of_it["metric_need"])),
                    all_of_it["smaller"] == "True",
                )
    return metrics


def smaller_metrics() -> set[str]:
    """Those of which less is better, in lower case."""
    return {name for name, metric in recbole_metrics().items() if metric.less_is_better}
