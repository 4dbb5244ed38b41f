"""The charts of one run's page: which are drawn, and from which rows. `charts` decides how they look."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainfleet.training.report.charts import COLOURS, Chart, Mark, Series, Stack, smooth
from trainfleet.training.report.run_summary import Figure, RunSummary
from trainfleet.training.report.time_breakdown import (
    COMMUNICATING,
    COMPUTING,
    DATA,
    LOST,
    PARTS,
    QUEUEING,
    SAVING,
    STARTING,
    VALIDATING,
    stacked,
)
from trainfleet.training.runtime.progress import number

SMOOTH_FROM_POINTS = 100
"""Minimum number of points for a smoothed curve over the measured one."""
PART_COLOURS = dict(
    zip(
        (COMPUTING, DATA, SAVING, VALIDATING, STARTING, COMMUNICATING, LOST),
        (*COLOURS[:4], *COLOURS[5:7], COLOURS[4]),
        strict=True,
    )
) | {QUEUEING: COLOURS[7]}


def charts_of(summary: RunSummary) -> list[Chart]:
    """The charts of a run in page order, the main metric first; a chart can be empty."""
    resumes = tuple(float(step) for step in summary.resumes if step)
    main, *others = summary.measured() or [summary.main()]
    charts = [_figure_chart(summary, main, resumes, wide=True)]
    if main.name != "loss" and not _same(summary, "loss", main.name):
        charts.append(_figure_chart(summary, Figure("loss", "min"), resumes))
    charts += [_figure_chart(summary, each, resumes) for each in others if each.name != "loss"]
    rate, batch = summary.curve("lr"), summary.curve("global_batch")
    charts.append(
        Chart(
            "Learning rate",
            [Series("learning rate", rate)],
            "",
            (),
            resumes,
            zero=True,
            marks=_marks(summary, rate, "rate"),
        )
    )
    batch_marks = _marks(summary, batch, "batch")
    if batch_marks or len({value for _, value in batch}) > 1:
        charts.append(
            Chart(
                "Samples per step",
                [Series("global batch", batch)],
                "samples",
                (),
                resumes,
                zero=True,
                marks=batch_marks,
            )
        )
    tokens, samples = summary.curve("tokens_per_second"), summary.curve("samples_per_second")
    words = ("tokens", tokens) if counts_tokens(summary) else ("samples", samples)
    charts.append(
        Chart(
            "Throughput",
            [Series(f"{words[0]} per second", words[1])],
            f"{words[0]}/s",
            (),
            resumes,
            zero=True,
        )
    )
    charts.append(
        Chart(
            "Gradient norm before clipping",
            [Series("gradient norm", summary.curve("grad_norm"))],
            "",
            (),
            resumes,
            zero=True,
        )
    )
    mfu = [(step, 100 * value) for step, value in summary.curve("mfu")]
    charts.append(Chart("Model FLOPs utilisation", [Series("MFU", mfu)], "%", (), resumes, zero=True))
    return charts


def _figure_chart(
    summary: RunSummary, figure: Figure, resumes: tuple[float, ...], wide: bool = False
) -> Chart:
    """Train, validation and test curves of one metric."""
    raw = summary.curve(figure.name)
    long = len(raw) >= SMOOTH_FROM_POINTS
    curves = [
        *([Series("train, as measured", raw, "raw")] if long else []),
        Series("train, smoothed" if long else "train", smooth(raw, 0.9) if long else raw),
        Series("validation", summary.curve(f"validation/{figure.name}", "validation"), "dots", COLOURS[1]),
        Series("test", summary.curve(f"test/{figure.name}", "test"), "star", COLOURS[2]),
    ]
    baselines = [(f"{name} model", value) for name, value in summary.baselines(figure.name)]
    title = figure.words[:1].upper() + figure.words[1:]
    unit = str(summary.run.get("unit", "")) if figure.name == "loss" else figure.words
    return Chart(title, curves, unit, baselines, resumes, wide=wide)


def counts_tokens(summary: RunSummary) -> bool:
    """Whether samples consist of several tokens; else throughput is in samples."""
    tokens = summary.curve("tokens_per_second")
    return any(value for _, value in tokens) and tokens != summary.curve("samples_per_second")


def _same(summary: RunSummary, one: str, other: str) -> bool:
    """Whether two metrics have the same values, such as loss and nats per byte of a byte model."""
    return summary.curve(one) == summary.curve(other) and summary.curve(
        f"validation/{one}", "validation"
    ) == summary.curve(f"validation/{other}", "validation")


def _marks(summary: RunSummary, points: list[tuple[float, float]], word: str) -> list[Mark]:
    """Decisions about a chart's quantity, placed on its curve."""
    marks = []
    for row in summary.rows.of("decision"):
        if word in str(row.get("what", "")) and points:
            y = next((value for step, value in points if step >= row["step"]), points[-1][1])
            marks.append(
                Mark(
                    float(row["step"]),
                    y,
                    f"{row['what']} {decision_change(row)}: {row.get('why', '')}",
                )
            )
    return marks


def stack_of(summary: RunSummary) -> Stack:
    """The time breakdown of a run over its steps."""
    columns = [
        (each.first, each.last, each.seconds)
        for each in stacked(summary.rows, summary.launches, summary.starts)
    ]
    return Stack(columns, {part: PART_COLOURS[part] for part in PARTS})


def time_bar(summary: RunSummary) -> list[dict[str, Any]]:
    """The parts of the time bar: name, seconds, share and colour."""
    parts = summary.time_shares()
    total = sum(seconds for _, seconds in parts)
    return [
        {"what": what, "seconds": seconds, "share": seconds / total, "colour": PART_COLOURS[what]}
        for what, seconds in parts
        if total > 0
    ]


def decision_change(row: Mapping[str, Any]) -> str:
    """The old and the new value of a controller's decision."""
    return f"{_short(row.get('old'))} → {_short(row.get('new'))}"


def _short(value: Any) -> str:
    return (
        number(float(value)) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
    )
