"""Line charts as SVG: where their lines, ticks and labels are. A template draws them (templates/parts.html)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 340, 200  # a phone is as wide: text has the same size everywhere
LEFT, RIGHT, TOP, BOTTOM = 44, 10, 10, 32
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c6d31")  # for the color-blind
MOST_MARKERS = 40  # of a line; more are drawn without

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Line:
    name: str
    color: str
    path: str  # of an SVG polyline
    markers: list[tuple[float, float, str]]  # x, y, words


@dataclass(frozen=True)
class Chart:
    title: str
    x_label: str
    lines: list[Line]
    x_ticks: list[tuple[float, str]]  # place, label
    y_ticks: list[tuple[float, str]]

    width, height = WIDTH, HEIGHT
    left, right, bottom = LEFT, WIDTH - RIGHT, HEIGHT - BOTTOM


def line_chart(
    title: str, series: Mapping[str, Points], x_label: str = "epoch", from_zero: bool = False
) -> Chart | None:
    """None where there is nothing to draw."""
    series = {name: [(x, y) for x, y in points if math.isfinite(y)] for name, points in series.items()}
    every = [point for points in series.values() for point in points]
    if not every:
        return None
    x_low, x_high = _range([x for x, _ in every])
    y_low, y_high = _range([y for _, y in every] + [0.0] * from_zero)

    def place_x(x: float) -> float:
        return round(LEFT + (x - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT), 1)

    def place_y(y: float) -> float:
        return round(HEIGHT - BOTTOM - (y - y_low) / (y_high - y_low) * (HEIGHT - TOP - BOTTOM), 1)

    lines = []
    for number, (name, points) in enumerate(series.items()):
        shown = points if len(points) <= MOST_MARKERS else []
        markers = [(place_x(x), place_y(y), f"{name}, {x_label} {x:g}: {y:.4g}") for x, y in shown]
        path = " ".join(f"{place_x(x)},{place_y(y)}" for x, y in points)
        lines.append(Line(name, COLORS[number % len(COLORS)], path, markers))
    return Chart(
        title,
        x_label,
        lines,
        [(place_x(x), f"{x:g}") for x in _ticks(x_low, x_high) if x == int(x)],
        [(place_y(y), f"{y:g}") for y in _ticks(y_low, y_high)],
    )


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if low < high else (low - 0.5 * (abs(low) or 1), high + 0.5 * (abs(high) or 1))


def _ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers in the range."""
    rough = (high - low) / most
    unit = 10 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough)
    first = math.ceil(low / step - 1e-9)
    return [float(f"{number * step:.12g}") for number in range(first, math.floor(high / step + 1e-9) + 1)]
