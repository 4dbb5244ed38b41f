"""Line charts of the report, drawn by Plotly. The page includes Plotly's script once for all charts.

The page sets text and grid colours for light and dark mode; line colours are readable on both. Plotly is
imported when a chart is drawn, so that launchers start fast. NaN and Inf leave a gap in a line.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainfleet.training.runtime.progress import number

COLOURS = ("#4381ea", "#e0733a", "#2fa37a", "#9a6fd8", "#8a95a5", "#c9a227", "#d0547f", "#3aa6b9")
CLEAR = "rgba(0,0,0,0)"
GREY = "#8a95a5"
"""For elements that the page's script does not recolour."""
HEIGHT = "300px"


@dataclass(frozen=True)
class Series:
    """One line: `points` are (x, y) in order of x; `style` is empty, `raw` (thin, faint), `dots` (line with
    markers) or `star` (markers only).
    """

    name: str
    points: Sequence[tuple[float, float]]
    style: str = ""
    colour: str = COLOURS[0]


@dataclass(frozen=True)
class Mark:
    """An event at a point of a chart; `text` is its tooltip."""

    x: float
    y: float
    text: str


@dataclass(frozen=True)
class Chart:
    """A titled chart; `levels` are horizontal lines with names, `resumes` are the steps from which the run
    was resumed.
    """

    title: str
    series: Sequence[Series]
    unit: str = ""
    levels: Sequence[tuple[str, float]] = ()
    resumes: Sequence[float] = ()
    zero: bool = False
    marks: Sequence[Mark] = ()
    x: str = "step"
    wide: bool = False


@dataclass(frozen=True)
class Stack:
    """Columns over the steps that share out 100 %: of each (first step, last step), the seconds of every
    part.
    """

    columns: Sequence[tuple[int, int, Mapping[str, float]]]
    colours: Mapping[str, str]


def smooth(points: Sequence[tuple[float, float]], weight: float) -> list[tuple[float, float]]:
    """Exponential moving average of `points`, corrected for its start; `weight` in [0, 1) is how much of the
    past remains.
    """
    average, mass, out = 0.0, 0.0, []
    for x, y in points:
        average = weight * average + (1 - weight) * y
        mass = weight * mass + (1 - weight)
        out.append((x, average / mass))
    return out


def library() -> str:
    """Plotly's script, to be put into the page once, before the charts."""
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


def draw(chart: Chart) -> str:
    """The chart as HTML, or nothing where it has no point yet."""
    import plotly.graph_objects as go

    drawn = [series for series in chart.series if any(math.isfinite(y) for _, y in series.points)]
    if not drawn:
        return ""
    figure = go.Figure(
        [*(_line(series) for series in drawn), *([_marked(chart.marks)] if chart.marks else [])]
    )
    _lay_out(figure, chart.x, chart.unit, "tozero" if chart.zero else "normal")
    for (name, value), dash in zip(
        chart.levels, ("dash", "dashdot", "longdash", "longdashdot") * len(chart.levels), strict=False
    ):
        figure.add_hline(
            value,
            line={"color": GREY, "dash": dash, "width": 1.5},
            name=f"{name}: {number(value)}",
            showlegend=True,
        )
    for index, step in enumerate(chart.resumes):
        figure.add_vline(
            step,
            line={"color": GREY, "dash": "dot", "width": 1.5},
            name="resumed",
            showlegend=index == 0,
            annotation={
                "text": "▾",
                "hovertext": f"resumed from step {step:g}",
                "xanchor": "center",
                "yanchor": "bottom",
            },
        )
    return _html(figure)


def draw_stack(stack: Stack) -> str:
    """The stack as HTML, or nothing where there is no column."""
    import plotly.graph_objects as go

    columns = [
        (first, last, seconds, total)
        for first, last, seconds in stack.columns
        if (total := sum(seconds.values())) > 0
    ]
    if not columns:
        return ""
    figure = go.Figure()
    for part, colour in stack.colours.items():
        taken = [seconds.get(part, 0.0) for _, _, seconds, _ in columns]
        if any(taken):
            figure.add_bar(
                name=part,
                x=[(first + last) / 2 for first, last, _, _ in columns],
                width=[last - first for first, last, _, _ in columns],
                y=[100 * value / total for value, (_, _, _, total) in zip(taken, columns, strict=True)],
                customdata=[
                    [value, f"{first + 1} to {last}"]
                    for value, (first, last, _, _) in zip(taken, columns, strict=True)
                ],
                hovertemplate="%{y:.1f} %, %{customdata[0]:.2f} s (steps %{customdata[1]})",
                marker={"color": colour, "line": {"width": 0}},
            )
    _lay_out(figure, "step", "% of the time", "tozero")
    figure.update_layout(barmode="stack", yaxis={"range": [0, 100]})
    return _html(figure)


def _lay_out(figure: Any, x: str, y: str, mode: str) -> None:
    figure.update_layout(
        template="none",
        paper_bgcolor=CLEAR,
        plot_bgcolor=CLEAR,
        margin={"l": 8, "r": 8, "t": 8, "b": 8},
        font={"family": "system-ui, sans-serif", "size": 12, "color": GREY},
        hovermode="x unified",
        hoverlabel={"namelength": -1},
        showlegend=True,
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        xaxis={"title": x, "automargin": True, "zeroline": False, "spikecolor": GREY, "spikethickness": 1},
        yaxis={"title": y, "automargin": True, "zeroline": False, "minexponent": 6, "rangemode": mode},
    )


def _html(figure: Any) -> str:
    # no mode bar: it covers the legend where nothing can hover, and has a button that sends the data to
    # Plotly's cloud
    config = {"displayModeBar": False, "responsive": True}
    return str(figure.to_html(full_html=False, include_plotlyjs=False, config=config, default_height=HEIGHT))


def _line(series: Series) -> dict[str, Any]:
    raw, dots = series.style == "raw", series.style == "dots" or len(series.points) == 1
    alone = (
        {"mode": "markers", "marker": {"symbol": "star", "size": 11, "color": series.colour}}
        if series.style == "star"
        else {}
    )
    return {
        "type": "scatter",
        "name": html.escape(series.name),
        "x": [x for x, _ in series.points],
        "y": [y for _, y in series.points],
        "mode": "lines+markers" if dots else "lines",
        "line": {"color": series.colour, "width": 1 if raw else 2},
        "opacity": 0.45 if raw else 1,
        **alone,
    }


def _marked(marks: Sequence[Mark]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "name": "decision",
        "x": [mark.x for mark in marks],
        "y": [mark.y for mark in marks],
        "text": [html.escape(mark.text) for mark in marks],
        "hovertemplate": "%{text}",
        "mode": "markers",
        "marker": {"symbol": "diamond", "size": 9, "color": COLOURS[6]},
    }
