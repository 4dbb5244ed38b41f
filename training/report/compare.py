"""Compares several runs on one page: curves by step and by time, a table of results, and differing recipe
keys.

All runs are compared by the first run's main metric. A run without it is named on the page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainfleet.files import write_whole
from trainfleet.training.report.charts import COLOURS, Chart, Series, draw
from trainfleet.training.report.cost import usd_of
from trainfleet.training.report.page import fill, markup
from trainfleet.training.report.run_charts import counts_tokens, time_bar
from trainfleet.training.report.run_summary import Figure, RunSummary, read_run_summary
from trainfleet.training.report.time_breakdown import intervals
from trainfleet.training.runtime.progress import duration, number

ABSENT = "–"


def write_comparison(places: Sequence[str | Path], target: Path) -> list[RunSummary]:
    """Write a page that compares runs to `target` atomically.

    Raises:
        InputError: a place holds no run, or `target` cannot be written.
        StoreError: the store of a run's URL does not respond.
    """
    summaries = [read_run_summary(place) for place in places]
    write_whole(target, comparison(summaries))
    return summaries


def comparison(summaries: Sequence[RunSummary], overall: Sequence[tuple[str, str]] = ()) -> str:
    """The page as HTML, with figures of all runs together by name."""
    charts = [(chart, draw(chart)) for chart in charts_of(summaries)]
    return fill(
        "compare.html",
        any(drawing for _, drawing in charts),
        charts=[
            (chart.title, markup(drawing), chart.wide) for chart, drawing in charts if drawing or chart.wide
        ],
        overall=overall,
        **contents(summaries),
    )


def contents(summaries: Sequence[RunSummary]) -> dict[str, Any]:
    """What the page of a comparison shows besides its charts, by the names of its template."""
    figure, names = _figure(summaries), labels(summaries)
    without = [
        name
        for name, summary in zip(names, summaries, strict=True)
        if not summary.curve(f"validation/{figure.name}", "validation")
    ]
    return {
        "name": f"{len(summaries)} runs compared",
        "runs": [
            (name, summary.status(), _colour(index))
            for index, (name, summary) in enumerate(zip(names, summaries, strict=True))
        ],
        "figures": _figures(summaries, figure),
        "differences": differences(summaries),
        "times": [(name, time_bar(summary)) for name, summary in zip(names, summaries, strict=True)],
        "notes": [f"{name} has no validation result for {figure.words} yet." for name in without],
    }


def labels(summaries: Sequence[RunSummary]) -> list[str]:
    """A short name for each run; equal names get the last two parts of the run's path instead."""
    names = [summary.name for summary in summaries]
    parts = [Path(summary.place).parts for summary in summaries]
    return [
        name if names.count(name) == 1 else "/".join(part[-2:]) if len(part) > 1 else name
        for name, part in zip(names, parts, strict=True)
    ]


def differences(summaries: Sequence[RunSummary]) -> dict[str, list[str]]:
    """Recipe keys whose values differ between the runs, with each run's value."""
    flat = [dict(_flat(summary.settings)) for summary in summaries]
    keys = dict.fromkeys(key for each in flat for key in each)
    rows = {key: [_text(each.get(key, ABSENT)) for each in flat] for key in keys if key != "name"}
    return {key: values for key, values in rows.items() if len(set(values)) > 1}


def _figure(summaries: Sequence[RunSummary]) -> Figure:
    """The first run's main metric if all runs have it, else the first metric that all of them have."""
    main = summaries[0].main()
    measured = [{figure.name for figure in summary.measured()} for summary in summaries]
    if all(main.name in names for names in measured if names):
        return main
    return next(
        (each for each in summaries[0].measured() if all(each.name in names for names in measured if names)),
        main,
    )


def charts_of(summaries: Sequence[RunSummary]) -> list[Chart]:
    """The charts of a comparison in page order; a chart can be empty."""
    figure, names = _figure(summaries), labels(summaries)
    key, title = f"validation/{figure.name}", figure.words[:1].upper() + figure.words[1:]

    def lines(of: Any, style: str = "") -> list[Series]:
        return [
            Series(name, of(summary), style, _colour(index))
            for index, (name, summary) in enumerate(zip(names, summaries, strict=True))
        ]

    speed = (
        "tokens"
        if all(counts_tokens(summary) for summary in summaries if summary.rows.of("train"))
        else "samples"
    )
    return [
        Chart(
            f"{title}, validation",
            lines(lambda summary: summary.curve(key, "validation"), "dots"),
            figure.words,
            wide=True,
        ),
        Chart(
            f"{title}, validation, over time",
            lines(lambda summary: _by_time(summary, key), "dots"),
            figure.words,
            x="minutes of training",
        ),
        Chart("Loss, train", lines(lambda summary: summary.curve("loss")), "loss"),
        Chart("Learning rate", lines(lambda summary: summary.curve("lr")), zero=True),
        Chart(
            "Throughput", lines(lambda summary: summary.curve(f"{speed}_per_second")), f"{speed}/s", zero=True
        ),
    ]


def _by_time(summary: RunSummary, key: str) -> list[tuple[float, float]]:
    """A validation metric over the minutes of training before it, including saving and validating."""
    spans, spent, points, at = intervals(summary.rows), 0.0, [], 0
    for step, value in summary.curve(key, "validation"):
        while at < len(spans) and spans[at].last <= step:
            spent += sum(spans[at].seconds.values())
            at += 1
        points.append((spent / 60, value))
    return points


def _figures(summaries: Sequence[RunSummary], figure: Figure) -> list[tuple[str, list[str], int | None]]:
    """Name, each run's value, and the index of the best one, if any."""
    figures = [summary.figures() for summary in summaries]
    best = [figure.best(summary.curve(f"validation/{figure.name}", "validation")) for summary in summaries]
    tests = [summary.curve(f"test/{figure.name}", "test")[-1:] for summary in summaries]
    sign = 1 if figure.mode == "min" else -1
    rows: list[tuple[str, list[Any], Any, int]] = [
        ("status", [each["status"] for each in figures], str, 0),
        ("steps", [each["step"] for each in figures], "{:,}".format, 0),
        (
            f"best validation ({figure.words})",
            [point[1] if point else None for point in best],
            "{:.4f}".format,
            sign,
        ),
        ("at step", [int(point[0]) if point else None for point in best], "{:,}".format, 0),
        (
            f"test ({figure.words})",
            [points[0][1] if points else None for points in tests],
            "{:.4f}".format,
            sign,
        ),
        ("last train loss", [each["train_loss"] for each in figures], "{:.4f}".format, 0),
        ("tokens per second", [each["tokens_per_second"] for each in figures], number, -1),
        ("samples per second", [each["samples_per_second"] for each in figures], number, -1),
        ("time", [each["seconds"] for each in figures], duration, 0),
        ("resumed", [each["resumes"] for each in figures], str, 0),
        ("decisions", [each["decisions"] for each in figures], str, 0),
        ("world size", [summary.run.get("world_size") for summary in summaries], str, 0),
        ("parameters", [summary.run.get("parameters") for summary in summaries], "{:,}".format, 0),
        ("cost", [usd_of(each) for each in figures], "${:,.2f}".format, 1),
    ]
    return [
        (name, [ABSENT if value is None else shown(value) for value in values], _winner(values, way))
        for name, values, shown, way in rows
        if any(value is not None for value in values)
    ]


def _winner(values: Sequence[Any], sign: int) -> int | None:
    """Index of the single best value, if any; `sign` is 1 for the lowest, -1 for the highest, 0 for none."""
    known = [(sign * value, index) for index, value in enumerate(values) if value is not None]
    if not sign or len(known) < 2:
        return None
    first, second = sorted(known)[:2]
    return first[1] if first[0] < second[0] else None


def _colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def _flat(value: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    lines: list[tuple[str, Any]] = []
    for key, inner in value.items():
        lines += (
            _flat(inner, f"{prefix}{key}.") if isinstance(inner, Mapping) else [(f"{prefix}{key}", inner)]
        )
    return lines


def _text(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
