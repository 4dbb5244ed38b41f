"""Follows a run that another launch started, without being able to end it, and reports how it ended."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainfleet.errors import InputError, Problem, TrainfleetError
from trainfleet.training.launch import run_record
from trainfleet.training.launch.control import RunControl, RunRef
from trainfleet.training.launch.supervise import Outcome
from trainfleet.training.recipe.schema import Limits
from trainfleet.training.runs.limits import used_by
from trainfleet.training.runs.listing import ACTIVE, ENDED, RETRY
from trainfleet.training.runs.reader import read_recipe, read_run, real_launches
from trainfleet.training.runs.storage import download, require_same_home
from trainfleet.training.runtime import progress
from trainfleet.training.runtime.run_lock import locked
from trainfleet.training.stores import is_remote, open_store

LAST_FILES_S = 30.0
"""How long to wait for what a run stores after its last line."""
POLL_S = 1.0


@dataclass
class _Reports:
    """What the run has reported."""

    result: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    problems: list[Problem] = field(default_factory=list)

    def note(self, event: Mapping[str, Any]) -> None:
        if event["kind"] == "result":
            self.result = {key: value for key, value in event.items() if key != "kind"}
        elif event["kind"] in ("error", "crash"):
            self.error = str(event.get("summary") or event.get("error"))
            self.problems = [Problem(*map(str, each)) for each in event.get("problems", [])]


def attach(control: RunControl, *, as_json: bool, view: progress.Display | None = None) -> Outcome:
    """Show a run's lines until its end. Ctrl-C and every other signal end only this process.

    Raises:
        InputError: its folder here has the files of another run.
        TrainfleetError: the run failed, was lost or reached a limit, or cannot be reached.
        Interrupted: the run was stopped.
    """
    ref, reports = control.ref, _Reports()
    if is_remote(ref.home):
        require_same_home(_folder(ref), ref.home)
    view = view or progress.display(as_json)
    try:
        for line in control.lines(follow=True):
            if isinstance(line, dict):
                reports.note(line)
                view.handle(line)
    except KeyboardInterrupt:
        how = ["detached: the run continues", f"follow it  trainfleet runs attach {ref.name}"]
        return Outcome(_folder(ref), {"run": ref.name, "status": "detached", "how": how})
    finally:
        view.close()
    return _finish(control, reports)


def _finish(control: RunControl, reports: _Reports) -> Outcome:
    """Fetch the run's files, complete the record of its launch, and write its report."""
    ref = control.ref
    run_dir, remote = _folder(ref), is_remote(ref.home)
    state = _await_state(control)
    # A launcher that still follows the run writes the same files itself.
    with contextlib.suppress(InputError), locked(run_dir, fresh=False):
        if remote:
            download(open_store(ref.home, RETRY), run_dir)
        _complete(run_dir, ref, reports)
        run_record.save_report(run_dir)
    record = read_run(run_dir)
    if state in ("failed", "interrupted", "lost") or reports.error:
        reason = reports.error or str(record.get("error") or "")
        text = f"the run is {state}" if not reason else f"the run failed: {reason}"
        fix = "launch it again to resume from its newest checkpoint"
        raise TrainfleetError(text, reports.problems or [Problem(ref.home, f"is {state}", fix)])
    if state == "stopped":
        raise run_record.error_of_stopped(int(record.get("step", 0)), _limits(run_dir, record, reports))
    result = {**run_record.stored_result(record), **reports.result}
    seconds = real_launches(record)[-1].get("seconds", 0.0) if real_launches(record) else 0.0
    return Outcome(run_dir, run_record.document(run_dir, result, seconds))


def _limits(run_dir: Path, record: Mapping[str, Any], reports: _Reports) -> list[str]:
    """The limits that ended the run: as it reported them, else by the time for which it held machines."""
    result = reports.result or record.get("result", {})
    if result.get("limits") and result.get("step") == record.get("step"):
        return list(result["limits"])
    with contextlib.suppress(ValueError):
        limits = Limits.model_validate(read_recipe(run_dir).get("limits", {}))
        return [each.what for each in used_by(record.get("starts", [])).reached(limits)]
    return []


def _await_state(control: RunControl) -> str:
    """The run's state, once it has stored its end; what it is after LAST_FILES_S."""
    deadline = time.monotonic() + LAST_FILES_S
    while True:
        info = control.info() if control.ref.home else None
        if info is not None and info.state not in ACTIVE:
            return info.state
        if time.monotonic() > deadline:
            return info.state if info is not None else "lost"
        time.sleep(POLL_S)


def _folder(ref: RunRef) -> Path:
    """The run's folder on this machine."""
    return Path("runs", ref.name).absolute() if is_remote(ref.home) else Path(ref.home).absolute()


def _complete(run_dir: Path, ref: RunRef, reports: _Reports) -> None:
    """Add to run.json what a launcher that is gone would have recorded of its launch's end."""
    record = read_run(run_dir)
    launches: list[dict[str, Any]] = [dict(each) for each in record.get("launches", [])]
    if ref.launch and ref.launch.get("at") not in [each.get("at") for each in launches]:
        launches.append(dict(ref.launch))
    if not launches or record.get("status") not in ENDED:
        return
    last = launches[-1]
    if last.get("status") in ("finished", "stopped", "failed"):
        return
    last |= {"status": record["status"], "last_step": record.get("step", 0)}
    # Nobody knows when it ended: this command may be called days later.
    starts = record.get("starts", [])[int(last.get("starts_before", 0)) :]
    if any("held_seconds" in each for each in starts):
        last["seconds"] = round(used_by(starts).hours * 3600, 3)
    result = {"result": reports.result} if reports.result else {}
    run_record.update(run_dir, {"launches": launches, **result})
