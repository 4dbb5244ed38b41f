"""The report's line charts, drawn by Plotly from what a run measured; the report's page holds Plotly's script once, for all of them.

Colours of text and grid are set by the page, for light and dark; those of the lines are here and can be read on both. Plotly is
imported when a chart is drawn, as a launcher's start must not wait for it. Values that are no numbers leave a gap in a line.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from training.progress import number

COLOURS = ("#4381ea", "#e0733a", "#2fa37a", "#9a6fd8", "#8a95a5")
CLEAR = "rgba(0,0,0,0)"
GREY = "#7f8b9c"
HEIGHT = "300px"


@dataclass(frozen=True)
class Series:
    """One line: `points` are (x, y) in order of x; `style` is empty, `raw` (thin and faint) or `dots` (marks each point)."""

    name: str
    points: Sequence[tuple[float, float]]
    style: str = ""
    colour: str = COLOURS[0]


@dataclass(frozen=True)
class Chart:
    """A titled chart; `level` is a horizontal line with a name, `resumes` are the steps from which the run was resumed."""

    title: str
    series: Sequence[Series]
    unit: str = ""
    level: tuple[str, float] | None = None
    resumes: Sequence[float] = ()
    zero: bool = False


def smooth(points: Sequence[tuple[float, float]], weight: float) -> list[tuple[float, float]]:
    """Exponential moving average of `points`, corrected for its start; `weight` in [0, 1) is how much of the past remains."""
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
    figure = go.Figure([_line(series) for series in drawn])
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
        xaxis={"title": "step", "automargin": True, "zeroline": False, "spikecolor": GREY, "spikethickness": 1},
        yaxis={"title": chart.unit, "automargin": True, "zeroline": False, "minexponent": 6, "rangemode": "tozero" if chart.zero else "normal"},
    )
    if chart.level is not None:
        name, value = chart.level
        figure.add_hline(value, line={"color": GREY, "dash": "dash", "width": 1.5}, name=f"{name}: {number(value)}", showlegend=True)
    for index, step in enumerate(chart.resumes):
        figure.add_vline(
            step,
            line={"color": GREY, "dash": "dot", "width": 1.5},
            name="resumed",
            showlegend=index == 0,
            annotation={"text": "▾", "hovertext": f"resumed from step {step:g}", "xanchor": "center", "yanchor": "bottom"},
        )
    # no mode bar: it covers the legend where nothing can hover, and has a button that sends the data to Plotly's cloud
    config = {"displayModeBar": False, "responsive": True}
    return str(figure.to_html(full_html=False, include_plotlyjs=False, config=config, default_height=HEIGHT))


def _line(series: Series) -> dict[str, Any]:
    raw, dots = series.style == "raw", series.style == "dots" or len(series.points) == 1
    return {
        "type": "scatter",
        "name": series.name,
        "x": [x for x, _ in series.points],
        "y": [y for _, y in series.points],
        "mode": "lines+markers" if dots else "lines",
        "line": {"color": series.colour, "width": 1 if raw else 2},
        "opacity": 0.45 if raw else 1,
    }
