"""Reads a run for the report: its files in a folder or below a URL, and the metrics derived from them.

Everything is read once, so an active run cannot change between two charts. Rows may be missing or
truncated.
"""

from __future__ import annotations

import contextlib
import json
import math
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from trainfleet import yaml_limits
from trainfleet.errors import InputError, Problem, TrainfleetError
from trainfleet.training.report.cost import PoolCost, pool_costs
from trainfleet.training.report.time_breakdown import goodput, shares, wall_seconds
from trainfleet.training.runs.limits import Used, used_by
from trainfleet.training.runs.machine_time import machine_times, timeline, totals
from trainfleet.training.runs.reader import MARKER, Rows, last_lines, last_sign, read_rows, read_run
from trainfleet.training.runs.schema import PROFILES, RunRecord
from trainfleet.training.runs.storage import HOME
from trainfleet.training.runtime.run_lock import is_locked
from trainfleet.training.stores import NotFoundError, RetryPolicy, is_remote, open_store

REPORT_RETRY = RetryPolicy(attempts=2, first_s=0.5, longest_s=2.0, stall_s=20.0)
"""Few retries: a report is interactive."""
METRIC_WORDS = {
    "loss": "loss",
    "nats_per_byte": "nats per byte",
    "accuracy": "accuracy",
    "f1": "F1",
    "wer": "word error rate",
    "cer": "character error rate",
}
HIGHER_IS_BETTER = ("accuracy", "f1", "precision", "recall", "auroc")
"""Metrics to maximise; for `checkpoint.metric` the recipe's `checkpoint.mode` decides."""

Point = tuple[float, float]


@dataclass(frozen=True)
class Figure:
    """A metric of validations: its name in rows, and `min` or `max` as its better direction."""

    name: str
    mode: str

    @property
    def words(self) -> str:
        return METRIC_WORDS.get(self.name, self.name.replace("_", " "))

    def best(self, points: Iterable[Point]) -> Point | None:
        """The first of the best points."""
        sign = 1 if self.mode == "min" else -1
        return min(points, key=lambda point: sign * point[1], default=None)


@dataclass(frozen=True)
class CheckpointSummary:
    """A complete checkpoint."""

    name: str
    bytes: int
    metrics: dict[str, float]


@dataclass(frozen=True)
class RunSummary:
    """A snapshot of a run.

    Attributes:
        place: its folder or URL, as given.
        home: the folder or URL that holds its checkpoints.
        run, rows, recipe: run.json, metrics.jsonl and recipe.yaml (as text).
        checkpoints: complete ones, oldest first; None if their store did not respond.
        profiles: files of recorded steps, by name, and their sizes; None if their store did not respond.
        lock_held: whether a launcher on this machine holds the run's lock; None if unknown.
        last_log_line: the last line of launch.log.
        last_activity: time of the last change in its folder, in seconds since 1970.
    """

    place: str
    home: str
    run: RunRecord
    rows: Rows
    recipe: str
    checkpoints: list[CheckpointSummary] | None
    profiles: dict[str, int] | None
    lock_held: bool | None
    last_log_line: str
    last_activity: float | None

    @property
    def name(self) -> str:
        return str(self.run.get("name") or self.place.rstrip("/").rpartition("/")[2])

    @property
    def launches(self) -> list[dict[str, Any]]:
        return _mappings(self.run.get("launches"))

    @property
    def starts(self) -> list[dict[str, Any]]:
        return _mappings(self.run.get("starts"))

    @property
    def resumes(self) -> list[int]:
        """Steps from which the run resumed."""
        return [int(start["from_step"]) for start in self.starts if number_in(start, "from_step")]

    @property
    def last_step(self) -> int:
        return max((row["step"] for row in self.rows.rows), default=int(self.run.get("step", 0)))

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The recipe as a document; empty if it cannot be read."""
        try:
            document = yaml_limits.load(self.recipe)
        except yaml.YAMLError:
            return {}
        return document if isinstance(document, dict) else {}

    def status(self) -> str:
        """finished, stopped, failed, running, or killed if it is recorded as running and no
        process holds it.
        """
        recorded = str(self.run.get("status", "not started"))
        if recorded != "running" or self.lock_held is None:
            return recorded
        last = self.launches[-1].get("status") if self.launches else None
        return (
            str(last)
            if last in ("interrupted", "failed", "killed")
            else "running"
            if self.lock_held
            else "killed"
        )

    def measured(self) -> list[Figure]:
        """The metrics of all validations, the main one first."""
        names = dict.fromkeys(
            key.partition("/")[2]
            for row in self.rows.of("validation")
            for key in row
            if key.startswith("validation/")
        )
        main = self.main()
        return [main, *(self._figure(name) for name in names if name != main.name)] if names else []

    def main(self) -> Figure:
        """The main metric: the recipe's `checkpoint.metric`, or the baseline's metric instead of a plain
        loss.
        """
        chosen = str(self._checkpoint().get("metric", "validation/loss")).partition("/")[2] or "loss"
        if chosen == "loss":
            chosen = next((figure for figure, _, _ in self._baselines()), "loss")
        return self._figure(chosen)

    def baselines(self, figure: str) -> list[tuple[str, float]]:
        """Baseline models by name, each with its value of a metric."""
        return [(name, value) for of, name, value in self._baselines() if of == figure]

    def baseline(self, figure: Figure) -> tuple[str, float] | None:
        """The best baseline model by a metric."""
        sign = 1 if figure.mode == "min" else -1
        return min(self.baselines(figure.name), key=lambda each: sign * each[1], default=None)

    def curve(self, key: str, kind: str = "train") -> list[Point]:
        """A metric over steps; skips NaN and Inf."""
        return [
            (float(row["step"]), value)
            for row in self.rows.of(kind)
            if (value := number_in(row, key)) is not None
        ]

    def figures(self) -> dict[str, Any]:
        """The report's results, for `--json`."""
        main = self.main()
        validation = self.curve(f"validation/{main.name}", "validation")
        best, train = main.best(validation), self.curve("loss")
        baseline = self.baseline(main)
        ahead = (best[1] - baseline[1]) * (1 if main.mode == "max" else -1) if best and baseline else None
        tests = self.curve(f"test/{main.name}", "test")
        return {
            "run": self.place,
            "name": self.name,
            "status": self.status(),
            "step": self.last_step,
            "steps": self.run.get("steps"),
            "figure": main.name,
            "mode": main.mode,
            "train_loss": train[-1][1] if train else None,
            "validation": validation[-1][1] if validation else None,
            "best_validation": best[1] if best else None,
            "best_step": int(best[0]) if best else None,
            "test": tests[-1][1] if tests else None,
            "baseline": {"name": baseline[0], "value": baseline[1]} if baseline else None,
            "ahead_of_baseline": ahead,
            "tokens_per_second": _median([value for _, value in self.curve("tokens_per_second")]),
            "samples_per_second": _median([value for _, value in self.curve("samples_per_second")]),
            "launches": len(self.launches),
            "resumes": len([step for step in self.resumes if step]),
            "decisions": len(self.rows.of("decision")),
            "events": len(self.rows.of("event")),
            "seconds": wall_seconds(self.launches, self.last_activity),
            "time": dict(self.time_shares()),
            "goodput": goodput(dict(self.time_shares())),
            "cost": [each.document() for each in self.cost()],
            "held_seconds": round(self.used().hours * 3600, 3),
            "usd": self.used().usd,
            "machine_time": totals(machine_times(self.run)),
            "timeline": timeline(self.run),
            "unreadable_rows": self.rows.unreadable,
        }

    def time_shares(self) -> list[tuple[str, float]]:
        """Seconds per part of the time breakdown."""
        return self._time_shares

    @cached_property
    def _time_shares(self) -> list[tuple[str, float]]:
        return shares(self.rows, self.launches, self.last_activity)

    def cost(self) -> list[PoolCost]:
        """The cost at the prices of the platform's pools."""
        return pool_costs(self.launches)

    def used(self) -> Used:
        """The hours for which the run held its machines, and their price, over all starts."""
        names = ("held_seconds", "usd_per_hour")
        return used_by(
            [{name: each[name] for name in names if number_in(each, name)} for each in self.starts]
        )

    def limits(self) -> dict[str, float]:
        """The limits of its recipe that are set, such as `max_usd`."""
        section = self.settings.get("limits")
        found: Mapping[str, Any] = section if isinstance(section, Mapping) else {}
        return {name: float(found[name]) for name in found if number_in(found, name)}

    def _checkpoint(self) -> Mapping[str, Any]:
        section = self.settings.get("checkpoint")
        return section if isinstance(section, Mapping) else {}

    def _figure(self, name: str) -> Figure:
        section = self._checkpoint()
        if section.get("metric") == f"validation/{name}" and section.get("mode") in ("min", "max"):
            return Figure(name, str(section["mode"]))
        return Figure(name, "max" if any(part in HIGHER_IS_BETTER for part in name.split("_")) else "min")

    def _baselines(self) -> list[tuple[str, str, float]]:
        """Metric, baseline model and value, from names such as `bigram_nats_per_byte`."""
        validated = {
            key.partition("/")[2]
            for row in self.rows.of("validation")
            for key in row
            if key.startswith("validation/")
        }
        found = []
        baseline = self.run.get("baseline")
        values: Mapping[str, Any] = baseline if isinstance(baseline, Mapping) else {}
        for key in values:
            value = number_in(values, key)
            figure = max(
                (name for name in {*validated, *METRIC_WORDS} if key.endswith(f"_{name}")),
                key=len,
                default=None,
            )
            if figure is not None and value is not None:
                found.append((figure, key.removesuffix(f"_{figure}").replace("_", " "), value))
        return found


def read_run_summary(place: str | Path, *, most_bytes: int | None = None, stored: bool = True) -> RunSummary:
    """Read a run from its folder or URL.

    Args:
        place: the folder or URL.
        most_bytes: read at most this much of the end of metrics.jsonl; None reads all of it.
        stored: whether to ask the run's store for checkpoints and profiles.

    Raises:
        InputError: there is no run.
        StoreError: the store does not respond.
    """
    if not is_remote(str(place)):
        folder = Path(str(place).removeprefix("file://"))
        return _read(folder, str(place), most_bytes=most_bytes, stored=stored)
    with tempfile.TemporaryDirectory() as temporary:
        store = open_store(str(place), REPORT_RETRY)
        for name in ("run.json", "recipe.yaml", "metrics.jsonl"):
            with contextlib.suppress(NotFoundError):
                store.fetch(name, Path(temporary, name))
        return _read(Path(temporary), str(place), remote=True, most_bytes=most_bytes, stored=stored)


def number_in(row: Mapping[str, Any], key: str) -> float | None:
    """A finite number, or None."""
    value = row.get(key)
    return (
        float(value)
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        else None
    )


def _read(
    folder: Path, place: str, *, remote: bool = False, most_bytes: int | None, stored: bool
) -> RunSummary:
    if not folder.is_dir():
        raise InputError(
            "no such run",
            [Problem(place, "is not a folder", "use a run's folder, such as runs/lm-small, or its URL")],
        )
    run, rows = read_run(folder), read_rows(folder, most_bytes)
    if not run and not rows.rows:
        fix = "use a run's folder, such as runs/lm-small, or its URL"
        raise InputError("no run found", [Problem(place, "holds neither run.json nor metrics.jsonl", fix)])
    try:
        recipe = (folder / "recipe.yaml").read_text(encoding="utf-8", errors="replace")
    except OSError:
        recipe = ""
    home = place if remote else _home(folder)
    saved = _checkpoints(home) if stored else None
    words = next(last_lines(folder / "launch.log"), "")
    return RunSummary(
        place,
        home,
        run,
        rows,
        recipe,
        saved,
        None if saved is None else _profiles(home),
        None if remote else is_locked(folder),
        words,
        None if remote else last_sign(folder),
    )


def _home(folder: Path) -> str:
    """Where the run stores its checkpoints: the folder, or the URL recorded in it."""
    try:
        return str(json.loads((folder / HOME).read_text(encoding="utf-8"))["url"])
    except (OSError, ValueError, KeyError, TypeError):
        return str(folder)


def _profiles(home: str) -> dict[str, int] | None:
    try:
        return {
            path.removeprefix(PROFILES): size
            for path, size in sorted(open_store(home, REPORT_RETRY).sizes(PROFILES.rstrip("/")).items())
        }
    except TrainfleetError:
        return None


def _checkpoints(home: str) -> list[CheckpointSummary] | None:
    """The checkpoints with a marker, that is, complete ones; None if the store does not respond."""
    found = []
    try:
        store = open_store(f"{home}/checkpoints", REPORT_RETRY)
        sizes = store.sizes()
        for name in sorted(
            path.partition("/")[0] for path in sizes if path.count("/") == 1 and path.endswith(f"/{MARKER}")
        ):
            try:
                note = json.loads(store.read(f"{name}/{MARKER}"))["note"]
                metrics = {
                    str(key): value
                    for key in note.get("metrics", {})
                    if (value := number_in(note["metrics"], key)) is not None
                }
            except (NotFoundError, ValueError, KeyError, TypeError, AttributeError):
                continue  # removed in the meantime, or not a marker
            found.append(
                CheckpointSummary(
                    name, sum(size for path, size in sizes.items() if path.startswith(f"{name}/")), metrics
                )
            )
    except TrainfleetError:
        return None
    return found


def _mappings(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _median(values: list[float]) -> float | None:
    return sorted(values)[len(values) // 2] if values else None
