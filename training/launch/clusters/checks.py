"""Checks every cluster before the first run starts, and collects the problems of all of them.

First what each launcher finds without starting anything, then, at once on all clusters, what validates the
run where it would train (`Launcher.run_checks`).
"""

from __future__ import annotations

import contextlib
import queue
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from trainfleet import process
from trainfleet.errors import InputError, Interrupted, Problem, TrainfleetError
from trainfleet.training.launch import code, run_record
from trainfleet.training.launch.base import Launcher
from trainfleet.training.launch.clusters.display import GroupDisplay
from trainfleet.training.launch.clusters.entries import located
from trainfleet.training.launch.clusters.summary import Member
from trainfleet.training.launch.options import KubernetesOptions
from trainfleet.training.launch.remote.follower import Stopped
from trainfleet.training.launch.request import Request, Target
from trainfleet.training.launch.run_check import RunCheck
from trainfleet.training.launch.supervise import prepare
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.runs.limits import require_something_left
from trainfleet.training.runs.reader import read_run
from trainfleet.training.runs.storage import RunStorage
from trainfleet.training.runtime.run_lock import is_locked
from trainfleet.training.stores.lease import IN_PROGRESS

REJECTED = "not every cluster can run this; nothing was started"
AT_ONCE = 8
"""Checks that run at once. Each is a pod, or a process that imports the workload."""


@dataclass
class Launchable:
    """The launch on one cluster, as far as it is valid without starting anything."""

    member: Member
    launcher: Launcher[Any]
    recipe: Recipe
    target: Target
    finished: bool = False
    """Whether its run needs no more steps."""
    lines: list[str] = field(default_factory=list)
    """What its checks printed."""

    def request(self) -> Request:
        """The launch of its process, which need not create a pod that checks the workload again."""
        request = self.target.request
        options = request.options
        if not isinstance(options, KubernetesOptions):
            return request
        return replace(request, options=options.model_copy(update={"workload_check": "never"}))


def prepare_all(
    requests: Sequence[Request],
    names: Sequence[str],
    env: Mapping[str, str],
    unattended: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> tuple[list[Launchable], list[Member], list[Problem]]:
    """The launches that are valid, the runs that continue from an earlier launch, and the problems of the
    others. Starts nothing.

    Args:
        requests: the launch on each cluster.
        names: the clusters' names.
        env: the environment.
        unattended: what is recorded of runs that may continue without a launch, by cluster.
    """
    found, left, problems = list[Launchable](), list[Member](), list[Problem]()
    for name, request in zip(names, requests, strict=True):
        try:
            found.append(_prepared(name, request, env))
        except TrainfleetError as error:
            record = unattended.get(name)
            if record is None or error.summary != IN_PROGRESS or is_locked(Path(record["run"])):
                problems += _of(name, error)
            else:
                left.append(left_alone(Member(name, request.on, Path(record["run"])), record))
    return found, left, problems


def left_alone(member: Member, record: Mapping[str, Any]) -> Member:
    """A member whose run continues from an earlier launch, which recorded this of it."""
    member.status, member.summary, member.problems = "detached", "", []
    how = ["detached: the run continues", f"follow it  trainfleet runs attach {member.run_dir.name}"]
    member.document = {"how": how} | {key: value for key, value in record.items() if key != "on"}
    return member


def _prepared(name: str, request: Request, env: Mapping[str, str]) -> Launchable:
    launcher, recipe, target, _ = prepare(request, env)
    run_dir = target.run_dir
    if is_locked(run_dir):
        problem = Problem(str(run_dir), "another launch holds it", "wait for it, or use --run NAME")
        raise InputError(IN_PROGRESS, [problem])
    if request.fresh:
        RunStorage(recipe, run_dir, lambda *_: None).require_empty()
        return Launchable(Member(name, request.on, run_dir), launcher, recipe, target)
    before = read_run(run_dir)
    finished = run_record.is_finished(before, recipe)
    if finished:
        run_record.require_same_recipe(run_dir, recipe, request.allow_changes)
        changed = code.changes(before, target.code, request.recipe)
        code.require_unchanged(run_dir, changed, request.allow_changes)
    else:
        require_something_left(recipe.limits, before.get("starts", []))
    return Launchable(Member(name, request.on, run_dir), launcher, recipe, target, finished)


class Checks:
    """The checks of all clusters, while they run."""

    def __init__(self, launches: Sequence[Launchable], view: GroupDisplay) -> None:
        self.launches, self.view = [each for each in launches if not each.finished], view
        self.signals: list[int] = []
        self.problems: dict[str, list[Problem]] = {}
        self._stored: list[Launchable] = []
        self._events: queue.SimpleQueue[tuple[Launchable, str]] = queue.SimpleQueue()
        self._slots = threading.Semaphore(AT_ONCE)

    def run(self) -> list[Problem]:
        """Run all checks to their end; the problems that they found, in the order of the clusters.

        Raises:
            Interrupted: Ctrl-C or another signal ended them. A second one does not wait for their clean-up.
        """
        threads = []
        with process.on_stop(self._note):
            for each in self.launches:
                try:
                    checks = each.launcher.run_checks(each.recipe, each.target)
                except TrainfleetError as error:
                    self.problems[each.member.name] = _of(each.member.name, error)
                    continue
                # Daemons: a second Ctrl-C does not wait for a cluster that does not answer.
                thread = threading.Thread(target=self._check, args=(each, checks), daemon=True)
                thread.start()
                threads.append(thread)
            while any(each.is_alive() for each in threads) and not process.insisted(self.signals):
                self._show()
                for thread in threads:
                    thread.join(process.POLL_S / len(threads))
            self._show()
        problems = [problem for each in self.launches for problem in self.problems.get(each.member.name, [])]
        if self.signals:
            self.forget()
            raise Interrupted("interrupted during the checks; nothing was started", problems)
        return problems

    def forget(self) -> None:
        """Remove the code that was stored for runs that are not started."""
        for each in self._stored:
            with contextlib.suppress(TrainfleetError):
                if each.target.code is not None:
                    each.target.code.remove()

    def _note(self, number: int) -> None:
        if number == signal.SIGHUP:
            process.leave_terminal()
        self.signals.append(number)

    def _stopping(self) -> bool:
        return bool(self.signals)

    def _show(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                each, text = self._events.get_nowait()
                self.view.handle(each.member, {"kind": "note", "text": text})

    def _check(self, each: Launchable, checks: Sequence[RunCheck]) -> None:
        """The thread of one cluster."""
        name, problems = each.member.name, list[Problem]()

        def notify(text: str) -> None:
            self._events.put((each, text))

        with self._slots:
            try:
                if checks and each.launcher.remote and each.target.code is not None and not self.signals:
                    self._stored += [each] if each.target.code.upload() else []
                for check in checks if not self.signals else []:
                    where = f"{name} {check.where}".rstrip()
                    try:
                        check.run(notify, each.lines.append, self._stopping)
                    except TrainfleetError as error:
                        problems += _of(where, error)
            except Stopped:
                pass
            except TrainfleetError as error:
                problems += _of(name, error)
            except Exception as error:  # noqa: BLE001 - a thread's error would be lost
                problems.append(Problem(name, f"its check failed: {type(error).__name__}: {error}"))
        self.problems[name] = problems


@contextlib.contextmanager
def nothing_left(folder: Path) -> Iterator[None]:
    """Remove the folder of a group, which the block locked, if the block created it and started nothing."""
    new = [each for each in (folder, folder.parent) if not each.exists()]
    try:
        yield
    except (InputError, Interrupted):
        for name in (".lock",) if folder in new else ():
            (folder / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # it holds something else
            for each in new:
                each.rmdir()
        raise


def _of(name: str, error: TrainfleetError) -> list[Problem]:
    return [Problem(name, error.summary), *located(name, error.problems)]
