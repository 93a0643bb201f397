"""`valid_metric`: one metric, or a weighted sum of metrics such as 0.8*NDCG@10+0.2*Recall@10."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from recbole_diffgrm.errors import UserError

LARGEST_WEIGHT = 10**6

_TERM = re.compile(r"\s*([+-]?)\s*(?:(\d+\.?\d*|\.\d+)\s*\*\s*)?([A-Za-z]\w*(?:@\d+)?)\s*")


@dataclass(frozen=True)
class ValidMetric:
    terms: tuple[tuple[float, str], ...]  # (weight, name in lower case such as ndcg@10)

    def score(self, metrics: Mapping[str, float]) -> float:
        return sum(weight * float(metrics[name]) for weight, name in self.terms)


def parse_valid_metric(text: str, available: list[str], smaller_is_better: Collection[str] = ()) -> ValidMetric:
    """`available` names metrics x topk, as people write them (NDCG@10). The score is maximised."""
    names = {name.lower(): name for name in available}
    terms: list[tuple[float, str]] = []
    position = 0
    while position < len(text):
        match = _TERM.match(text, position)
        if not match or (terms and not match[1]):
            raise UserError(f"valid_metric: cannot read {text!r}; write NDCG@10 or 0.8*NDCG@10+0.2*Recall@10")
        sign, weight, name = match.groups()
        if name.lower() not in names:
            raise UserError(f"valid_metric: {name} is not among metrics x topk ({', '.join(available)})")
        if sign != "-" and name.lower().split("@")[0] in smaller_is_better:
            raise UserError(f"valid_metric: of {name} less is better, and the score is maximised: write -{name}")
        if float(weight or 1) > LARGEST_WEIGHT:
            raise UserError(f"valid_metric: a weight must be at most {LARGEST_WEIGHT}, not {weight[:30]}")
        terms.append((float(weight or 1) * (-1 if sign == "-" else 1), name.lower()))
        position = match.end()
    if not terms:
        raise UserError("valid_metric: is empty; write NDCG@10 or 0.8*NDCG@10+0.2*Recall@10")
    return ValidMetric(tuple(terms))
