"""Line charts and share bars as plain SVG, drawn for the report: no library, a few kilobytes, offline, light and dark by CSS.

Colours come from the page's CSS classes (`s0` ... `s4`), never from here. Long series are thinned to what a screen can show,
keeping each bucket's extremes, so that a spike in the loss is never hidden.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 480, 270
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 12, 34
MAX_POINTS = 400


def number(value: float) -> str:
    """A short number for an axis or a table: 1.2M, 34.5k, 2.351, 3e-4."""
    if value == 0:
        return "0"
    size = abs(value)
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= limit:
            scale = 1e3 if suffix == "k" else limit
            return f"{value / scale:.3g}{suffix}"
    if size < 1e-3:
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa.removesuffix('.0')}e{int(exponent)}"
    return f"{value:.4g}"


@dataclass(frozen=True)
class Series:
    """One line: `points` are (x, y) in order of x; `style` adds CSS classes (`raw` is faint, `dots` marks each point)."""

    name: str
    points: Sequence[tuple[float, float]]
    style: str = ""


@dataclass(frozen=True)
class Chart:
    """A titled chart; `level` is a horizontal line with a name, `marks` are vertical lines (a resume, a fault)."""

    title: str
    series: Sequence[Series]
    unit: str = ""
    level: tuple[str, float] | None = None
    marks: Sequence[tuple[float, str]] = ()
    zero: bool = False
    read: Callable[[float], str] = number


def thin(points: Sequence[tuple[float, float]], limit: int = MAX_POINTS) -> list[tuple[float, float]]:
    """Return at most about `limit` points: of each bucket the lowest and the highest, in order."""
    if len(points) <= limit:
        return list(points)
    size = math.ceil(len(points) / (limit / 2))
    kept: list[tuple[float, float]] = []
    for start in range(0, len(points), size):
        bucket = points[start : start + size]
        pair = {min(bucket, key=lambda point: point[1]), max(bucket, key=lambda point: point[1])}
        kept.extend(sorted(pair))
    return sorted({points[0], *kept, points[-1]})


def smooth(points: Sequence[tuple[float, float]], weight: float) -> list[tuple[float, float]]:
    """Exponential moving average of `points`, corrected for its start; `weight` in [0, 1) is how much of the past remains."""
    average, mass, out = 0.0, 0.0, []
    for x, y in points:
        average = weight * average + (1 - weight) * y
        mass = weight * mass + (1 - weight)
        out.append((x, average / mass))
    return out


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round values between `low` and `high`, about `count` of them."""
    span = high - low
    if span <= 0:
        return [low]
    raw = span / max(count - 1, 1)
    base = 10.0 ** math.floor(math.log10(raw))
    step = next(base * factor for factor in (1, 2, 2.5, 5, 10) if base * factor >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [index * step for index in range(first, math.floor(high / step + 1e-9) + 1)]


def svg(chart: Chart) -> str:
    """Draw `chart`; a chart without points says that there is nothing yet."""
    drawn = [(slot, series) for slot, series in enumerate(chart.series) if any(math.isfinite(y) for _, y in series.points)]
    if not drawn:
        return '<p class="muted">Nothing was measured yet.</p>'
    lines = [(slot, series, thin([point for point in series.points if math.isfinite(point[1])])) for slot, series in drawn]
    x_low, x_high, y_low, y_high = _bounds(chart, [points for _, _, points in lines])

    def px(x: float) -> float:
        return LEFT + (x - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT)

    def py(y: float) -> float:
        return HEIGHT - BOTTOM - (min(max(y, y_low), y_high) - y_low) / (y_high - y_low) * (HEIGHT - TOP - BOTTOM)

    parts = _axes(chart, px, py, (x_low, x_high, y_low, y_high))
    for slot, series, points in lines:
        path = " ".join(f"{px(x):.1f},{py(y):.1f}" for x, y in points)
        parts.append(f'<polyline class="line s{slot} {series.style}" points="{path}"/>')
        if "dots" in series.style or len(points) == 1:
            parts += [f'<circle class="dot s{slot}" cx="{px(x):.1f}" cy="{py(y):.1f}" r="2.6"/>' for x, y in points]
    legend = "".join(f'<span class="key s{slot}">{escape(series.name)}</span>' for slot, series, _ in lines if "raw" not in series.style)
    if chart.level is not None:
        legend += f'<span class="key level">{escape(chart.level[0])}</span>'
    hover = json.dumps(
        {
            "box": [LEFT, TOP, WIDTH - RIGHT, HEIGHT - BOTTOM],
            "x": [x_low, x_high],
            "series": [
                {"name": series.name, "points": [[x, chart.read(y)] for x, y in points]} for _, series, points in lines if "raw" not in series.style
            ],
        },
        separators=(",", ":"),
    )
    label = escape(f"{chart.title}: " + ", ".join(f"{series.name} ends at {chart.read(points[-1][1])}" for _, series, points in lines), quote=True)
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}" data-chart="{escape(hover, quote=True)}">{"".join(parts)}</svg>'
        f'<div class="legend">{legend}<span class="readout"></span></div>'
    )


def _bounds(chart: Chart, lines: Sequence[Sequence[tuple[float, float]]]) -> tuple[float, float, float, float]:
    """The area to draw: every x, and the y's without the first steep fall of a loss (its top is cut at 4 spans above the middle)."""
    xs = [x for points in lines for x, _ in points] + [x for x, _ in chart.marks]
    ys = sorted([y for points in lines for _, y in points] + ([chart.level[1]] if chart.level else []))
    x_low, x_high = min(xs), max(xs)
    y_low, y_high = (0.0 if chart.zero else ys[0]), ys[-1]
    if x_low == x_high:
        x_low, x_high = x_low - 1, x_high + 1
    if y_low == y_high:
        y_low, y_high = y_low - abs(y_low or 1) * 0.1, y_high + abs(y_high or 1) * 0.1
    pad = (y_high - y_low) * 0.05
    return x_low, x_high, (y_low if chart.zero else y_low - pad), y_high + pad


def _axes(chart: Chart, px: Callable[[float], float], py: Callable[[float], float], box: tuple[float, float, float, float]) -> list[str]:
    x_low, x_high, y_low, y_high = box
    parts = []
    for value in ticks(y_low, y_high):
        y = py(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 7}" y="{y + 4:.1f}" text-anchor="end">{escape(chart.read(value))}</text>')
    base = HEIGHT - BOTTOM + 17
    parts += [f'<text class="tick" x="{px(value):.1f}" y="{base}" text-anchor="middle">{number(value)}</text>' for value in ticks(x_low, x_high)]
    parts.append(f'<text class="tick" x="{WIDTH - RIGHT}" y="{HEIGHT - 3}" text-anchor="end">step</text>')
    if chart.unit:
        parts.append(f'<text class="tick unit" x="{LEFT + 4}" y="{TOP + 8}">{escape(chart.unit)}</text>')
    if chart.level is not None:
        y = py(chart.level[1])
        parts.append(f'<line class="level" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
    for x, what in chart.marks:
        parts.append(f'<line class="mark" x1="{px(x):.1f}" x2="{px(x):.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"><title>{escape(what)}</title></line>')
    return parts


def shares(parts: Sequence[tuple[str, float]]) -> str:
    """One bar cut by the `parts`' values (seconds), with a legend that gives seconds and percent."""
    total = sum(value for _, value in parts)
    if total <= 0:
        return '<p class="muted">Nothing was measured yet.</p>'
    bars, x = [], 0.0
    for slot, (name, value) in enumerate(parts):
        width = value / total * 100
        bars.append(f'<rect class="fill s{slot}" x="{x:.3f}" y="0" width="{width:.3f}" height="10"><title>{escape(name)}</title></rect>')
        x += width
    legend = "".join(
        f'<span class="key s{slot}">{escape(name)} <b>{value / total:.1%}</b> <span class="muted">{value:,.1f} s</span></span>'
        for slot, (name, value) in enumerate(parts)
    )
    return f'<svg class="shares" viewBox="0 0 100 10" preserveAspectRatio="none" role="img" aria-label="share of time">{"".join(bars)}</svg><div class="legend">{legend}</div>'
