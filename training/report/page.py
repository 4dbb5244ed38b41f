"""One run's page: which charts are drawn, which figures stand on top, what happened, and where all of it
comes from.

Used by `trainfleet report` and by launchers. What a chart shows is decided here, how it looks in
`trainfleet.training.report.charts`, and what the
page looks like in templates/. Easy to get wrong: nothing that a run wrote may reach the page without being
escaped.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trainfleet import __version__
from trainfleet.files import write_whole
from trainfleet.training.report.charts import (
    COLOURS,
    Chart,
    Mark,
    Series,
    Stack,
    draw,
    draw_stack,
    library,
    smooth,
)
from trainfleet.training.report.run_summary import Figure, Story, read_story
from trainfleet.training.report.time_breakdown import (
    COMPUTING,
    DATA,
    EXCHANGING,
    LOST,
    PARTS,
    SAVING,
    STARTING,
    VALIDATING,
    stacked,
)
from trainfleet.training.runtime.progress import duration, number

SMOOTHED_FROM = 100
"""Points of a loss curve from which on it is drawn smoothed, over what was measured; fewer would only lag."""
PART_COLOURS = dict(
    zip(
        (COMPUTING, DATA, SAVING, VALIDATING, STARTING, EXCHANGING, LOST),
        (*COLOURS[:4], *COLOURS[5:7], COLOURS[4]),
        strict=True,
    )
)
RELEVANT = ("trainfleet", "revision", "torch", "ray", "python", "platform")


def write_report(place: str | Path, target: Path) -> Story:
    """Write the report of a run to `target`, whole or not at all.

    Raises:
        InputError: there is no run, or `target` cannot be written.
        StoreError: the run is below a URL that does not answer.
    """
    story = read_story(place)
    write_whole(target, render(story))
    return story


def render(story: Story) -> str:
    """The report as HTML."""
    charts = [(chart, draw(chart)) for chart in _charts(story)]
    stack = draw_stack(_stack(story))
    return fill(
        "report.html",
        any(drawing for _, drawing in charts),
        name=story.name,
        status=story.status(),
        tiles=_tiles(story),
        charts=[
            (chart.title, markup(drawing), chart.wide) for chart, drawing in charts if drawing or chart.wide
        ],
        time=time_bar(story),
        stack=markup(stack),
        happened=_happened(story),
        decided=_decided(story),
        facts=_facts(story),
        checkpoints=_checkpoints(story),
        cost=story.cost(),
        cost_note=_cost_note(story),
        recipe=story.recipe,
        notes=_notes(story),
    )


def fill(template: str, charted: bool, **values: Any) -> str:
    """A page from its template; Plotly's script comes along where there is a chart."""
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
    """HTML of our own making, not to be escaped."""
    from markupsafe import Markup

    return Markup(html)


def _charts(story: Story) -> list[Chart]:
    resumes = tuple(float(step) for step in story.resumes if step)
    main, *others = story.measured() or [story.main()]
    charts = [_figure_chart(story, main, resumes, wide=True)]
    if main.name != "loss" and not _same(story, "loss", main.name):
        charts.append(_figure_chart(story, Figure("loss", "min"), resumes))
    charts += [_figure_chart(story, each, resumes) for each in others if each.name != "loss"]
    rate, batch = story.curve("lr"), story.curve("global_batch")
    charts.append(
        Chart(
            "Learning rate",
            [Series("learning rate", rate)],
            "",
            (),
            resumes,
            zero=True,
            marks=_marks(story, rate, "rate"),
        )
    )
    batch_marks = _marks(story, batch, "batch")
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
    tokens, samples = story.curve("tokens_per_second"), story.curve("samples_per_second")
    words = ("tokens", tokens) if counts_tokens(story) else ("samples", samples)
    charts.append(
        Chart("Speed", [Series(f"{words[0]} per second", words[1])], f"{words[0]}/s", (), resumes, zero=True)
    )
    charts.append(
        Chart(
            "Gradient norm before clipping",
            [Series("gradient norm", story.curve("grad_norm"))],
            "",
            (),
            resumes,
            zero=True,
        )
    )
    mfu = [(step, 100 * value) for step, value in story.curve("mfu")]
    charts.append(Chart("Model FLOPs utilisation", [Series("MFU", mfu)], "%", (), resumes, zero=True))
    return charts


def _figure_chart(story: Story, figure: Figure, resumes: tuple[float, ...], wide: bool = False) -> Chart:
    """Train, validation and test of one figure; where training does not measure the main one, its loss has a
    chart of its own.
    """
    raw = story.curve(figure.name)
    long = len(raw) >= SMOOTHED_FROM
    curves = [
        *([Series("train, as measured", raw, "raw")] if long else []),
        Series("train, smoothed" if long else "train", smooth(raw, 0.9) if long else raw),
        Series("validation", story.curve(f"validation/{figure.name}", "validation"), "dots", COLOURS[1]),
        Series("test", story.curve(f"test/{figure.name}", "test"), "star", COLOURS[2]),
    ]
    simple = [(f"{name} model", value) for name, value in story.baselines(figure.name)]
    title = figure.words[:1].upper() + figure.words[1:]
    unit = str(story.run.get("unit", "")) if figure.name == "loss" else figure.words
    return Chart(title, curves, unit, simple, resumes, wide=wide)


def counts_tokens(story: Story) -> bool:
    """Whether a sample is several tokens: else speed is told in samples."""
    tokens = story.curve("tokens_per_second")
    return any(value for _, value in tokens) and tokens != story.curve("samples_per_second")


def _same(story: Story, one: str, other: str) -> bool:
    """Whether two figures are the same numbers under two names, as loss and nats per byte are for a model of
    bytes.
    """
    return story.curve(one) == story.curve(other) and story.curve(
        f"validation/{one}", "validation"
    ) == story.curve(f"validation/{other}", "validation")


def _marks(story: Story, points: list[tuple[float, float]], word: str) -> list[Mark]:
    """Decisions about what a chart shows, each where the curve is then."""
    marks = []
    for row in story.rows.of("decision"):
        if word in str(row.get("what", "")) and points:
            y = next((value for step, value in points if step >= row["step"]), points[-1][1])
            marks.append(
                Mark(
                    float(row["step"]),
                    y,
                    f"{row['what']} {_short(row.get('old'))} → {_short(row.get('new'))}: {row.get('why', '')}",
                )
            )
    return marks


def _stack(story: Story) -> Stack:
    columns = [
        (each.first, each.last, each.seconds) for each in stacked(story.rows, story.launches, story.starts)
    ]
    return Stack(columns, {part: PART_COLOURS[part] for part in PARTS})


def time_bar(story: Story) -> list[dict[str, Any]]:
    """The parts of the bar of times: what, its seconds, its share and colour."""
    parts = story.time_shares()
    total = sum(seconds for _, seconds in parts)
    return [
        {"what": what, "seconds": seconds, "share": seconds / total, "colour": PART_COLOURS[what]}
        for what, seconds in parts
        if total > 0
    ]


def _tiles(story: Story) -> list[tuple[str, str, str]]:
    """The figures on top: name, value, what it means."""
    figures, main = story.figures(), story.main()
    of = f" of {figures['steps']:,}" if isinstance(figures["steps"], int) else ""
    tiles = [("steps", f"{figures['step']:,}{of}", f"world size {story.run.get('world_size', '?')}")]
    if figures["best_validation"] is not None:
        tiles.append(
            (
                "best validation",
                f"{figures['best_validation']:.4f}",
                f"{main.words}, at step {figures['best_step']:,}",
            )
        )
    if figures["ahead_of_baseline"] is not None:
        name, value = story.baseline(main) or ("", 0.0)
        change = figures["best_validation"] - value
        tiles.append(
            (
                f"against a {name} model",
                f"{change:+.4f}",
                f"{'below' if change <= 0 else 'above'} its {value:.4f} {main.words}",
            )
        )
    if figures["test"] is not None:
        tiles.append(("test", f"{figures['test']:.4f}", f"{main.words}, at the end"))
    tokens, samples = figures["tokens_per_second"], figures["samples_per_second"]
    if tokens is not None or samples is not None:
        unit, rate = ("tokens", tokens) if counts_tokens(story) else ("samples", samples)
        tiles.append(("speed", number(rate or 0.0), f"{unit} per second, median"))
    if figures["seconds"]:
        many = "es" if len(story.launches) != 1 else ""
        tiles.append(
            (
                "time",
                duration(figures["seconds"]),
                f"in {len(story.launches)} launch{many}, {figures['resumes']} resumed",
            )
        )
    cheapest = next((each for each in story.cost() if each.usd is not None), None)
    if cheapest is not None:
        tiles.append(("cost", f"${cheapest.usd:,.2f}", f"at catalogue prices of {cheapest.pool}"))
    return tiles


def _happened(story: Story) -> list[dict[str, str]]:
    """Launches and starts in order of time: how each began and how it ended."""
    events: list[tuple[str, dict[str, str]]] = []
    for index, launch in enumerate(story.launches):
        last = index == len(story.launches) - 1
        status = str(launch.get("status") or (story.status() if last else "killed"))
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
        text = f"launched on {launch.get('on', '?')} with {workers} worker{'s' if workers != 1 else ''}{where}: {status}{took}{reached}"
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
    for start in story.starts:
        step = start.get("from_step", 0)
        text = f"the loop went on from step {step}" if step else "the loop started from the beginning"
        events.append(
            (str(start.get("at", "")), {"what": text, "kind": "resumed" if step else "started", "detail": ""})
        )
    if story.run.get("status") == "failed" and story.run.get("error"):
        events.append(("~", {"what": f"failed: {story.run['error']}", "kind": "failed", "detail": ""}))
    return [
        {"at": at.removesuffix("+00:00").replace("T", " ").strip("~"), **event}
        for at, event in sorted(events, key=lambda each: each[0])
    ]


def _decided(story: Story) -> list[dict[str, str]]:
    """Decisions of controllers, and steps that guards refused, in order of steps."""
    rows = []
    for row in story.rows.rows:
        if row.get("kind") == "decision":
            change = f"{_short(row.get('old'))} → {_short(row.get('new'))}"
            rows.append(
                {
                    "step": f"{row['step']:,}",
                    "what": str(row.get("what", "")),
                    "change": change,
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


def _facts(story: Story) -> list[tuple[str, str]]:
    run, launch = story.run, (story.launches or [{}])[-1]
    versions = (story.starts or [{}])[-1]
    first, parameters, samples = (
        launch.get("first_step_seconds"),
        run.get("parameters"),
        run.get("train_samples"),
    )
    rows: list[tuple[str, Any]] = [
        ("recipe", launch.get("recipe")),
        ("workload", run.get("workload")),
        ("strategy", story.settings.get("strategy")),
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
        ("versions", ", ".join(f"{name} {versions[name]}" for name in RELEVANT if versions.get(name))),
        ("kept in", story.home),
    ]
    return [(name, str(value)) for name, value in rows if value not in (None, "", 0)]


def _checkpoints(story: Story) -> list[dict[str, str]] | None:
    if story.checkpoints is None:
        return None
    main = story.main()
    key = f"validation/{main.name}"
    scored = [
        (float(index), each.metrics[key])
        for index, each in enumerate(story.checkpoints)
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
        for index, each in enumerate(story.checkpoints)
    ]


def _cost_note(story: Story) -> str:
    """What is to be known of the prices, or why there are none."""
    if not any(isinstance(launch.get("platform"), Mapping) for launch in story.launches):
        return "No launch named a platform (--platform), so there is no price."
    if not story.cost():
        return "The platform has no pool, or no launch has ended yet, so there is no price."
    if all(each.usd is None for each in story.cost()):
        return "The catalogue has no price for this platform's pools."
    return "What the launches' time costs on nodes of each pool, whole nodes with one worker per GPU, at the prices in the platform's outputs."


def _notes(story: Story) -> list[str]:
    notes = []
    if story.rows.unreadable:
        lines = f"{story.rows.unreadable} line{'s' if story.rows.unreadable != 1 else ''}"
        notes.append(
            f"{lines} of metrics.jsonl could not be read and {'is' if story.rows.unreadable == 1 else 'are'} left out: a kill can cut the last one short."
        )
    if story.status() == "running":
        notes.append("This run is going on: the page shows it as it was when the page was written.")
    elif story.status() != "finished":
        notes.append("This run is not finished. The same command goes on from its newest checkpoint.")
    if story.status() == "failed" and story.last_words:
        notes.append(f"The last line of launch.log: {story.last_words}")
    return notes


def _flat(value: Any, prefix: str = "") -> list[tuple[str, str]]:
    """A mapping of facts as lines; empty lists and zeros say nothing."""
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


def _short(value: Any) -> str:
    return (
        number(float(value)) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
    )
