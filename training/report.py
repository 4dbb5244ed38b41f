"""`trainfleet report`: a run's folder as one HTML file that needs no network: curves, figures, where the time went, what happened.

Used by the command line and by every launcher at its end. Reads only what is on the disk and never torch, so it works
while a run goes on and after a kill. Easy to get wrong: rows may be missing or cut, and a run may never have had one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trainfleet import __version__
from trainfleet.errors import InputError, Problem
from trainfleet.files import write_whole
from training.charts import COLOURS, Chart, Series, draw, library, smooth
from training.progress import duration, number
from training.runfolder import MARKER, Rows, folder_size, last_lines, read_rows, read_run

NATS = "nats per byte"
SMOOTHED_FROM = 100
"""Points of a loss curve from which on it is drawn smoothed, over what was measured; fewer would only lag."""


@dataclass(frozen=True)
class Story:
    """A run as read from its folder."""

    run_dir: Path
    run: dict[str, Any]
    rows: Rows
    recipe: str
    checkpoints: list[dict[str, Any]]

    @property
    def launches(self) -> list[dict[str, Any]]:
        return list(self.run.get("launches", []))

    @property
    def starts(self) -> list[dict[str, Any]]:
        return list(self.run.get("starts", []))

    @property
    def last_step(self) -> int:
        return max((row["step"] for row in self.rows.rows), default=int(self.run.get("step", 0)))

    def status(self) -> str:
        """finished, stopped, failed, running, or killed where it says running and no process holds it."""
        said = str(self.run.get("status", "not started"))
        if said != "running":
            return said
        last = self.launches[-1].get("status") if self.launches else None
        return str(last) if last in ("interrupted", "failed", "killed") else "killed" if not _held(self.run_dir) else "running"

    def validation(self, figure: str = "nats_per_byte") -> list[tuple[float, float]]:
        return [(row["step"], row[f"validation/{figure}"]) for row in self.rows.of("validation") if f"validation/{figure}" in row]

    def figures(self) -> dict[str, Any]:
        """The figures of the report, for `--json`."""
        train = self.rows.of("train")
        validation = self.validation() or self.validation("loss")
        test = (self.rows.of("test") or [{}])[-1]
        bigram = self.run.get("baseline", {}).get("bigram_nats_per_byte")
        best = min(validation, key=lambda point: point[1], default=None)
        return {
            "run": str(self.run_dir),
            "status": self.status(),
            "step": self.last_step,
            "steps": self.run.get("steps"),
            "train_loss": train[-1]["loss"] if train else None,
            "validation": validation[-1][1] if validation else None,
            "best_validation": best[1] if best else None,
            "best_step": int(best[0]) if best else None,
            "test": test.get("test/nats_per_byte", test.get("test/loss")),
            "bigram": bigram,
            "below_bigram": bigram - best[1] if bigram is not None and best else None,
            "tokens_per_second": _median([row["tokens_per_second"] for row in train if "tokens_per_second" in row]),
            "resumes": sum(1 for start in self.starts if start.get("from_step")),
            "time": dict(self.time_shares()),
            "unreadable_rows": self.rows.unreadable,
        }

    def time_shares(self) -> list[tuple[str, float]]:
        """Seconds of the rows that are kept: computing, waiting for data, saving, validating; and what the launches took besides."""
        compute = data = saving = validating = 0.0
        previous = 0
        for row in self.rows.of("train"):
            steps = row["step"] - previous
            previous = row["step"]
            in_steps = row.get("step_seconds", 0.0) * steps
            data += in_steps * row.get("data_wait", 0.0)
            compute += in_steps * (1 - row.get("data_wait", 0.0))
            saving += row.get("checkpoint_seconds", 0.0)
            validating += row.get("validation_seconds", 0.0)
        parts = [("computing", compute), ("waiting for data", data), ("saving checkpoints", saving), ("validating", validating)]
        wall = sum(launch.get("seconds", 0.0) for launch in self.launches)
        rest = wall - sum(value for _, value in parts)
        return [*parts, ("starting, ending, work done twice", rest)] if rest > 0 else parts


def read_story(run_dir: Path) -> Story:
    """Read a run's folder.

    Raises:
        InputError: there is no run.
    """
    if not run_dir.is_dir():
        raise InputError("no such run", [Problem(str(run_dir), "is no folder", "name a run's folder, such as runs/lm-small")])
    run, rows = read_run(run_dir), read_rows(run_dir)
    if not run and not rows.rows:
        raise InputError(
            "no run there", [Problem(str(run_dir), "holds neither run.json nor metrics.jsonl", "name a run's folder, such as runs/lm-small")]
        )
    try:
        recipe = (run_dir / "recipe.yaml").read_text(encoding="utf-8")
    except OSError:
        recipe = ""
    return Story(run_dir, run, rows, recipe, _checkpoints(run_dir))


def write_report(run_dir: Path, target: Path) -> Story:
    """Write the report of a run to `target`, whole or not at all.

    Raises:
        InputError: there is no run, or `target` cannot be written.
    """
    story = read_story(run_dir)
    write_whole(target, render(story))
    return story


def render(story: Story) -> str:
    """The report as HTML."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    pages = Environment(loader=PackageLoader("training"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    charts = [(chart.title, Markup(draw(chart))) for chart in _charts(story)]
    return pages.get_template("report.html").render(
        name=story.run.get("name", story.run_dir.name),
        status=story.status(),
        tiles=_tiles(story),
        library=Markup(library()) if any(drawing for _, drawing in charts) else "",
        charts=charts,
        time=_time(story),
        happened=_happened(story),
        facts=_facts(story),
        checkpoints=story.checkpoints,
        recipe=story.recipe,
        notes=_notes(story),
        written=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        version=__version__,
    )


def _charts(story: Story) -> list[Chart]:
    train = story.rows.of("train")
    resumes = tuple(float(start["from_step"]) for start in story.starts if start.get("from_step"))
    bigram = story.run.get("baseline", {}).get("bigram_nats_per_byte")
    figure = "nats_per_byte" if story.validation() else "loss"
    raw = [(float(row["step"]), float(row.get(figure, row["loss"]))) for row in train if math.isfinite(row.get(figure, row["loss"]))]
    long = len(raw) >= SMOOTHED_FROM
    curves = [
        *([Series("train, as measured", raw, "raw")] if long else []),
        Series("train, smoothed" if long else "train", smooth(raw, 0.9) if long else raw),
        Series("validation", story.validation(figure), "dots", COLOURS[1]),
    ]

    def of(key: str, scale: float = 1.0) -> list[tuple[float, float]]:
        return [(float(row["step"]), row[key] * scale) for row in train if isinstance(row.get(key), int | float)]

    level = ("bigram model", bigram) if bigram is not None else None
    charts = [
        Chart("Loss", curves, NATS if figure == "nats_per_byte" else "nats per token", level, resumes),
        Chart("Learning rate", [Series("learning rate", of("lr"))], "", None, resumes, zero=True),
        Chart("Speed", [Series("tokens per second", of("tokens_per_second"))], "tokens/s", None, resumes, zero=True),
        Chart("Gradient norm before clipping", [Series("gradient norm", of("grad_norm"))], "", None, resumes, zero=True),
    ]
    if of("mfu"):
        charts.append(Chart("Model FLOPs utilisation", [Series("MFU", of("mfu", 100))], "%", None, resumes, zero=True))
    return charts


def _time(story: Story) -> list[dict[str, Any]]:
    """The parts of the bar of times: what, its seconds, its share and colour."""
    parts = story.time_shares()
    total = sum(seconds for _, seconds in parts)
    return [
        {"what": what, "seconds": seconds, "share": seconds / total, "colour": colour}
        for (what, seconds), colour in zip(parts, COLOURS, strict=False)
        if total > 0
    ]


def _tiles(story: Story) -> list[tuple[str, str, str]]:
    """The figures on top: name, value, what it means."""
    figures = story.figures()
    tiles = [
        (
            "steps",
            f"{figures['step']:,}" + (f" of {figures['steps']:,}" if figures["steps"] else ""),
            f"world size {story.run.get('world_size', '?')}",
        )
    ]
    if figures["best_validation"] is not None:
        tiles.append(("best validation", f"{figures['best_validation']:.4f}", f"{NATS}, at step {figures['best_step']:,}"))
    if figures["below_bigram"] is not None:
        better = figures["below_bigram"]
        tiles.append(("against a bigram model", f"{-better:+.4f}", f"{'below' if better >= 0 else 'above'} its {figures['bigram']:.4f} {NATS}"))
    if figures["test"] is not None:
        tiles.append(("test", f"{figures['test']:.4f}", f"{NATS}, at the end"))
    if figures["tokens_per_second"] is not None:
        tiles.append(("speed", number(figures["tokens_per_second"]), "tokens per second, median"))
    wall = sum(launch.get("seconds", 0.0) for launch in story.launches)
    if wall:
        tiles.append(
            ("time", duration(wall), f"in {len(story.launches)} launch{'es' if len(story.launches) != 1 else ''}, {figures['resumes']} resumed")
        )
    return tiles


def _happened(story: Story) -> list[dict[str, str]]:
    """Launches and starts in order of time: how each began and how it ended."""
    events: list[tuple[str, dict[str, str]]] = []
    for index, launch in enumerate(story.launches):
        last = index == len(story.launches) - 1
        status = launch.get("status") or (story.status() if last else "killed")
        took = f" after {duration(launch['seconds'])}" if "seconds" in launch else ""
        where = f", platform {launch['platform']['name']} ({launch['platform']['cloud']})" if launch.get("platform") else ""
        text = f"launched on {launch['on']} with {launch['workers']} worker{'s' if launch['workers'] != 1 else ''}{where}: {status}{took}"
        events.append((str(launch.get("at", "")), {"what": text, "kind": status, "detail": str(launch.get("error", ""))}))
    for start in story.starts:
        step = start.get("from_step", 0)
        text = f"the loop went on from step {step}" if step else "the loop started from the beginning"
        events.append((str(start.get("at", "")), {"what": text, "kind": "resumed" if step else "started", "detail": ""}))
    if story.run.get("status") == "failed" and story.run.get("error"):
        events.append(("~", {"what": f"failed: {story.run['error']}", "kind": "failed", "detail": ""}))
    return [{"at": at.removesuffix("+00:00").replace("T", " ").strip("~"), **event} for at, event in sorted(events, key=lambda each: each[0])]


def _facts(story: Story) -> list[tuple[str, str]]:
    run, launch = story.run, (story.launches or [{}])[-1]
    versions = (story.starts or [{}])[-1]
    first = launch.get("first_step_seconds")
    rows: list[tuple[str, Any]] = [
        ("recipe", launch.get("recipe")),
        ("workload", run.get("workload")),
        ("data", run.get("unit")),
        ("parameters", f"{run['parameters']:,}" if "parameters" in run else None),
        ("training samples", f"{run['train_samples']:,}" if "train_samples" in run else None),
        ("world size", run.get("world_size")),
        ("device", run.get("device")),
        ("time to the first step", f"{first:.1f} s (last launch)" if first is not None else None),
        ("machine", launch.get("machine")),
        ("versions", ", ".join(f"{name} {versions[name]}" for name in ("trainfleet", "torch", "ray", "python") if name in versions)),
        ("folder", str(story.run_dir)),
    ]
    return [(name, str(value)) for name, value in rows if value not in (None, "")]


def _notes(story: Story) -> list[str]:
    notes = []
    if story.rows.unreadable:
        lines = f"{story.rows.unreadable} line{'s' if story.rows.unreadable != 1 else ''}"
        notes.append(
            f"{lines} of metrics.jsonl could not be read and {'is' if story.rows.unreadable == 1 else 'are'} left out: a kill can cut the last one short."
        )
    if story.status() not in ("finished", "running"):
        notes.append("This run is not finished. The same command goes on from its newest checkpoint.")
    if story.status() == "failed" and (said := next(last_lines(story.run_dir / "launch.log"), "")):
        notes.append(f"The last line of launch.log: {said}")
    return notes


def _checkpoints(run_dir: Path) -> list[dict[str, Any]]:
    import json

    found = []
    for folder in sorted((run_dir / "checkpoints").glob("step-*")):
        try:
            note: Mapping[str, Any] = json.loads((folder / MARKER).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        figures = note.get("metrics", {}) or note.get("note", {}).get("metrics", {})
        found.append(
            {
                "step": int(folder.name.removeprefix("step-")),
                "name": folder.name,
                "size": f"{folder_size(folder) / 2**20:.1f} MiB",
                "figures": ", ".join(f"{name} {value:.4f}" for name, value in figures.items()),
            }
        )
    return found


def _held(run_dir: Path) -> bool:
    """Whether a launcher holds the run right now."""
    from filelock import FileLock, Timeout

    if not (run_dir / ".lock").exists():
        return False
    try:
        with FileLock(run_dir / ".lock", timeout=0):
            return False
    except (Timeout, OSError):
        return True


def _median(values: list[float]) -> float | None:
    return sorted(values)[len(values) // 2] if values else None
