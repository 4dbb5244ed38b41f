"""Charts as plain values for the template `charts.html`, which draws them as SVG without any script.

Lines are in a square of 1000 by PLOT_HEIGHT that the browser stretches to the width of the page; texts are
placed in per cent, so that they are not stretched. Colours are classes: the page allows no inline style.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from trainfleet.training.report.charts import COLOURS, Chart, Series, Stack
from trainfleet.training.runtime.progress import number
from trainfleet.ui.downsample import Point, downsample

WIDTH, PLOT_HEIGHT = 1000.0, 220.0
SPARK_WIDTH, SPARK_HEIGHT = 100.0, 24.0
DENSE = 200
"""Points of a line from which on it is drawn thin."""
Place = Callable[[float], float]
"""From a value to its place in the drawing."""


@dataclass(frozen=True)
class Line:
    """A line of a chart.

    Attributes:
        colour: the number of its colour class.
        path: of SVG; `dots` are its points, where they are marked.
        values: steps and values as `step,value step,value`, for reading them off.
    """

    name: str
    colour: int
    style: str
    path: str
    dots: str = ""
    values: str = ""


@dataclass(frozen=True)
class Tick:
    """A tick of an axis: where, and its text."""

    at: float
    text: str
    anchor: str = "middle"


@dataclass(frozen=True)
class Level:
    """A horizontal line with a name."""

    y: float
    text: str


@dataclass(frozen=True)
class MarkDrawn:
    """A decision or fault on a curve, with its tooltip."""

    x: float
    y: float
    text: str


@dataclass(frozen=True)
class Drawing:
    """A chart that is drawn; `words` describe it to those who do not see it."""

    title: str
    unit: str
    x_name: str
    wide: bool
    words: str
    lines: Sequence[Line] = ()
    x_ticks: Sequence[Tick] = ()
    y_ticks: Sequence[Tick] = ()
    levels: Sequence[Level] = ()
    resumes: Sequence[float] = ()
    marks: Sequence[MarkDrawn] = ()
    bounds: tuple[float, float, float, float] = (0.0, 1.0, 0.0, 1.0)
    """The first and last x, the lowest and highest y."""


@dataclass(frozen=True)
class Column:
    """A part of a stacked column, in per cent of the width and of the height."""

    x: float
    width: float
    y: float
    height: float
    colour: int
    text: str


@dataclass(frozen=True)
class StackDrawing:
    """Stacked columns, and the parts that they have with their colours."""

    columns: Sequence[Column]
    x_ticks: Sequence[Tick]
    parts: Sequence[tuple[str, int]]


def draw(chart: Chart) -> Drawing:
    """The chart; without lines where it has no point yet."""
    shown = [(series, downsample(series.points)) for series in chart.series]
    shown = [(series, points) for series, points in shown if points]
    if not shown:
        return Drawing(chart.title, chart.unit, chart.x, chart.wide, "no measurements yet")
    left, right, low, high = _bounds(chart, [points for _, points in shown])

    def across(x: float) -> float:
        return WIDTH * (x - left) / (right - left)

    def down(y: float) -> float:
        return PLOT_HEIGHT * (high - y) / (high - low)

    lines = [_line(series, points, across, down) for series, points in shown]
    return Drawing(
        chart.title,
        chart.unit,
        chart.x,
        chart.wide,
        "; ".join(_words(series.name, points, chart.x) for series, points in shown),
        lines,
        _x_ticks(left, right),
        [Tick(down(value), number(value)) for value in ticks(low, high)],
        [Level(down(value), f"{name}: {number(value)}") for name, value in chart.levels],
        [across(step) for step in chart.resumes if left <= step <= right],
        [MarkDrawn(across(mark.x), down(mark.y), mark.text) for mark in chart.marks],
        (left, right, low, high),
    )


def draw_stack(stack: Stack) -> StackDrawing | None:
    """The shares of the time over the steps; None where nothing was measured."""
    found = [each for each in stack.columns if sum(each[2].values()) > 0]
    if not found:
        return None
    left, right = float(found[0][0]), float(max(found[-1][1], found[0][0] + 1))
    colours = {part: colour_class(colour) for part, colour in stack.colours.items()}
    columns = []
    for first, last, seconds in found:
        top, total = 100.0, sum(seconds.values())
        for part, colour in colours.items():
            if share := 100 * seconds.get(part, 0.0) / total:
                top -= share
                x, width = 100 * (first - left) / (right - left), 100 * (last - first) / (right - left)
                text = f"steps {first + 1} to {last}: {part} {share:.1f} %, {seconds[part]:.2f} s"
                columns.append(Column(_short(x), _short(width), _short(top), _short(share), colour, text))
    parts = [(part, colour) for part, colour in colours.items() if _any(found, part)]
    return StackDrawing(columns, _x_ticks(left, right), parts)


def spark(points: Sequence[Point]) -> str:
    """The path of a small curve in a square of SPARK_WIDTH by SPARK_HEIGHT; empty with fewer than two."""
    if len(points) < 2 or points[0][0] == points[-1][0]:
        return ""
    left, right = points[0][0], points[-1][0]
    low, high = min(y for _, y in points), max(y for _, y in points)
    return _path(
        (
            SPARK_WIDTH * (x - left) / (right - left),
            2 + (SPARK_HEIGHT - 4) * (high - y) / ((high - low) or 1.0),
        )
        for x, y in points
    )


def colour_class(colour: str) -> int:
    """The number of the class of a chart's colour."""
    return COLOURS.index(colour) if colour in COLOURS else 0


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round values between two numbers, at most `most` and one."""
    span = high - low
    if not span or not math.isfinite(span):
        return [low]
    rough = span / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [round(index * step, 12) for index in range(first, math.floor(high / step + 1e-9) + 1)]


def _bounds(chart: Chart, curves: Sequence[Sequence[Point]]) -> tuple[float, float, float, float]:
    xs = [x for points in curves for x, _ in points]
    ys = [y for points in curves for _, y in points] + [value for _, value in chart.levels]
    left, right, low, high = min(xs), max(xs), min(ys), max(ys)
    low = min(0.0, low) if chart.zero else low
    margin = 0.05 * (high - low) or abs(high) * 0.1 or 1.0
    bottom = low if chart.zero and low == 0 else low - margin
    return left, right if right > left else left + 1, bottom, high + margin


def _line(series: Series, points: Sequence[Point], across: Place, down: Place) -> Line:
    placed = [(across(x), down(y)) for x, y in points]
    only_dots = series.style == "star" or len(placed) == 1
    marked = only_dots or series.style == "dots"
    return Line(
        series.name,
        colour_class(series.colour),
        series.style or ("dense" if len(placed) > DENSE else "plain"),
        "" if only_dots else _path(placed),
        "".join(f"M{x:.1f} {y:.1f}h0" for x, y in placed) if marked else "",
        " ".join(f"{x:g},{y:.6g}" for x, y in points),
    )


def _path(points: Iterable[Point]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _x_ticks(left: float, right: float) -> list[Tick]:
    return [
        Tick(at := 100 * (value - left) / (right - left), number(value), _anchor(at))
        for value in ticks(left, right, 4)
    ]


def _anchor(at: float) -> str:
    return "start" if at < 3 else "end" if at > 97 else "middle"


def _words(name: str, points: Sequence[Point], x: str) -> str:
    first, last = points[0], points[-1]
    low, high = min(points, key=lambda point: point[1]), max(points, key=lambda point: point[1])
    if len(points) == 1:
        return f"{name}: {number(first[1])} at {x} {number(first[0])}"
    return (
        f"{name}: {number(first[1])} at {x} {number(first[0])}, {number(last[1])} at {x} {number(last[0])}, "
        f"lowest {number(low[1])}, highest {number(high[1])}"
    )


def _any(columns: Iterable[tuple[int, int, Mapping[str, float]]], part: str) -> bool:
    return any(seconds.get(part) for _, _, seconds in columns)


def _short(value: float) -> float:
    return round(value, 3)
