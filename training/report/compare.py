"""Several runs on one page: curves over each other by step and by time, a table of figures, and the recipe's
keys that differ.

Used by `trainfleet report RUN RUN ...`. Easy to get wrong: runs may be judged by different figures; what is
laid over each other
is the first run's figure, and a run that does not measure it is named instead of being left out in silence.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainfleet.files import write_whole
from trainfleet.training.report.charts import COLOURS, Chart, Series, draw
from trainfleet.training.report.page import counts_tokens, fill, markup, time_bar
from trainfleet.training.report.run_summary import Figure, Story, read_story
from trainfleet.training.report.time_breakdown import intervals
from trainfleet.training.runtime.progress import duration, number

ABSENT = "–"


def write_comparison(places: Sequence[str | Path], target: Path) -> list[Story]:
    """Write a page that compares runs to `target`, whole or not at all.

    Raises:
        InputError: one of them is no run, or `target` cannot be written.
        StoreError: a run is below a URL that does not answer.
    """
    stories = [read_story(place) for place in places]
    write_whole(target, comparison(stories))
    return stories


def comparison(stories: Sequence[Story]) -> str:
    """The page as HTML."""
    figure, names = _figure(stories), labels(stories)
    charts = [(chart, draw(chart)) for chart in _charts(stories, names, figure)]
    without = [
        name
        for name, story in zip(names, stories, strict=True)
        if not story.curve(f"validation/{figure.name}", "validation")
    ]
    return fill(
        "compare.html",
        any(drawing for _, drawing in charts),
        name=f"{len(stories)} runs compared",
        runs=[
            (name, story.status(), _colour(index))
            for index, (name, story) in enumerate(zip(names, stories, strict=True))
        ],
        charts=[
            (chart.title, markup(drawing), chart.wide) for chart, drawing in charts if drawing or chart.wide
        ],
        figures=_figures(stories, figure),
        differences=differences(stories),
        times=[(name, time_bar(story)) for name, story in zip(names, stories, strict=True)],
        notes=[f"{name} has no validation of {figure.words} yet." for name in without],
    )


def labels(stories: Sequence[Story]) -> list[str]:
    """A short name for each run; where two are alike, the end of the place that tells them apart comes before
    it.
    """
    names = [story.name for story in stories]
    parts = [Path(story.place).parts for story in stories]
    return [
        name if names.count(name) == 1 else "/".join(part[-2:]) if len(part) > 1 else name
        for name, part in zip(names, parts, strict=True)
    ]


def differences(stories: Sequence[Story]) -> dict[str, list[str]]:
    """The recipe's keys whose values are not the same in all runs, with each run's value."""
    flat = [dict(_flat(story.settings)) for story in stories]
    keys = dict.fromkeys(key for each in flat for key in each)
    rows = {key: [_text(each.get(key, ABSENT)) for each in flat] for key in keys if key != "name"}
    return {key: values for key, values in rows.items() if len(set(values)) > 1}


def _figure(stories: Sequence[Story]) -> Figure:
    """What most runs measure: the first run's main figure if another has it too, else the first that all of
    them have.
    """
    main = stories[0].main()
    measured = [{figure.name for figure in story.measured()} for story in stories]
    if all(main.name in names for names in measured if names):
        return main
    return next(
        (each for each in stories[0].measured() if all(each.name in names for names in measured if names)),
        main,
    )


def _charts(stories: Sequence[Story], names: Sequence[str], figure: Figure) -> list[Chart]:
    key, title = f"validation/{figure.name}", figure.words[:1].upper() + figure.words[1:]

    def lines(of: Any, style: str = "") -> list[Series]:
        return [
            Series(html.escape(name), of(story), style, _colour(index))
            for index, (name, story) in enumerate(zip(names, stories, strict=True))
        ]

    speed = (
        "tokens" if all(counts_tokens(story) for story in stories if story.rows.of("train")) else "samples"
    )
    return [
        Chart(
            f"{title}, validation",
            lines(lambda story: story.curve(key, "validation"), "dots"),
            figure.words,
            wide=True,
        ),
        Chart(
            f"{title}, validation, over time",
            lines(lambda story: _by_time(story, key), "dots"),
            figure.words,
            x="minutes of training",
        ),
        Chart("Loss, train", lines(lambda story: story.curve("loss")), "loss"),
        Chart("Learning rate", lines(lambda story: story.curve("lr")), zero=True),
        Chart("Speed", lines(lambda story: story.curve(f"{speed}_per_second")), f"{speed}/s", zero=True),
    ]


def _by_time(story: Story, key: str) -> list[tuple[float, float]]:
    """A validation figure over the minutes that the kept steps before it took, saving and validating
    included.
    """
    spans, spent, points, at = intervals(story.rows), 0.0, [], 0
    for step, value in story.curve(key, "validation"):
        while at < len(spans) and spans[at].last <= step:
            spent += sum(spans[at].seconds.values())
            at += 1
        points.append((spent / 60, value))
    return points


def _figures(stories: Sequence[Story], figure: Figure) -> list[tuple[str, list[str], int | None]]:
    """Name, each run's value, and which run's is the best, where that can be said."""
    said = [story.figures() for story in stories]
    best = [figure.best(story.curve(f"validation/{figure.name}", "validation")) for story in stories]
    tests = [story.curve(f"test/{figure.name}", "test")[-1:] for story in stories]
    sign = 1 if figure.mode == "min" else -1
    rows: list[tuple[str, list[Any], Any, int]] = [
        ("status", [each["status"] for each in said], str, 0),
        ("steps", [each["step"] for each in said], "{:,}".format, 0),
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
        ("last train loss", [each["train_loss"] for each in said], "{:.4f}".format, 0),
        ("tokens per second", [each["tokens_per_second"] for each in said], number, -1),
        ("samples per second", [each["samples_per_second"] for each in said], number, -1),
        ("time", [each["seconds"] for each in said], duration, 0),
        ("resumed", [each["resumes"] for each in said], str, 0),
        ("decisions", [each["decisions"] for each in said], str, 0),
        ("world size", [story.run.get("world_size") for story in stories], str, 0),
        ("parameters", [story.run.get("parameters") for story in stories], "{:,}".format, 0),
        (
            "cost",
            [next((row["usd"] for row in each["cost"] if row["usd"] is not None), None) for each in said],
            "${:,.2f}".format,
            1,
        ),
    ]
    return [
        (name, [ABSENT if value is None else shown(value) for value in values], _winner(values, way))
        for name, values, shown, way in rows
        if any(value is not None for value in values)
    ]


def _winner(values: Sequence[Any], sign: int) -> int | None:
    """Which value is the best, if better than all others; `sign` 1 for the lowest, -1 for the highest, 0 for
    none.
    """
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
