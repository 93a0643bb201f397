"""What is read from RecBole's source is what RecBole registers."""

from recbole.evaluator.register import metric_information, metric_types, metrics_dict
from recbole.evaluator.register import smaller_metrics as theirs
from recbole.utils import EvaluatorType

from recbole_diffgrm.config.recbole_metrics import recbole_metrics, smaller_metrics


def test_metrics_are_recboles():
    assert set(recbole_metrics()) == set(metrics_dict)
    for name, metric in recbole_metrics().items():
        assert metric.name == metrics_dict[name].__name__
        assert metric.is_ranking == (metric_types[name] == EvaluatorType.RANKING)
        assert metric.needs == set(metric_information[name])
    assert smaller_metrics() == set(theirs)
