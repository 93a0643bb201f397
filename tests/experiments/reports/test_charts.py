"""Where lines and ticks of a chart are."""

import pytest

from recbole_diffgrm.experiments.reports.charts import HEIGHT, WIDTH, line_chart


def test_points_are_where_their_ticks_say():
    chart = line_chart("loss", {"a": [(1, 0.0), (2, 5.0), (3, 10.0)], "b": [(1, 2.0)]})
    assert [label for _, label in chart.y_ticks] == ["0", "2", "4", "6", "8", "10"]
    assert [label for _, label in chart.x_ticks] == ["1", "2", "3"]
    points = [tuple(map(float, point.split(","))) for point in chart.lines[0].path.split()]
    assert [x for x, _ in points] == [x for x, _ in chart.x_ticks]
    places = {label: place for place, label in chart.y_ticks}
    assert [y for _, y in points] == pytest.approx(
        [places["0"], (places["4"] + places["6"]) / 2, places["10"]], abs=0.1
    )
    assert chart.lines[1].markers[0][2] == "b, epoch 1: 2"


@pytest.mark.parametrize("values", [[3.0], [0.0, 0.0], [-1e-9, 1e-9], [1e12, 2e12], [0.001, float("nan")]])
def test_everything_stays_inside(values):
    chart = line_chart("x", {"a": list(enumerate(values))})
    points = [tuple(map(float, point.split(","))) for point in chart.lines[0].path.split()]
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in points)
    assert len(chart.y_ticks) >= 2


def test_nothing_to_draw():
    assert line_chart("x", {}) is None and line_chart("x", {"a": [(1, float("inf"))]}) is None
