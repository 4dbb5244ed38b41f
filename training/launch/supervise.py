"""What every launcher shares: the run's folder and lock, the display, how a run ends, and its record."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainfleet import process
from trainfleet.console import err
from trainfleet.errors import InputError, Interrupted, MissingToolError, Problem, TrainfleetError
from trainfleet.training.launch import code, run_record
from trainfleet.training.launch.base import Launcher, find
from trainfleet.training.launch.deadline import Deadline
from trainfleet.training.launch.platform_outputs import NamedPlatform, load_platforms
from trainfleet.training.launch.request import Request, Target
from trainfleet.training.launch.run_record import RERUN, Reported, error_of_stopped
from trainfleet.training.notifications import endpoints, notify_failure
from trainfleet.training.recipe.load import dump, load_recipe, without_recipe_keys
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.runs.limits import require_something_left
from trainfleet.training.runs.reader import last_lines, read_run
from trainfleet.training.runs.storage import RunStorage
from trainfleet.training.runtime import events, progress
from trainfleet.training.runtime.code_archive import CODE, CODE_FOLDER
from trainfleet.training.runtime.run_lock import locked
from trainfleet.training.stores import StoreError
from trainfleet.workspace import workspace

LOG = "launch.log"
"""The output of a run's processes: Ray's and torch's own messages."""
LEFT_ALONE = "the run continues; this launch ended before it could report how to follow it"
STOP_OR_DETACH = {"s": "save and stop the run", "d": "detach, and let it continue", "": "continue"}
"""The answers to Ctrl-C on a terminal. Without a terminal, Ctrl-C stops the run."""


@dataclass
class Outcome:
    """How a launch ended; `document` is what `--json` prints."""

    run_dir: Path
    document: dict[str, Any]
    already_finished: bool = False


def resolve(request: Request, env: Mapping[str, str]) -> tuple[Recipe, tuple[NamedPlatform, ...]]:
    """The recipe as it will run, and the platforms. Overrides replace the first platform's storage, which
    replaces that of the recipe's file and of the environment.

    Raises:
        InputError: every mistake in recipe, overrides and platforms.
    """
    platforms = tuple(load_platforms(request.stacks)) if request.stacks else ()
    of_platform = [f"storage={json.dumps(platforms[0].runs_folder())}"] if platforms else []
    overrides = [*of_platform, *request.overrides]
    if request.run is not None:
        overrides.append(f"name={json.dumps(request.run)}")
    if request.storage is not None:
        overrides.append(f"storage={json.dumps(request.storage)}")
    return load_recipe(request.recipe, overrides, env), platforms


def show(request: Request, env: Mapping[str, str] | None = None) -> str:
    """What would be handed to the launcher's backend. Starts nothing.

    Raises:
        InputError: the request cannot run there, or the launcher has nothing to print.
    """
    launcher = find(request.on)
    folder = code.folder_of(request.code, request.recipe, request.overrides)
    code.import_first(folder)
    recipe, platforms = resolve(request, os.environ if env is None else env)
    launched, warning = code.code_of(request, recipe, folder, remote=launcher.remote)
    text = launcher.render(recipe, Target(request, platforms, recipe.run_dir().absolute(), launched))
    stored = f"only a launch stores {launched.url}, the code of {launched.folder}" if launched else ""
    for each in filter(None, [warning, stored]):
        err().print(f"warning: {each}", markup=False, soft_wrap=True)
    return text


def prepare(request: Request, env: Mapping[str, str]) -> tuple[Launcher[Any], Recipe, Target, str]:
    """Validate a request as far as that needs no process elsewhere: its launcher, recipe and target, and a
    warning about its code or nothing.

    Raises:
        InputError: the request cannot run there.
        MissingToolError: a program, package or operator is missing.
    """
    launcher = find(request.on)
    folder = code.folder_of(request.code, request.recipe, request.overrides)
    code.import_first(folder)
    recipe, platforms = resolve(request, env)
    if not launcher.remote:
        _require_torch(request.on)
    launched, warning = code.code_of(request, recipe, folder, remote=launcher.remote)
    target = Target(request, platforms, recipe.run_dir().absolute(), launched)
    _require_price(launcher, recipe)
    if not launcher.remote and (problems := endpoints(recipe.notifications, env)[1]):
        raise InputError("notifications cannot be sent", problems)
    _require_pods(launcher, recipe, request.on)
    launcher.check(recipe, target)
    return launcher, recipe, target, warning


def start(
    request: Request, env: Mapping[str, str] | None = None, view: progress.Display | None = None
) -> Outcome:
    """Run a recipe to its end, resuming from an earlier launch.

    Args:
        request: what to run, and where.
        env: the environment; by default this process's.
        view: shows the events of the ranks; by default the terminal.

    Raises:
        InputError: the request cannot run here; nothing has been started.
        TrainfleetError: the run failed; its newest checkpoint is kept.
        Interrupted: a signal ended it, after a checkpoint where there was time for one.
    """
    env = os.environ if env is None else env
    launcher, recipe, target, warning = prepare(request, env)
    launched = target.code
    storage = RunStorage(recipe, target.run_dir, lambda *_: None)
    with locked(target.run_dir, fresh=request.fresh):
        if request.fresh:
            storage.require_empty()
        storage.fetch()
        before = read_run(target.run_dir)
        changed = code.changes(before, launched, request.recipe)
        if run_record.is_finished(before, recipe):
            run_record.require_same_recipe(target.run_dir, recipe, request.allow_changes)
            code.require_unchanged(target.run_dir, changed, request.allow_changes)
            document = run_record.document(target.run_dir, before.get("result", {}), 0.0)
            return Outcome(target.run_dir, document, already_finished=True)
        if request.options is None or not request.options.follows_only:
            require_something_left(recipe.limits, before.get("starts", []))
        if launched is not None:
            launched.upload()
        launches = run_record.begin(before, recipe, target, launcher.place(recipe, target))
        view = view or progress.display(request.json)
        unseen = run_record.record_for_others(storage, launches)
        for text in filter(None, [warning, code.resumed_with(changed), unseen]):
            view.handle({"kind": "warning", "text": text})
        return _Launch(launcher, recipe, target, env, view).run(launches, storage)


class _Launch:
    """One launch of a run whose folder is locked."""

    def __init__(
        self,
        launcher: Launcher[Any],
        recipe: Recipe,
        target: Target,
        env: Mapping[str, str],
        view: progress.Display,
    ) -> None:
        self.launcher, self.recipe, self.target, self.env, self.view = launcher, recipe, target, env, view
        self.run_dir = target.run_dir
        # This machine is held at once; on others, a follower reports the admission.
        self.reported = Reported(admitted_s=None if launcher.remote else 0.0)
        self.detaching = self.unseen = self.late = False
        self.deadline = Deadline(launcher, recipe, target, read_run(target.run_dir).get("starts", []))
        self._began = time.monotonic()

    def _own_signal(self) -> int | None:
        """SIGHUP for output that nobody sees, SIGTERM for a run that does not keep its limit."""
        self.late = self.deadline.passed(self.reported, time.monotonic() - self._began)
        if self.late:
            return signal.SIGTERM
        return signal.SIGHUP if self.unseen else None

    def run(self, launches: list[dict[str, Any]], storage: RunStorage) -> Outcome:
        """Run it to its end, record the end, and send the record to the storage."""
        run_dir, reported = self.run_dir, self.reported
        try:
            with workspace() as work:
                ended = self._supervise(work)
        finally:
            self.view.close()
        if self.detaching and reported.result is None and reported.error is None:
            # The follower may have had no time to report it. Nothing of the run was ended.
            reported.detached = reported.detached or {"how": [LEFT_ALONE]}
        if reported.detached is not None:
            launches[-1] |= {"status": "detached", **reported.detached}
            run_record.update(run_dir, {"launches": launches})
            run_record.record_for_others(storage, launches)
            return Outcome(run_dir, {"run": str(run_dir), "status": "detached", **reported.detached})
        seconds = time.monotonic() - self._began
        remote = self.launcher.remote
        status = _status(ended, reported, remote)
        if remote:
            with _store_errors_ignored(status != "finished"):
                storage.fetch()
            if status == "failed":
                status = run_record.ended_meanwhile(reported, run_dir, self.recipe) or status
        run_record.end(run_dir, launches, reported, status, seconds)
        ours = run_record.store_end(storage, launches, reported)
        run_record.save_report(run_dir)
        # NOTE: a remote run that reported nothing sends nothing: the store may hold another launch's record.
        if ours and (not remote or reported.stepped or reported.result is not None):
            with _store_errors_ignored(status != "finished"):
                storage.send()
        try:
            if self.late and status != "finished":
                raise _ended_late(self.recipe, run_dir)
            _raise_for(status, reported, run_dir, ended)
        except Interrupted:
            raise
        except TrainfleetError as error:
            # The run itself reports what it can; a message that it sent is not sent again.
            if status == "failed" or self.late:
                self._notify_failure(error)
            raise
        return Outcome(run_dir, run_record.document(run_dir, reported.result or {}, seconds))

    def _notify_failure(self, error: TrainfleetError) -> None:
        def show(text: str) -> None:
            self._show({"kind": "warning", "text": text})

        text = " ".join(str(error).split())
        launch = self.target.launch_id
        notify_failure(self.recipe, self.run_dir, launch, self.env, text=text, on_dropped=show)

    def _supervise(self, work: Path) -> process.Ended:
        """Run the command and show its events. Ends it at the first error that the user can fix."""
        command = self.launcher.command(self.recipe, work / "recipe.yaml", self.target)
        (work / "recipe.yaml").write_text(dump(self.recipe), encoding="utf-8")
        listener = events.Listener(work / "events")
        began = time.monotonic()

        def handle_events() -> None:
            for event in listener.drain():
                self.reported.on_event(event, time.monotonic() - began)
                self._show(event)

        def tick() -> None:
            handle_events()
            if self.reported.error is not None:
                raise _EndNow

        try:
            with (self.run_dir / LOG).open("ab") as log:
                return process.supervise(
                    command,
                    self._child_env(work),
                    log,
                    tick=tick,
                    on_signal=lambda signals: self._on_signal(signals, work),
                    own_signal=self._own_signal,
                    grace_s=self.launcher.grace(self.recipe, self.target),
                )
        except _EndNow:
            return process.Ended(None, None)
        finally:
            listener.close()
            handle_events()

    def _show(self, event: dict[str, Any]) -> None:
        """Show an event. Output that can no longer be written counts as a closed terminal."""
        try:
            self.view.handle(event)
        except OSError as error:  # the reader of a pipe has ended, or a disk is full
            process.leave_output()
            self.view, self.unseen = progress.display(json=True), True
            with contextlib.suppress(OSError):
                err().print(f"[yellow]warning:[/] the output cannot be written: {error.strerror}")

    def _on_signal(self, signals: Sequence[int], work: Path) -> process.Reaction:
        """Stop the run or detach from it.

        A run elsewhere ends only when its user says so: a lost terminal and a launcher that is ended detach.
        """
        if self.late or not self.launcher.detachable:
            return self._stop(work)
        options = self.target.request.options
        if signals[0] != signal.SIGINT or (options is not None and options.follows_only):
            return self._detach(work)
        answer = self.view.ask(STOP_OR_DETACH, lambda: len(signals) > 1)
        if answer == "d" or signals[-1] != signal.SIGINT:
            return self._detach(work)
        return process.Reaction.CONTINUE if answer == "" else self._stop(work)

    def _stop(self, work: Path) -> process.Reaction:
        saves = self.reported.stepped and not self.target.request.job
        if not saves and not self.launcher.remote:
            return process.Reaction.END_NOW
        (work / "stop").touch()
        what = "saving a checkpoint first" if saves else "deleting what was started"
        self._show({"kind": "warning", "text": f"stopping: {what} (Ctrl-C again ends at once)"})
        return process.Reaction.END_SOON

    def _detach(self, work: Path) -> process.Reaction:
        self.detaching = True
        (work / events.DETACH).touch()
        self._show({"kind": "warning", "text": "detaching: the run continues without this launcher"})
        return process.Reaction.END_SOON

    def _child_env(self, work: Path) -> dict[str, str]:
        """The environment of the run's processes.

        The variables that set recipe keys are removed: the resolved recipe already holds them.
        """
        removed = {"RANK", "WORLD_SIZE", "LOCAL_RANK", CODE, CODE_FOLDER}
        # Other launchers pass it on to the machines that train.
        launched = {CODE: self.target.code_url} if self.target.code and not self.launcher.remote else {}
        if launched and not self.env.get("RAY_ADDRESS"):
            launched[CODE_FOLDER] = str(work / "code")
        return (
            {key: value for key, value in without_recipe_keys(self.env).items() if key not in removed}
            | launched
            | {
                events.ALLOW_CHANGES: ",".join(self.target.request.allow_changes),
                events.JOB: self.target.request.job,
                events.EVENTS: str(work / "events"),
                events.RUN_DIR: str(self.run_dir),
                events.STOP_FILE: str(work / "stop"),
                events.RAY_TEMP: str(work / "ray"),
                events.PARENT: str(os.getpid()),
                events.LAUNCH: self.target.launch_id,
                "OMP_NUM_THREADS": str(self.recipe.scaling.threads),
                "PYTHONUNBUFFERED": "1",
            }
        )


class _EndNow(Exception):  # noqa: N818 - ends the supervision, never leaves this file
    pass


def _store_errors_ignored(ignored: bool) -> contextlib.AbstractContextManager[None]:
    return contextlib.suppress(StoreError) if ignored else contextlib.nullcontext()


def _status(ended: process.Ended, reported: Reported, remote: bool) -> str:
    if reported.result is not None and (ended.code == 0 or reported.result["status"] == "finished"):
        return str(reported.result["status"])
    # A follower reports no error of its own end: what it reports while it detaches or stops is the run's.
    failed = ended.signal is None or (remote and reported.error is not None)
    return "failed" if failed else "interrupted"


def _raise_for(status: str, reported: Reported, run_dir: Path, ended: process.Ended) -> None:
    if status == "finished":
        return
    result = reported.result or {"step": reported.last_step}
    if status == "stopped" or result.get("limits"):
        raise error_of_stopped(result["step"], result.get("limits", ()))
    if status == "interrupted":
        raise Interrupted(f"interrupted; earlier checkpoints are in {run_dir}; {RERUN}")
    if reported.error is not None:
        raise reported.error
    log = run_dir / LOG
    last_line = next(iter(last_lines(log)), f"exit code {ended.code}")
    reason = reported.crashes[0]["error"] if reported.crashes else last_line
    raise TrainfleetError(
        f"{reported.exhausted or 'the run failed'}: {reason}", [Problem(str(log), "has the full log", RERUN)]
    )


def _ended_late(recipe: Recipe, run_dir: Path) -> TrainfleetError:
    limits = ", ".join(f"{key}={value:g}" for key, value in recipe.limits if value is not None)
    problem = Problem("limits", f"{limits}; its checkpoints are in {run_dir}", "a higher limit resumes it")
    return TrainfleetError("the run did not end at its limit, so this launcher ended it", [problem])


def _require_price(launcher: Launcher[Any], recipe: Recipe) -> None:
    """Reject a limit in USD on this machine. Launchers on others know whether those have a price."""
    if recipe.limits.max_usd is not None and not launcher.remote:
        fix = "limits.max_hours, or leave it out"
        problem = Problem("limits.max_usd", "this machine has no price", fix)
        raise InputError("the run's limit cannot be kept", [problem])


def _require_pods(launcher: Launcher[Any], recipe: Recipe, on: str) -> None:
    """Reject changes of pods where there are none."""
    changes = {"head": recipe.pod_template.head, "workers": recipe.pod_template.workers}
    if any(changes.values()) and "pod_template" not in launcher.options_model.model_fields:
        problem = Problem("pod_template", f"--on {on} has no pods", "pod_template={}, or --on kuberay")
        raise InputError("the run's pods cannot be changed", [problem])


def _require_torch(on: str) -> None:
    from importlib.util import find_spec

    modules = ("torch", *(["ray"] if on == "local" else []))
    if missing := [name for name in modules if find_spec(name) is None]:
        problem = Problem("", "training needs it", "pip install 'trainfleet[train]'")
        raise MissingToolError(f"{' and '.join(missing)} is not installed", [problem])
