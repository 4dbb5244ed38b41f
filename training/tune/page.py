"""A search as one HTML file: the metric of every trial over its steps, and against each key of the space."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from trainfleet.files import write_whole
from trainfleet.training.report.charts import CLEAR, COLOURS, GREY, HEIGHT, Chart, Series, draw, library
from trainfleet.training.runtime.progress import number
from trainfleet.training.tune.search import Search, Trial

MAX_CURVES = 40
"""Maximum number of trials drawn as curves, best first."""


def write_page(search: Search, target: Path) -> None:
    """Write the page atomically."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    templates = Environment(
        loader=PackageLoader("trainfleet.training"),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    tune = search.tune
    table = search.table()
    curves = [
        Series(
            f"trial {each.number}",
            each.rows,
            "dots" if each.status != "pruned" else "raw",
            COLOURS[place % len(COLOURS)],
        )
        for place, each in enumerate(table[:MAX_CURVES])
    ]
    keys = {key: _scatter(search, key) for key in tune.space}
    page = templates.get_template("tune.html").render(
        name=search.recipe.name,
        metric=tune.metric,
        best=search.best(),
        keys=list(tune.space),
        rows=[
            (each, _best(each, tune.mode), {key: shown(value) for key, value in each.values.items()})
            for each in table
        ],
        curves=draw(Chart(tune.metric, curves, tune.metric)),
        scatters={key: chart for key, chart in keys.items() if chart},
        library=library(),
    )
    write_whole(target, page)


def shown(value: Any) -> str:
    """A value of the space as text."""
    return number(value) if isinstance(value, float) else str(value)


def _best(trial: Trial, mode: str) -> str:
    best = trial.best(mode)
    return f"{best[1]:.6g}" if best else "-"


def _scatter(search: Search, key: str) -> str:
    """A scatter plot of each trial's best metric over one key's values, as HTML; empty without results."""
    import plotly.graph_objects as go

    space = search.tune.space[key]
    found = [
        (each, best)
        for each in search.trials
        if (best := each.best(search.tune.mode)) is not None and math.isfinite(best[1])
    ]
    if not found:
        return ""
    values = [each.values[key] if space.choice is None else str(each.values[key]) for each, _ in found]
    names = [f"trial {each.number}, {each.status}" for each, _ in found]
    figure = go.Figure(
        go.Scatter(
            x=values,
            y=[best[1] for _, best in found],
            mode="markers",
            text=names,
            marker={"size": 9, "color": COLOURS[0]},
        )
    )
    kind = "category" if space.choice is not None else "log" if space.log_uniform is not None else "linear"
    figure.update_layout(
        template="none",
        paper_bgcolor=CLEAR,
        plot_bgcolor=CLEAR,
        margin={"l": 8, "r": 8, "t": 8, "b": 8},
        font={"family": "system-ui, sans-serif", "size": 12, "color": GREY},
        xaxis={"title": key, "type": kind, "automargin": True, "zeroline": False},
        yaxis={"title": search.tune.metric, "automargin": True, "zeroline": False},
    )
    return str(
        figure.to_html(
            full_html=False,
            include_plotlyjs=False,
            config={"displayModeBar": False, "responsive": True},
            default_height=HEIGHT,
        )
    )
