"""The follower of a run by SkyPilot: has it run the task, reports what the run prints, and cleans up.

NOTE: an end of the log or a lost connection is not the end of the run, which only SkyPilot's state of the job
shows. Every other exit deletes what was requested, except when the launcher detaches. Should this process be
killed, SkyPilot deletes the pods soon after the task has ended (`down`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainfleet import process
from trainfleet.errors import Problem, TrainfleetError
from trainfleet.training.launch.remote.follower import STOPPED, Stopped, detach_requested, stop_requested
from trainfleet.training.launch.remote.kubernetes import connect
from trainfleet.training.launch.remote.workload_check import check_workload
from trainfleet.training.launch.sky.contexts import usable_contexts
from trainfleet.training.launch.sky.event_stream import EventStream, note_of
from trainfleet.training.launch.sky.failures import (
    managed_failure,
    no_result,
    not_in_time,
    not_started,
    within,
)
from trainfleet.training.launch.sky.job_state import RECONNECT_S, JobState, UnreachableError
from trainfleet.training.launch.sky.messages import SkySpec
from trainfleet.training.launch.sky.pods import ClusterPods, Place
from trainfleet.training.launch.sky.recovery import RecoveryWatcher, describe, list_pods
from trainfleet.training.launch.sky.server_pods import ServerPods
from trainfleet.training.launch.sky.skypilot import lines_of, parse, set_client_options, wait_for
from trainfleet.training.launch.sky.submission import SetupError, submission
from trainfleet.training.runtime import events
from trainfleet.training.runtime.imports import without_collections
from trainfleet.training.runtime.subprocess_jobs import send_error

POLL_S = 1.0
PODS_POLL_S = 3.0
"""How often a managed job's pods are listed, to date their loss."""
WAITING_POLL_S = 5.0
"""How often it is looked what the pods wait for."""
FINAL_EVENTS = ("error", "crash")
"""What a managed job prints last may come from pods that were lost, until SkyPilot reports the same."""


@dataclass
class Follower:
    """One run by SkyPilot.

    Args:
        spec: what the launcher wrote.
        send: `send(kind, **fields)`: an event for the launcher.
        sky: the module; given by tests.
    """

    spec: SkySpec
    send: Callable[..., Any]
    sky: Any
    request: Any = None
    """The request of SkyPilot's API server that is in progress."""
    launched: bool = False
    over: threading.Event = field(default_factory=threading.Event)
    placed: threading.Event = field(default_factory=threading.Event)
    stopping: bool = False
    canceled: bool = False
    """Whether a stop deletes the run, because it has nothing to save or its pods cannot be asked."""
    deleting: threading.RLock = field(default_factory=threading.RLock)
    """Held while a deletion is requested: this process must not end meanwhile."""
    stepped: bool = False
    """Whether the run has reported a step: before that there is nothing to save."""
    late: bool = False
    """Whether the pods did not come in time."""
    lines: list[str] = field(default_factory=list)
    """SkyPilot's own output."""
    recovery: RecoveryWatcher | None = None
    """Of a managed job, once it is queued."""
    held_back: list[dict[str, Any]] = field(default_factory=list)
    """FINAL_EVENTS that the launcher does not have yet."""
    job: int | None = None
    """Its number, once SkyPilot has queued it."""
    leave: Callable[[int], Any] = os._exit
    """Ends this process at once; another thread may wait for SkyPilot."""

    def __post_init__(self) -> None:
        self.job_state = JobState(self.sky, self._log, self._note, self.over.wait)
        self.pods: ClusterPods | ServerPods = (
            ServerPods(self.sky, self.spec, self._note, parse)
            if self.spec.server
            else ClusterPods(self.spec.contexts, self.spec.selector, self._note)
        )
        self.submission = submission(self.spec, self.sky, self.job_state, self._note, self.pods.idle)

    @property
    def name(self) -> str:
        """The name of the SkyPilot cluster or managed job."""
        return self.spec.cluster

    def run(self) -> int:
        """Run the task to its end; the exit code of the training.

        Raises:
            TrainfleetError: it could not be started; nothing is left of it.
        """
        contexts = usable_contexts(self.spec, self.send)
        self.submission.require_free()
        self._check_workload(contexts[0])
        threading.Thread(target=self._watch_stop_and_time, daemon=True, name="sky-watch").start()
        self.launched = True
        try:
            self.job = job = self._launch()
            if self.spec.managed and self.spec.server:
                threading.Thread(target=self._await_start, args=(job,), daemon=True, name="sky-job").start()
            elif self.spec.managed and not self.spec.detach:
                self.recovery = self._watch_recovery(job)
            else:
                self.placed.set()
            if self.spec.detach:
                self._detach()
                return 0
            return self._follow(job)
        except UnreachableError as error:
            self.launched = False
            fix = f"the run continues; {self.spec.follow_command}"
            problem = Problem(self.name, error.reason, fix)
            raise TrainfleetError("SkyPilot no longer answers", [problem]) from error
        finally:
            self.over.set()
            with self.deleting:
                if self.launched:
                    self._note(self.submission.deletion)
                    self._wait(self.delete())

    def _detach(self) -> None:
        self.launched, how = False, self.spec.how_to_follow(self.job)
        self.send("detached", how=how, cluster=self.name, **({} if self.job is None else {"job": self.job}))

    def delete(self) -> Any:
        """Request the deletion of everything that was started; the request, which is not waited for."""
        with self.deleting:
            self.launched = False
            with contextlib.suppress(Exception):
                if self.request is not None and not self.placed.is_set():
                    self.sky.get(self.sky.api_cancel(self.request, silent=True))
            with contextlib.suppress(Exception):
                return self.submission.delete(self.job)
            return None

    def _wait(self, request: Any) -> None:
        """Wait for a request, with a limit: the next launch of this name would be rejected meanwhile."""
        if request is not None:
            wait_for(self.sky, lambda: request)

    def _check_workload(self, context: str) -> None:
        """Validate the workload on the first cluster that is tried."""
        if check := self.spec.checks.get(context):
            cluster = connect(context, "", "", self.spec.contexts[context])
            check_workload(cluster, check, self._note, self._log)
            self.submission.require_free()  # it took time, and another launch may have begun

    def _launch(self) -> int:
        """The job's number, once it is queued on pods (managed: once its controller has it).

        A setup that fails in a pod is repeated once: on a busy node SkyPilot's own time limits end it.
        """
        try:
            return self._submit()
        except SetupError as error:
            self._note(f"{error.problems[0].what}; starting again with new pods")
            self._wait(self.delete())
            if self.late or self.stopping:
                raise self._canceled("") from error
            self.launched = True
            return self._submit()

    def _submit(self) -> int:
        stream = EventStream(lambda _: None, self._log)
        self._note(f"asking SkyPilot{f' at {self.spec.server}' if self.spec.server else ''}")
        try:
            self.request = self.submission.submit(parse)
            if self.stopping:
                self.launched = True  # the stop came before there was a request to cancel
                raise self._canceled("")
            answer = self.sky.stream_and_get(self.request, output_stream=stream)
        except TrainfleetError:
            raise
        except Exception as error:
            raise self._failure(error) from error
        return self.submission.job_of(answer)

    def _failure(self, error: Exception) -> TrainfleetError | Stopped:
        text = "\n".join([*lines_of(error), *self.lines[-200:]])
        if self.late or self.stopping:
            return self._canceled(text)
        return not_started(self.spec, error, text, self.pods.setup_failures())

    def _canceled(self, text: str, when: str = "before the run had pods") -> TrainfleetError | Stopped:
        """The end of a launch that was canceled. A stop by the user is not an error."""
        if self.late:
            return not_in_time(self.spec, text)
        what = "its job was canceled" if self.spec.kept or self.spec.managed else "its pods are deleted"
        self._note(f"stopped {when}; {what if self.placed.is_set() else 'the request was canceled'}")
        return Stopped()

    def _stopped(self) -> TrainfleetError | Stopped:
        """The end of a run that a stop has deleted."""
        when = "at its newest checkpoint" if self.spec.saves else "before its end"
        return self._canceled("", when if self.stepped else "before the first step")

    def _follow(self, job: int) -> int:
        """Report what the run prints until it has ended."""
        stream = EventStream(self._event, self._log)
        if self.spec.managed:
            return self._follow_managed(job, stream)
        pauses, ended = iter(RECONNECT_S), False
        while True:
            self.job_state.read_log(
                lambda: self.sky.tail_logs(self.name, job, follow=True, output_stream=stream)
            )
            stream.finish()
            if stream.exit_code is not None:
                self.launched = self.launched and not self.spec.kept
                return stream.exit_code
            if self.canceled:
                raise self._stopped()
            if ended:
                break
            # If it has ended, its last lines may have come after the log was interrupted.
            ended = self.job_state.ended(self.name, job, self._lost)
            if not ended:
                self.over.wait(next(pauses, RECONNECT_S[-1]))
        raise no_result(self.spec, self.lines, lost=self._lost())

    def _lost(self) -> bool:
        """Whether pods of the run are lost."""
        return self.pods.lost(self.spec.task["num_nodes"])

    def _follow_managed(self, job: int, stream: EventStream) -> int:
        """The same of a managed job.

        Its log ends whenever its pods are lost, so its last events count only once SkyPilot reports the end.
        """
        from sky import jobs

        while True:
            self.job_state.read_log(lambda: jobs.tail_logs(job_id=job, follow=True, output_stream=stream))
            stream.finish()
            if stream.exit_code == 0:
                break
            record = self.job_state.record(job)
            if record is None or record.status is None or record.status.is_terminal():
                break
            if self.stopping and not self.placed.is_set():
                break
            self.held_back.clear()
            stream.exit_code = None
            self.over.wait(POLL_S)
        if self.stopping and not self.placed.is_set():
            raise self._canceled(self.job_state.controller_log(job))
        if self.canceled and stream.exit_code is None:
            raise self._stopped()
        for event in self.held_back:
            self.send(event.pop("kind"), **event)
        if stream.exit_code is None:
            raise managed_failure(record, self.job_state.controller_log(job))
        self.launched = False  # SkyPilot deletes its pods
        return stream.exit_code

    def _watch_recovery(self, job: int) -> RecoveryWatcher:
        def noticed() -> bool:
            record = self.job_state.now(job)
            return record is not None and getattr(record.status, "value", "") == "RECOVERING"

        def recovered(recovery: dict[str, Any]) -> None:
            self.send("moved", text=describe(recovery), **recovery)

        watcher = RecoveryWatcher(
            self.spec.task["num_nodes"],
            lambda: list_pods(self.spec.contexts, self.spec.selector),
            noticed,
            recovered,
        )
        threading.Thread(target=self._poll_pods, args=(watcher,), daemon=True, name="sky-pods").start()
        return watcher

    def _event(self, event: dict[str, Any]) -> None:
        self.placed.set()
        self.stepped = self.stepped or event["kind"] == "step"
        if self.recovery is not None:
            self.recovery.on_event(event["kind"])
        if self.spec.managed and event["kind"] in FINAL_EVENTS:
            self.held_back.append(event)
        else:
            self.send(event.pop("kind"), **event)

    def _note(self, text: str) -> None:
        self.send("note", text=text)

    def _log(self, line: str) -> None:
        """SkyPilot's output goes to the launch's log, and its news to the display."""
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
        self.lines.append(line)
        if note := note_of(line):
            self.send("note", text=note)

    def _watch_stop_and_time(self) -> None:
        """Stop the run when the launcher asks for it, or when the pods do not come in time.

        The time in a queue does not count.
        """
        began = looked = time.monotonic()
        place = Place.NOWHERE
        while not self.over.wait(POLL_S):
            if detach_requested() and self.request is not None:
                self._detach()
                self.leave(0)
                return
            if not self.placed.is_set() and time.monotonic() - looked > WAITING_POLL_S:
                looked = time.monotonic()
                # A cluster that does not answer keeps the run where it was.
                was, place = place, self.pods.report()
                place = was if place is Place.NOWHERE else place
                began = looked if place is Place.QUEUED else began
                if place is Place.ADMITTED and was is not Place.ADMITTED:
                    self.send("admitted")
            elif self.placed.is_set() and place is not Place.ADMITTED:
                place = Place.ADMITTED
                self.send("admitted")
            late = not self.placed.is_set() and time.monotonic() - began > self.spec.within_s
            if late:
                self.late = True
                self.send("warning", text=f"no pods within {within(self.spec)}: canceling the request")
            if late or (stop_requested() and not self.stopping):
                self.stopping = True
                if not (self.stepped and self.spec.saves and self.pods.ask_to_stop()):
                    self.canceled = True
                    self.delete()
                if late:
                    return

    def _await_start(self, job: int) -> None:
        """Wait until a team's server has placed a managed job, whose pods only it sees."""
        while not self.over.wait(PODS_POLL_S) and not self.placed.is_set():
            with contextlib.suppress(Exception):
                if self.job_state.now(job).status.value == "RUNNING":
                    self.placed.set()

    def _poll_pods(self, watcher: RecoveryWatcher) -> None:
        """List a managed job's pods, to date their loss and to know that it has some."""
        while not self.over.wait(PODS_POLL_S):
            with contextlib.suppress(Exception):
                watcher.poll()
            if watcher.settled:
                self.placed.set()


def main(arguments: list[str] | None = None) -> int:
    """Entry point of the process; returns the training's exit code."""
    if events.PARENT in os.environ:
        process.die_with(int(os.environ[events.PARENT]))
    sink = events.EventSink(os.environ.get(events.EVENTS))
    try:
        spec = SkySpec.read(Path((arguments or sys.argv[1:])[0]))
        set_client_options(kept=spec.kept)
        sink.send("note", text="starting SkyPilot")
        with without_collections():
            import sky
        follower = Follower(spec, sink.send, sky)

        def end(*_: object) -> None:
            if (follower.launched or follower.stopping) and not detach_requested():
                follower.delete()
            os._exit(1)

        signal.signal(signal.SIGTERM, end)
        return follower.run()
    except Stopped:
        return STOPPED
    except TrainfleetError as error:
        return send_error(sink, error)
    except Exception as error:
        import traceback

        sink.send("crash", rank=0, error=f"{type(error).__name__}: {error}", trace=traceback.format_exc())
        raise
    finally:
        sink.close()


if __name__ == "__main__":
    sys.exit(main())
