"""Runs the trials of a search. A trial is a run, launched by any launcher in a process of its own.

A trial's checkpoints belong to its run, so a killed search resumes with them. A failed trial does not end
the search.
"""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from trainfleet import process
from trainfleet.errors import Interrupted, Problem, TrainfleetError
from trainfleet.training.launch.base import find
from trainfleet.training.launch.clusters.display import GroupDisplay
from trainfleet.training.launch.clusters.processes import Processes
from trainfleet.training.launch.clusters.summary import Member
from trainfleet.training.launch.control import RunControl
from trainfleet.training.launch.find_run import find_run
from trainfleet.training.launch.remote.where import Where
from trainfleet.training.launch.request import Request
from trainfleet.training.launch.run_record import RERUN
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.runs.listing import ACTIVE
from trainfleet.training.stores import StoreError, StoreUnavailableError, is_remote, open_store
from trainfleet.training.stores.lease import Lease
from trainfleet.training.tune.metrics import MetricsReader, validations
from trainfleet.training.tune.pruning import Pruning
from trainfleet.training.tune.search import Search, Trial, home_of
from trainfleet.training.tune.trial_launch import devices, require_machine, require_packages, trial_request
from trainfleet.workspace import workspace

LOGS = "logs"
LAST_EVENTS_S = 2.0
"""How long the last events of a launch may take after its end."""
STOP_AGAIN_S = 10.0
"""How long to wait before a run that could not be stopped is asked again."""
SAVE_AGAIN_S = 5.0
Hear = Callable[[Mapping[str, Any]], Any]


def tune(request: Request, recipe: Recipe, folder: Path, hear: Hear, view: GroupDisplay) -> Search:
    """Run or resume a search.

    Args:
        request: the launch of a trial, without its values, name and storage.
        recipe: the recipe of the search.
        folder: the search's folder on this machine, for logs.
        hear: receives an event for each validation and each end of a trial.
        view: shows what the launches report, and asks what Ctrl-C means.

    Raises:
        InputError: the storage has another search, or the trials cannot be launched; nothing was started.
        TrainfleetError: no trial has a result.
        Interrupted: a signal ended it; the same command resumes the search.
    """
    search = Search(recipe, home_of(recipe))
    if search.unfinished() or len(search.trials) < search.tune.trials:
        require_packages(search)
        require_machine(search, request)
        with _held(search, view) as require_held, workspace() as work:
            trials = _Trials(search, request, Processes(folder / LOGS, work, view), hear)
            trials.run(require_held)
        if trials.processes.signals or trials.left:
            raise _unfinished(search, trials)
    if search.best() is None:
        problems = [
            Problem(f"trial {each.number}", each.error or "has no result") for each in search.trials[:5]
        ]
        raise TrainfleetError("no trial has a result", problems)
    return search


class _Trials:
    """The trials of a search, while their launches run."""

    def __init__(self, search: Search, request: Request, processes: Processes, hear: Hear) -> None:
        self.search, self.request, self.processes, self._hear = search, request, processes, hear
        self.active: dict[int, Member] = {}
        self.left: list[Trial] = []
        """Trials whose runs continue, or whose results cannot be read now."""
        self._launcher = find(request.on)
        self._waiting = search.unfinished()
        self._resumed = {each.number for each in self._waiting}
        self._pruning = Pruning(search)
        self._slots: dict[int, int] = {}
        self._gone: dict[int, float] = {}
        self._stopping: set[int] = set()
        self._stopped: queue.SimpleQueue[Trial] = queue.SimpleQueue()
        self._unsaved_since: float | None = None
        self._began = time.monotonic()

    def run(self, require_held: Callable[[], None]) -> None:
        """Launch all trials and follow them until the last has ended, or until a signal has ended them.

        Raises:
            InputError: another command has taken the search over.
            StoreError: its state could not be saved at the end.
        """
        self._reader = MetricsReader(self.search.tune.metric)
        try:
            with self.processes.followed():
                while True:
                    require_held()
                    running = {each.name for each in self.processes.poll()}
                    self._take_rows()
                    self._take_ends(running)
                    self._save_again()
                    if not self.processes.signals:
                        self._start_more()
                    elif not self.active:
                        break
                    if not self.active and not self._stopping and not self._more():
                        break
                    time.sleep(process.POLL_S)
        finally:
            self._reader.close()
        self.search.save()

    def _more(self) -> bool:
        return bool(self._waiting) or len(self.search.trials) < self.search.tune.trials

    def _start_more(self) -> None:
        while len(self.active) + len(self._stopping - set(self.active)) < self.search.tune.concurrent:
            trial = self._next()
            if trial is None:
                return
            if trial.stopping:  # pruned by an earlier command, which was killed before its run had ended
                self._stop(trial)
            else:
                self._start(trial)

    def _next(self) -> Trial | None:
        if self._waiting:
            return self._waiting.pop(0)
        if self._unsaved_since is not None:  # a trial is started only once the state names it
            return None
        try:
            return self.search.propose()
        except StoreUnavailableError as error:
            self.search.trials.pop()
            self._not_saved(error)
            return None

    def _start(self, trial: Trial) -> None:
        request = trial_request(self.search, self.request, trial)
        member = Member(trial.run, self.request.on, Path(self.search.trial_home(trial)))
        slot = next(each for each in range(len(self._slots) + 1) if each not in self._slots.values())
        self.active[trial.number], self._slots[trial.number] = member, slot
        again = trial.number in self._resumed or trial.failures > 0
        env = {**os.environ, **devices(self.search.recipe, self.request.on, slot)}
        self.processes.start(member, request, join=again, env=env)
        self._reader.watch(trial.number, self._source(trial))
        self._tell(trial)

    def _source(self, trial: Trial) -> str:
        """Where the newest rows of a trial are: in its folder on this machine, if it trains here."""
        home = self.search.trial_home(trial)
        return home if self._launcher.remote or not is_remote(home) else str(Path("runs", trial.run))

    def _take_rows(self) -> None:
        changed: dict[int, Trial] = {}
        poor: dict[int, Trial] = {}
        for number, rows in self._reader.drain():
            trial = self.search.trials[number]
            if number in self.active and _add(trial, rows):
                changed[number] = trial
                if self._pruning.should_end(trial) and not trial.stopping and not self.processes.signals:
                    trial.stopping, poor[number] = True, trial
        if changed:
            self._record(*changed.values())
        for trial in poor.values():
            self._stop(trial)

    def _take_ends(self, running: set[str]) -> None:
        now = time.monotonic()
        for number, member in list(self.active.items()):
            if member.name in running:
                continue
            if not member.ended and now - self._gone.setdefault(number, now) < LAST_EVENTS_S:
                continue
            self.processes.complete(member)
            for known in (self.active, self._slots, self._gone):
                known.pop(number, None)
            self._stopping.discard(number)
            self._reader.forget(number)
            self._end(self.search.trials[number], member)
        with contextlib.suppress(queue.Empty):
            while True:
                trial = self._stopped.get_nowait()
                if trial.number not in self.active and trial.status == "running":
                    self._stopping.discard(trial.number)
                    self._finish(trial, "pruned")

    def _end(self, trial: Trial, member: Member) -> None:
        """Record how the run of a trial ended, and whether it is launched again."""
        signaled = bool(self.processes.signals)
        try:
            _add(trial, validations(open_store(self._source(trial)), self.search.tune.metric))
        except StoreError as error:
            # Its next launch reads them, and trains no step if the run is finished.
            self._warn(f"the results of trial {trial.number} cannot be read: {_reason(error)}")
            self.left.append(trial)
            return
        self._pruning.should_end(trial)
        if member.status == "finished":
            self._finish(trial, "finished")
        elif member.status == "detached":
            self.left.append(trial)
        elif trial.stopping:
            self._finish(trial, "pruned")
        elif not signaled:
            trial.failures += 1
            trial.error = "; ".join([member.summary or member.status, *_texts(member)])
            if member.status == "failed" and trial.failures <= self.search.tune.retries:
                self._waiting.append(trial)
                self._record(trial)
                self._warn(f"trial {trial.number} failed and is launched again: {trial.error}")
            else:
                self._finish(trial, "failed")

    def _finish(self, trial: Trial, status: Any) -> None:
        trial.status, trial.stopping = status, False
        trial.error = trial.error if status == "failed" else ""
        self._pruning.ended(trial)
        self._record(trial)

    def _stop(self, trial: Trial) -> None:
        """Stop the run of a trial as `trainfleet runs stop` does, in a thread."""
        self._stopping.add(trial.number)

        def stop() -> None:
            while trial.status == "running":
                try:
                    control = find_run(trial.run, Where(), self.search.runs)
                    if self._launcher.remote or _is_active(control):
                        grace = self._launcher.grace_seconds
                        control.stop(now=False, within_s=grace, report=lambda _: None)
                    break
                except TrainfleetError as error:
                    self._warn(f"trial {trial.number} is not stopped: {_reason(error)}")
                    with contextlib.suppress(TrainfleetError):
                        if not _is_active(find_run(trial.run, Where(), self.search.runs)):
                            break
                    time.sleep(STOP_AGAIN_S)
            self._stopped.put(trial)

        threading.Thread(target=stop, daemon=True, name=f"stop-{trial.number}").start()

    def _record(self, *trials: Trial) -> None:
        try:
            self.search.save()
            self._unsaved_since = None
        except StoreUnavailableError as error:
            self._not_saved(error)
        for each in trials:
            self._tell(each)

    def _not_saved(self, error: StoreError) -> None:
        if self._unsaved_since is None:
            self._warn(f"the state of the search is not saved: {_reason(error)}")
        self._unsaved_since = time.monotonic()

    def _save_again(self) -> None:
        if self._unsaved_since is not None and time.monotonic() - self._unsaved_since > SAVE_AGAIN_S:
            try:
                self.search.save()
                self._unsaved_since = None
            except StoreUnavailableError as error:
                self._not_saved(error)

    def _warn(self, text: str) -> None:
        self.processes.view.warn(text)

    def _tell(self, trial: Trial) -> None:
        search = self.search
        fields = {
            "number": trial.number,
            "status": trial.status,
            "values": trial.values,
            "best": trial.best(search.tune.mode),
            "error": trial.error,
        }
        seconds = time.monotonic() - self._began
        counts = {"done": search.done(), "total": search.tune.trials}
        self._hear({"kind": "trial", **fields, **counts, "seconds": seconds})


def _add(trial: Trial, rows: list[tuple[int, float]]) -> bool:
    """Add the validations that are new; a resumed run repeats some."""
    last = trial.rows[-1][0] if trial.rows else 0
    new = [row for row in rows if row[0] > last]
    trial.rows += new
    return bool(new)


@contextlib.contextmanager
def _held(search: Search, view: GroupDisplay) -> Iterator[Callable[[], None]]:
    """Hold the search below a URL, where a command on another machine may use it too; yields what checks that
    it is still held.

    Raises:
        InputError: another command holds it.
    """
    if search.store.local:
        yield lambda: None
        return
    search.store.probe()
    lease = Lease(search.store, secrets.token_hex(8))
    lease.acquire(lambda _, text: view.warn(text))
    try:
        yield lease.check
    finally:
        lease.release()


def _unfinished(search: Search, trials: _Trials) -> TrainfleetError:
    """Why the search is not finished."""
    text = f"{search.done()} of {search.tune.trials} trials have ended; {RERUN}"
    problems = [Problem(each.run, "is followed by the next command") for each in trials.left]
    if trials.processes.signals:
        return Interrupted(f"the search is interrupted: {text}", problems)
    return TrainfleetError(f"not every trial could be followed: {text}", problems)


def _is_active(control: RunControl) -> bool:
    """Whether the run still trains, or may start to."""
    info = control.info()
    return info is not None and info.state in ACTIVE


def _texts(member: Member) -> list[str]:
    return [str(Problem(*each)) for each in member.problems[:3]]


def _reason(error: TrainfleetError) -> str:
    return next((str(each) for each in error.problems), error.summary)
