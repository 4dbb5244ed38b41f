"""The record of a launch: what its ranks reported, and what run.json keeps of it."""

from __future__ import annotations

import contextlib
import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from trainfleet.errors import InputError, Interrupted, Problem, TrainfleetError
from trainfleet.files import write_whole
from trainfleet.training.launch.code import KEY
from trainfleet.training.launch.owner import owner_of
from trainfleet.training.launch.request import Target
from trainfleet.training.recipe.changes import differences
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.recipe.validation import check
from trainfleet.training.runs.reader import last_sign, read_recipe, read_rows, read_run, real_launches
from trainfleet.training.runs.storage import HOME, RunStorage
from trainfleet.training.runtime import local_resources
from trainfleet.training.runtime.subprocess_jobs import error_from
from trainfleet.training.stores import StoreError, is_remote
from trainfleet.training.stores.lease import IN_PROGRESS

RERUN = "run the same command again to resume"
START_ERROR_S = 5.0
"""By how much the recorded start of a launcher may differ from the system's."""


@dataclass
class Reported:
    """What the ranks and the follower have reported so far."""

    result: dict[str, Any] | None = None
    error: TrainfleetError | None = None
    crashes: list[dict[str, Any]] = field(default_factory=list)
    """Of the latest attempt, the first rank's first."""
    exhausted: str = ""
    """Why the workers do not restart any more."""
    stepped: bool = False
    first_step_s: float | None = None
    admitted_s: float | None = None
    """When a queue admitted the run, in seconds after the launch."""
    requeued_s: float = 0.0
    """Seconds in the queue after preemptions."""
    requeued_at_s: float | None = None
    """Since when it waits for its readmission."""
    last_step: int = 0
    detached: dict[str, Any] | None = None
    """Set by a follower that leaves the run alone."""
    moves: list[dict[str, Any]] = field(default_factory=list)
    """Each recovery on other pods: from where to where, in how many seconds."""

    def on_event(self, event: dict[str, Any], seconds: float) -> None:
        """Take note of an event, `seconds` after the start."""
        fields = {key: value for key, value in event.items() if key != "kind"}
        match event["kind"]:
            case "step":
                if self.first_step_s is None:
                    self.first_step_s = round(seconds, 3)
                self.stepped, self.last_step = True, event["step"]
            case "result":
                self.result = fields
            case "error" if self.error is None:
                self.error = error_from(event)
            case "crash":
                self.crashes.append(event)
            case "attempt_failed" if event["restarting"]:
                self.crashes.clear()
            case "attempt_failed":
                self.exhausted = event["text"]
            case "moved":
                self.moves.append(fields)
            case "admitted" if self.requeued_at_s is not None:
                self.requeued_s += round(seconds - self.requeued_at_s, 3)
                self.requeued_at_s = None
            case "admitted" if self.first_step_s is None:
                self.admitted_s = round(seconds, 3)
            case "requeued" if self.requeued_at_s is None:
                self.requeued_at_s = seconds
            case "detached":
                self.detached = fields

    def requeued_until(self, seconds: float) -> float:
        """Seconds in the queue after preemptions, with a wait that lasts until the launch ends."""
        since = seconds if self.requeued_at_s is None else self.requeued_at_s
        return round(self.requeued_s + seconds - since, 3)


def begin(
    before: Mapping[str, Any], recipe: Recipe, target: Target, place: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Add this launch to run.json; returns all launches. A launch without a recorded end was killed.

    `place` is what another machine needs to reach the run.
    """
    request, run_dir = target.request, target.run_dir
    launches = [dict(each) for each in before.get("launches", [])]
    if launches and "status" not in launches[-1]:
        elsewhere = (run_dir / HOME).exists()
        launches[-1] |= {"status": "killed"} | ({} if elsewhere else _until_killed(run_dir, launches[-1]))
    launch: dict[str, Any] = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "on": request.on,
        "recipe": request.recipe,
        "workers": recipe.scaling.workers,
        "machine": local_resources.describe(),
        **_where_from(before, recipe, target),
    }
    if target.code is not None:
        launch[KEY] = target.code.facts()
    if target.platform is not None:
        launch["platform"] = target.platform.facts()
    # `trainfleet runs` finds the run again by these.
    options = request.options.place() if request.options is not None else {}
    launch |= options | ({"stacks": [*request.stacks]} if request.stacks else {})
    if request.options is not None and request.options.follows_only:
        launch["attached"] = True
    elif place:
        launch["place"] = dict(place)
    launches.append(launch)
    update(run_dir, {"launches": launches})
    return launches


def _where_from(before: Mapping[str, Any], recipe: Recipe, target: Target) -> dict[str, Any]:
    """Who launches, from which process, and where the run's files are."""
    return {
        "owner": owner_of(os.environ),
        "host": platform.node(),
        "pid": os.getpid(),
        "pid_started": round(psutil.Process().create_time(), 2),
        "folder": str(target.run_dir),
        "storage": recipe.home_url() if is_remote(recipe.storage) else str(target.run_dir),
        "starts_before": len(before.get("starts", [])),
    }


def launcher_process(launch: Mapping[str, Any]) -> psutil.Process | None:
    """The launcher of a launch by this machine; None if it has ended."""
    try:
        found = psutil.Process(int(launch["pid"]))
        # Another process may have its number since.
        same = abs(found.create_time() - float(launch.get("pid_started", 0))) < START_ERROR_S
    except (psutil.NoSuchProcess, KeyError, ValueError):
        return None
    return found if same else None


def end(
    run_dir: Path, launches: list[dict[str, Any]], reported: Reported, status: str, seconds: float
) -> None:
    """Record the end of the last launch in run.json."""
    launches[-1] |= {
        "seconds": round(seconds, 3),
        "status": status,
        **({} if reported.admitted_s is None else {"admitted_seconds": reported.admitted_s}),
        **({"requeued_seconds": requeued} if (requeued := reported.requeued_until(seconds)) else {}),
        "first_step_seconds": reported.first_step_s,
        "last_step": reported.last_step,
    }
    if reported.moves:
        launches[-1]["moves"] = reported.moves
    if reported.error is not None or reported.crashes:
        error = reported.error.summary if reported.error else reported.crashes[0]["error"]
        launches[-1]["error"] = str(error)
    facts: dict[str, Any] = {"launches": launches}
    if reported.result is not None:
        facts["result"] = reported.result
    update(run_dir, facts)


def record_for_others(storage: RunStorage, launches: Sequence[Mapping[str, Any]]) -> str:
    """Store the last launch next to the run, for `trainfleet runs` elsewhere; a warning if that failed."""
    if launches[-1].get("attached"):
        return ""
    try:
        storage.record_launch(launches[-1])
    except StoreError as error:
        reason = next((each.what for each in error.problems), error.summary)
        return f"other machines cannot find this launch: {reason}"
    return ""


def store_end(storage: RunStorage, launches: Sequence[Mapping[str, Any]], reported: Reported) -> bool:
    """Store the end of the last launch next to the run; whether the run was this launch's. One that was
    rejected, because another launch holds the run, leaves the record of that launch there.
    """
    if reported.error is None or reported.error.summary != IN_PROGRESS:
        record_for_others(storage, launches)
        return True
    with contextlib.suppress(StoreError):
        storage.restore_launch()
    return False


def update(run_dir: Path, facts: Mapping[str, Any]) -> None:
    """Update run.json. After the run's end, a full disk is ignored: it must not hide how the run ended."""
    with contextlib.suppress(InputError) if "result" in facts else contextlib.nullcontext():
        write_whole(run_dir / "run.json", json.dumps(read_run(run_dir) | dict(facts), indent=1))


def save_report(run_dir: Path) -> None:
    """Write the run's report. A full disk is ignored: it must not hide how the run ended."""
    from trainfleet.training.report import write_report

    with contextlib.suppress(InputError):
        write_report(run_dir, run_dir / "report.html")


def document(run_dir: Path, result: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """What `--json` prints of a run."""
    report = run_dir / "report.html"
    return {
        "run": str(run_dir),
        "status": result.get("status", "finished"),
        "step": result.get("step"),
        "resumed_from": result.get("resumed_from"),
        "checkpoint": result.get("checkpoint"),
        "metrics": result.get("metrics", {}),
        "baseline": result.get("baseline", {}),
        "losses": [[row["step"], row["loss"]] for row in read_rows(run_dir).of("train")],
        "seconds": round(seconds, 3),
        "report": str(report) if report.exists() else None,
    }


def is_finished(before: Mapping[str, Any], recipe: Recipe) -> bool:
    """Whether the run needs no more steps. A recipe that asks for more steps resumes."""
    # A batch that grew needs fewer steps than were asked for.
    done = max(before.get("result", {}).get("step", 0), before.get("asked", 0))
    return before.get("status") == "finished" and (recipe.steps is None or done >= recipe.steps)


def stored_result(record: Mapping[str, Any]) -> dict[str, Any]:
    """The result of a run whose ranks have stored it, and whose launcher did not hear it."""
    keys = ("status", "step", "metrics", "baseline")
    known = {key: record[key] for key in keys if key in record}
    return {"resumed_from": 0, **record.get("result", {}), **known}


def ended_meanwhile(reported: Reported, run_dir: Path, recipe: Recipe) -> str:
    """How a run ended that its launcher lost: finished, stopped, or empty if its files do not say it. Its
    result is then reported.

    A launcher that was suspended comes back after the machines of the run have been released.
    """
    record = read_run(run_dir)
    # A run that has not started since its launch is still as an earlier launch left it. `runs attach` does
    # not count, and on another machine than the launcher's the launch may be unknown.
    launches = real_launches(record)
    starts_before = launches[-1].get("starts_before", 0) if launches else 0
    stopped = record.get("status") == "stopped" and len(record.get("starts", [])) > starts_before
    if not stopped and not is_finished(record, recipe):
        return ""
    reported.result, reported.error = stored_result(record), None
    reported.crashes.clear()
    return str(record["status"])


def error_of_stopped(step: int, limits: Sequence[str]) -> TrainfleetError:
    """The error of a run that was stopped, or that limits of its recipe have ended."""
    if not limits:
        return Interrupted(f"stopped after step {step}, which is saved; {RERUN}")
    problems = [Problem("limits", each, "a higher limit resumes it") for each in limits]
    return TrainfleetError(f"the run reached its limit; step {step} is saved", problems)


def require_same_recipe(run_dir: Path, recipe: Recipe, allowed: tuple[str, ...]) -> None:
    """Reject another recipe for a finished run: "nothing to do" would pass for its result.

    Raises:
        InputError: keys differ that decide what is trained.
    """
    found = check(read_recipe(run_dir))[0]
    if found is None:
        return
    ignored = (*allowed, "steps", "epochs")
    changed = differences(found.model_dump(mode="json"), recipe.model_dump(mode="json"), ignored)
    if changed:
        fix = "restore it, or train with --run NAME or --fresh"
        problems = [Problem(key, f"was {old}, is now {new}", fix) for key, old, new in changed]
        raise InputError(f"{run_dir} is finished, and was trained with another recipe", problems)


def _until_killed(run_dir: Path, launch: Mapping[str, Any]) -> dict[str, Any]:
    """How long a killed launch lasted and how far it came, by its last write: the report counts the lost
    time.
    """
    seen, began = last_sign(run_dir), str(launch.get("at", ""))
    try:
        lasted = max(0.0, (seen or 0.0) - datetime.fromisoformat(began).timestamp())
    except ValueError:
        return {}
    steps = [row["step"] for row in read_rows(run_dir).of("train")]
    return {"seconds": round(lasted, 3), "last_step": max(steps, default=0)}
