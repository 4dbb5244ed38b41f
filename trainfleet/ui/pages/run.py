"""The page of one run: curves, throughput, time breakdown, faults and spend, as in its report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainfleet.training.report import compare as comparison
from trainfleet.training.report import page as report
from trainfleet.training.report.run_charts import charts_of, stack_of
from trainfleet.training.report.run_summary import RunSummary
from trainfleet.ui.drawing import colour_class, draw, draw_stack
from trainfleet.ui.run_store import MOST_BYTES, ListedRun, RunStore, damage_explained

MOST_COMPARED = 8
"""As many as there are colours of lines."""


def contents(store: RunStore, run: ListedRun) -> dict[str, Any]:
    """What the page of a run shows.

    Raises:
        TrainfleetError: the run cannot be read.
    """
    return store.page(run, lambda summary: _contents(store, run, summary))


def _contents(store: RunStore, run: ListedRun, summary: RunSummary) -> dict[str, Any]:
    shown = report.contents(summary)
    drawings = [draw(chart) for chart in charts_of(summary)]
    return {
        **shown,
        "key": run.key,
        "state": run.info.state,
        "message": run.info.message,
        "info": run.info,
        "charts": [each for each in drawings if each.lines or each.wide],
        "stack": draw_stack(stack_of(summary)),
        "time": _bar(shown["time"]),
        "stored_here": summary.checkpoints is not None,
        "home": run.info.home,
        "notes": [*shown["notes"], *_left_out(store, run, summary)],
    }


def compared(store: RunStore, runs: Sequence[ListedRun]) -> dict[str, Any]:
    """What the page of a comparison shows.

    Raises:
        TrainfleetError: a run cannot be read.
    """
    with damage_explained(*runs):
        return _compared([store.summary(run) for run in runs], runs)


def _compared(summaries: Sequence[RunSummary], runs: Sequence[ListedRun]) -> dict[str, Any]:
    shown = comparison.contents(summaries)
    drawings = [draw(chart) for chart in comparison.charts_of(summaries)]
    return {
        **shown,
        "runs": [
            (name, run.info.state, colour_class(colour), run.key)
            for (name, _, colour), run in zip(shown["runs"], runs, strict=True)
        ],
        "charts": [each for each in drawings if each.lines or each.wide],
        "times": [(name, _bar(parts)) for name, parts in shown["times"]],
    }


def _bar(parts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The parts of the time, from the left in per cent of the width."""
    found, at = [], 0.0
    for part in parts:
        colour = colour_class(part["colour"])
        found.append({**part, "at": round(at, 3), "width": round(100 * part["share"], 3), "colour": colour})
        at += 100 * part["share"]
    return found


def _left_out(store: RunStore, run: ListedRun, summary: RunSummary) -> list[str]:
    size = store.bytes_of(run)
    if size <= MOST_BYTES:
        return []
    first = summary.rows.rows[0]["step"] if summary.rows.rows else 0
    return [f"metrics.jsonl has {size / 2**20:,.0f} MiB: only its end, from step {first:,}, is shown."]
