"""The page of one run: its charts, the headline numbers, what happened, and its provenance.

`run_charts` decides which charts are drawn, `charts` how they look, templates/ how the page looks.
NOTE: everything that a run wrote must be escaped before it reaches the page.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trainfleet import __version__
from trainfleet.files import write_whole
from trainfleet.training.report.charts import draw, draw_stack, library
from trainfleet.training.report.run_charts import (
    charts_of,
    counts_tokens,
    decision_change,
    stack_of,
    time_bar,
)
from trainfleet.training.report.run_summary import RunSummary, read_run_summary
from trainfleet.training.runs.machine_time import machine_times, totals
from trainfleet.training.runs.schema import PROFILES
from trainfleet.training.runtime.progress import duration, number
from trainfleet.training.stores import is_remote

VERSION_KEYS = ("trainfleet", "revision", "torch", "ray", "python", "platform")


def write_report(place: str | Path, target: Path) -> RunSummary:
    """Write the report of a run to `target` atomically.

    Raises:
        InputError: there is no run, or `target` cannot be written.
        StoreError: the store of the run's URL does not respond.
    """
    summary = read_run_summary(place)
    write_whole(target, render(summary))
    return summary


def render(summary: RunSummary) -> str:
    """The report as HTML."""
    charts = [(chart, draw(chart)) for chart in charts_of(summary)]
    stack = draw_stack(stack_of(summary))
    return fill(
        "report.html",
        any(drawing for _, drawing in charts),
        charts=[
            (chart.title, markup(drawing), chart.wide) for chart, drawing in charts if drawing or chart.wide
        ],
        stack=markup(stack),
        **contents(summary),
    )


def contents(summary: RunSummary) -> dict[str, Any]:
    """What the page of a run shows besides its charts, by the names of its template."""
    return {
        "name": summary.name,
        "status": summary.status(),
        "tiles": _tiles(summary),
        "time": time_bar(summary),
        "happened": _happened(summary),
        "decided": _decided(summary),
        "facts": _facts(summary),
        "checkpoints": _checkpoints(summary),
        "profiles": _profiles(summary),
        "cost": summary.cost(),
        "cost_note": _cost_note(summary),
        "recipe": summary.recipe,
        "notes": _notes(summary),
    }


def fill(template: str, charted: bool, **values: Any) -> str:
    """Render a template; includes Plotly's script if the page has a chart."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    pages = Environment(
        loader=PackageLoader("trainfleet.training"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters["duration"], pages.filters["number"] = duration, number
    written = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    return pages.get_template(template).render(
        library=markup(library()) if charted else "", written=written, version=__version__, **values
    )


def markup(html: str) -> Any:
    """Mark trusted HTML as safe."""
    from markupsafe import Markup

    return Markup(html)


def _tiles(summary: RunSummary) -> list[tuple[str, str, str]]:
    """The headline numbers: name, value, explanation."""
    figures, main = summary.figures(), summary.main()
    of = f" of {figures['steps']:,}" if isinstance(figures["steps"], int) else ""
    tiles = [("steps", f"{figures['step']:,}{of}", f"world size {summary.run.get('world_size', '?')}")]
    if figures["best_validation"] is not None:
        tiles.append(
            (
                "best validation",
                f"{figures['best_validation']:.4f}",
                f"{main.words}, at step {figures['best_step']:,}",
            )
        )
    if figures["ahead_of_baseline"] is not None:
        name, value = summary.baseline(main) or ("", 0.0)
        change = figures["best_validation"] - value
        tiles.append(
            (
                f"against a {name} model",
                f"{change:+.4f}",
                f"{'below' if change <= 0 else 'above'} its {value:.4f} {main.words}",
            )
        )
    if figures["test"] is not None:
        tiles.append(("test", f"{figures['test']:.4f}", f"{main.words}, after training"))
    tokens, samples = figures["tokens_per_second"], figures["samples_per_second"]
    if tokens is not None or samples is not None:
        unit, rate = ("tokens", tokens) if counts_tokens(summary) else ("samples", samples)
        tiles.append(("throughput", number(rate or 0.0), f"{unit} per second, median"))
    if figures["seconds"]:
        many = "es" if len(summary.launches) != 1 else ""
        tiles.append(
            (
                "time",
                duration(figures["seconds"]),
                f"in {len(summary.launches)} launch{many}, {figures['resumes']} resumed",
            )
        )
    if figures["goodput"] is not None:
        tiles.append(("goodput", f"{figures['goodput']:.1%}", "of the reserved time was spent training"))
    return [*tiles, *_cost_tiles(summary), *_machine_time_tiles(summary)]


def _machine_time_tiles(summary: RunSummary) -> list[tuple[str, str, str]]:
    """How long the run waited in queues, and for how long it held machines without training."""
    found = totals(machine_times(summary.run))
    tiles = []
    if found["queued_seconds"]:
        tiles.append(("queued", duration(found["queued_seconds"]), "in a queue, which costs nothing"))
    if found["idle_seconds"]:
        usd = "" if found["idle_usd"] is None else f", ${found['idle_usd']:,.2f}"
        tiles.append(("idle", duration(found["idle_seconds"]), f"machines held without training{usd}"))
    return tiles


def _cost_tiles(summary: RunSummary) -> list[tuple[str, str, str]]:
    """What the run has cost: the time for which it held its machines at their price, else an estimate."""
    used, limits = summary.used(), summary.limits()
    found = []
    if used.usd is not None:
        most = f", of at most ${limits['max_usd']:,.2f}" if "max_usd" in limits else ""
        found.append(("cost", f"${used.usd:,.2f}", f"price of its machines while it held them{most}"))
    elif cheapest := next((each for each in summary.cost() if each.usd is not None), None):
        found.append(("cost", f"${cheapest.usd:,.2f}", f"at catalogue prices of {cheapest.pool}"))
    if "max_hours" in limits:
        most = f"of at most {limits['max_hours']:g} hours"
        found.append(("machines held", f"{used.hours:.3g} h", most))
    return found


def _happened(summary: RunSummary) -> list[dict[str, str]]:
    """Launches and starts in chronological order: how each began and ended."""
    events: list[tuple[str, dict[str, str]]] = []
    for index, launch in enumerate(summary.launches):
        last = index == len(summary.launches) - 1
        status = str(launch.get("status") or (summary.status() if last else "killed"))
        took = f" after {duration(launch['seconds'])}" if "seconds" in launch else ""
        reached = (
            f", at step {launch['last_step']}" if launch.get("last_step") and status != "finished" else ""
        )
        platform = launch.get("platform")
        where = (
            f", platform {platform.get('name')} ({platform.get('cloud')})"
            if isinstance(platform, Mapping)
            else ""
        )
        workers = launch.get("workers", "?")
        count = f"{workers} worker{'s' if workers != 1 else ''}"
        text = f"launched on {launch.get('on', '?')} with {count}{where}: {status}{took}{reached}"
        events.append(
            (
                str(launch.get("at", "")),
                {"what": text, "kind": status, "detail": str(launch.get("error", ""))},
            )
        )
        moves = launch.get("moves") or []
        events += [
            (str(move.get("at", "")), {"what": str(move.get("text", "")), "kind": "resumed", "detail": ""})
            for move in moves
        ]
    for start in summary.starts:
        step = start.get("from_step", 0)
        text = f"training resumed from step {step}" if step else "training started from the beginning"
        events.append(
            (str(start.get("at", "")), {"what": text, "kind": "resumed" if step else "started", "detail": ""})
        )
    if summary.run.get("status") == "failed" and summary.run.get("error"):
        events.append(("~", {"what": f"failed: {summary.run['error']}", "kind": "failed", "detail": ""}))
    return [
        {"at": at.removesuffix("+00:00").replace("T", " ").strip("~"), **event}
        for at, event in sorted(events, key=lambda each: each[0])
    ]


def _decided(summary: RunSummary) -> list[dict[str, str]]:
    """Decisions of controllers and steps rejected by guards, in step order."""
    rows = []
    for row in summary.rows.rows:
        if row.get("kind") == "decision":
            rows.append(
                {
                    "step": f"{row['step']:,}",
                    "what": str(row.get("what", "")),
                    "change": decision_change(row),
                    "why": str(row.get("why", "")),
                    "kind": "resumed",
                }
            )
        elif row.get("kind") == "event":
            what = str(row.get("what", "")).replace("_", " ")
            rows.append(
                {
                    "step": f"{row['step']:,}",
                    "what": what,
                    "change": "",
                    "why": str(row.get("text", "")),
                    "kind": "stopped",
                }
            )
    return rows


def _facts(summary: RunSummary) -> list[tuple[str, str]]:
    run, launch = summary.run, (summary.launches or [{}])[-1]
    versions = (summary.starts or [{}])[-1]
    first, parameters, samples = (
        launch.get("first_step_seconds"),
        run.get("parameters"),
        run.get("train_samples"),
    )
    rows: list[tuple[str, Any]] = [
        ("recipe", launch.get("recipe")),
        ("workload", run.get("workload")),
        ("strategy", summary.settings.get("strategy")),
        ("loss in", run.get("unit")),
        ("parameters", f"{parameters:,}" if isinstance(parameters, int) else None),
        ("training samples", f"{samples:,}" if isinstance(samples, int) else None),
        *((f"data {name}", value) for name, value in _flat(run.get("data"))),
        ("world size", run.get("world_size")),
        ("device", run.get("device")),
        (
            "time to the first step",
            f"{first:.1f} s (last launch)" if isinstance(first, int | float) else None,
        ),
        ("machine", launch.get("machine")),
        ("code", (launch.get("code") or {}).get("digest", "")[:12]),
        ("versions", ", ".join(f"{name} {versions[name]}" for name in VERSION_KEYS if versions.get(name))),
        ("stored in", summary.home),
    ]
    return [(name, str(value)) for name, value in rows if value not in (None, "", 0)]


def _checkpoints(summary: RunSummary) -> list[dict[str, str]] | None:
    if summary.checkpoints is None:
        return None
    main = summary.main()
    key = f"validation/{main.name}"
    scored = [
        (float(index), each.metrics[key])
        for index, each in enumerate(summary.checkpoints)
        if key in each.metrics
    ]
    best = main.best(scored)
    return [
        {
            "name": each.name,
            "size": f"{each.bytes / 2**20:.1f} MiB",
            "best": "best" if best is not None and best[0] == index else "",
            "figures": ", ".join(
                f"{name.removeprefix('validation/').replace('_', ' ')} {value:.4f}"
                for name, value in each.metrics.items()
            ),
        }
        for index, each in enumerate(summary.checkpoints)
    ]


def _profiles(summary: RunSummary) -> list[dict[str, str]]:
    """Files of recorded steps. Those of a folder are linked relative to the page, which is in it."""
    return [
        {
            "name": name,
            "link": "" if is_remote(summary.home) else f"{PROFILES}{name}",
            "place": f"{summary.home}/{PROFILES}{name}",
            "size": f"{size / 2**20:.1f} MiB",
        }
        for name, size in (summary.profiles or {}).items()
    ]


def _cost_note(summary: RunSummary) -> str:
    """Explains the prices, or why there are none."""
    if not any(isinstance(launch.get("platform"), Mapping) for launch in summary.launches):
        return "No launch named a platform (--platform), so the price is unknown."
    if not summary.cost():
        return "The platform has no pool, or no launch has ended yet, so the price is unknown."
    if all(each.usd is None for each in summary.cost()):
        return "The catalogue has no price for this platform's pools."
    return (
        "Cost of the launches' time in each pool, for whole nodes with one worker per GPU, at the prices in "
        "the platform's outputs."
    )


def _notes(summary: RunSummary) -> list[str]:
    notes = []
    if summary.rows.unreadable:
        count = summary.rows.unreadable
        lines = f"{count} line{'s' if count != 1 else ''} of metrics.jsonl"
        notes.append(
            f"{lines} could not be read and {'are' if count != 1 else 'is'} left out: "
            "a kill can truncate the last line."
        )
    if summary.status() == "running":
        notes.append("This run is active: the page shows its state at the time of writing.")
    elif summary.status() != "finished":
        notes.append("This run is not finished. The same command resumes from its newest checkpoint.")
    if summary.status() == "failed" and summary.last_log_line:
        notes.append(f"Last line of launch.log: {summary.last_log_line}")
    return notes


def _flat(value: Any, prefix: str = "") -> list[tuple[str, str]]:
    """A nested mapping as lines, without empty lists and zeros."""
    if not isinstance(value, Mapping):
        return (
            [(prefix.strip(), f"{value:,}" if isinstance(value, int) else str(value))]
            if value not in (None, "", [], 0)
            else []
        )
    return [
        line
        for key, inner in value.items()
        for line in _flat(inner, f"{prefix} {str(key).replace('_', ' ')}")
    ]
