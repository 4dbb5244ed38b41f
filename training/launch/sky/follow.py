"""Has SkyPilot run a task, tells the launcher what it says, and leaves nothing running: `python -m
trainfleet.training.launch.sky.follow TASK`.

Started by `trainfleet.training.launch.supervise` as the process of a run with `--on sky`. A process of its
own because SkyPilot takes seconds to import
and its calls block. Easy to get wrong: from the moment that pods are asked for, every way out of here must
take them down, except
when the user detached; and SkyPilot takes them down by itself soon after the task has ended, should this
process be killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainfleet.errors import InputError, Problem, TrainfleetError
from trainfleet.training.launch.remote.follower import tell
from trainfleet.training.launch.sky import parse
from trainfleet.training.launch.sky.event_stream import EventStream, note_of, reasons_in
from trainfleet.training.launch.sky.pods import ask_to_stop, trouble
from trainfleet.training.launch.sky.recovery import Moves, look, words
from trainfleet.training.runtime import events

IDLE_MINUTES = 5
"""After so long without a task SkyPilot takes the pods down by itself."""
LOOK_EVERY_S = 1.0
PODS_EVERY_S = 3.0
"""How often a managed job's pods are looked at, to say when they were lost."""
GONE_S = 120.0
"""How long the end of pods is waited for, so that the same command can be given again at once."""
VERDICTS = ("error", "crash")
"""What a managed job says may be of pods that were lost, until SkyPilot has judged."""


@dataclass
class Drive:
    """One run by SkyPilot.

    Args:
        order: what `trainfleet.training.launch.sky.command` wrote.
        tell: `tell(kind, **fields)`: an event for the launcher.
        sky: the module; given by tests.
    """

    order: dict[str, Any]
    tell: Callable[..., Any]
    sky: Any
    request: Any = None
    """The request of SkyPilot's API server that is going on."""
    launched: bool = False
    over: threading.Event = field(default_factory=threading.Event)
    placed: threading.Event = field(default_factory=threading.Event)
    stopping: bool = False
    stepped: bool = False
    """Whether the run has told of a step: before that there is nothing to save."""
    late: bool = False
    """Whether there were no pods in time."""
    said: list[str] = field(default_factory=list)
    moves: Moves | None = None
    """Of a managed job, once it is queued."""
    held: list[dict[str, Any]] = field(default_factory=list)
    """VERDICTS that the launcher has not been told yet."""

    @property
    def name(self) -> str:
        return str(self.order["cluster"])

    def run(self) -> int:
        """From the first look at the contexts to the pods' end; the exit code of the training.

        Raises:
            TrainfleetError: it could not be started; nothing is left of it.
        """
        self._see_contexts()
        self._refuse_a_second()
        threading.Thread(target=self._watch, daemon=True, name="sky-watch").start()
        self.launched = True
        try:
            job = self._launch()
            if self.order["managed"] and not self.order["detach"]:
                self.moves = self._watched(job)
            else:
                self.placed.set()
            if self.order["detach"]:
                self.tell("detached", how=self._how(job), job=job, cluster=self.name)
                self.launched = False
                return 0
            return self._follow(job)
        finally:
            self.over.set()
            if self.launched:
                self.tell("note", text="taking the pods down")
                self._wait(self.take_down())

    def take_down(self) -> Any:
        """Ask for the end of whatever was started; the request of SkyPilot's server that does it, which is
        not waited for.
        """
        self.launched = False
        with contextlib.suppress(Exception):
            if self.request is not None and not self.placed.is_set():
                self.sky.get(self.sky.api_cancel(self.request, silent=True))
        with contextlib.suppress(Exception):
            if self.order["managed"]:
                from sky import jobs

                return jobs.cancel(name=self.name)
            return self.sky.down(self.name)
        return None

    def _wait(self, request: Any) -> None:
        """See the end of a request, for a while: a name whose pods are still going would be refused to the
        next launch.
        """

        def see() -> None:
            with contextlib.suppress(Exception):
                self.sky.get(request)

        if request is not None:
            waiter = threading.Thread(target=see, daemon=True, name="sky-down")
            waiter.start()
            waiter.join(GONE_S)

    def _see_contexts(self) -> None:
        """Leave out contexts that do not answer, so that SkyPilot loses no time with them."""
        found = {
            context: trouble(context, namespace) for context, namespace in self.order["contexts"].items()
        }
        bad = {context: why for context, why in found.items() if why is not None}
        if len(bad) == len(found):
            raise TrainfleetError(
                "no context can be used", [Problem(context, why) for context, why in bad.items()]
            )
        for context, why in bad.items():
            self.tell("warning", text=f"{context} is left out: {why}")
        resources = self.order["task"]["resources"]
        if bad and "ordered" in resources:
            resources["ordered"] = [
                each for each in resources["ordered"] if each["infra"].removeprefix("k8s/") not in bad
            ]
        for each in self.order["left_out"]:
            self.tell("note", text=f"not tried: {each}")

    def _refuse_a_second(self) -> None:
        """Two launches of one name would share a cluster."""
        name, fix = self.name, "wait for it, or use --run NAME"
        if self.order["managed"]:
            from sky import jobs

            try:
                records = self.sky.get(jobs.queue_v2(refresh=False, skip_finished=True))[0]
            except Exception as error:
                if (
                    type(error).__name__ != "ClusterNotUpError"
                ):  # no job was ever given to controllers in pods
                    raise
                records = []
            live = [record for record in records if record.job_name == name]
        else:
            live = [
                record for record in self.sky.get(self.sky.status(cluster_names=[name])) if record is not None
            ]
        if live:
            self.launched = False
            raise InputError(
                "this run is going on already",
                [Problem(name, "SkyPilot has a run of this name", f"{fix}; to end it: sky down {name}")],
            )

    def _launch(self) -> int:
        """The job's number, once it is queued on pods (managed: once its controller has it)."""
        task = parse(self.order["task"])
        stream = EventStream(lambda _: None, self._heard)
        self.tell("note", text="asking SkyPilot")
        try:
            if self.order["managed"]:
                from sky import jobs

                self.request = jobs.launch(task, name=self.name)
                found, _ = self.sky.stream_and_get(self.request, output_stream=stream)
                return int(found[0])
            self.request = self.sky.launch(
                task, cluster_name=self.name, idle_minutes_to_autostop=IDLE_MINUTES, down=True
            )
            job, _ = self.sky.stream_and_get(self.request, output_stream=stream)
        except TrainfleetError:
            raise
        except Exception as error:
            raise self._failure(error) from error
        return int(job)

    def _failure(self, error: Exception) -> TrainfleetError:
        text = "\n".join([str(error), *self.said[-200:]])
        reasons = reasons_in(text)
        problems = [Problem("", reason) for reason in reasons] or [
            Problem("", line) for line in str(error).splitlines()[:3] if line.strip()
        ]
        if self.late or self.stopping:
            return self._taken_back(text)
        if type(error).__name__ == "ResourcesUnavailableError":
            return TrainfleetError(f"no room anywhere; tried {self._tried()}", problems)
        return TrainfleetError(
            f"SkyPilot could not start the run: {(str(error).splitlines() or [type(error).__name__])[0]}",
            problems,
        )

    def _taken_back(self, text: str) -> TrainfleetError:
        """What became of a launch that was given up before it had pods."""
        if not self.late:
            return TrainfleetError("stopped before the run had pods; what was asked for is taken back")
        within = f"{self.order['within_s'] / 60:g} minutes"
        return TrainfleetError(
            f"no room anywhere within {within}; tried {self._tried()}",
            [Problem("", each) for each in reasons_in(text)],
        )

    def _tried(self) -> str:
        return ", ".join(dict.fromkeys(self.order["contexts"]))

    def _follow(self, job: int) -> int:
        """Tell what the run tells until it has ended."""
        stream = EventStream(self._event, self._heard)
        if self.order["managed"]:
            return self._follow_managed(job, stream)
        self.sky.tail_logs(self.name, job, follow=True, output_stream=stream)
        stream.finish()
        if stream.exit_code is not None:
            return stream.exit_code
        if self.stopping and not self.stepped:
            raise TrainfleetError("stopped before the run had begun; its pods are taken down")
        reasons = reasons_in("\n".join(self.said[-50:]))
        last = self.said[-1] if self.said else "its log ended"
        raise TrainfleetError(
            "the run ended without a word of its own", [Problem("", each) for each in (reasons or [last])]
        )

    def _follow_managed(self, job: int, stream: EventStream) -> int:
        """The same of a managed job, whose log ends whenever its pods are lost: what it said last counts only
        when SkyPilot says so too.
        """
        from sky import jobs

        while True:
            jobs.tail_logs(job_id=job, follow=True, output_stream=stream)
            stream.finish()
            if stream.exit_code == 0:
                break
            record = self._record(job)
            if record is None or record.status is None or record.status.is_terminal():
                break
            if self.stopping and not self.placed.is_set():
                break
            self.held.clear()
            stream.exit_code = None
            self.over.wait(LOOK_EVERY_S)
        if self.stopping and not self.placed.is_set():
            raise self._taken_back(self._controller_log(job))
        for event in self.held:
            self.tell(event.pop("kind"), **event)
        if stream.exit_code is None:
            why = (getattr(record, "failure_reason", None) or "").strip().splitlines()
            status = getattr(getattr(record, "status", None), "value", "gone")
            reasons = reasons_in("\n".join([*why, self._controller_log(job)]))
            raise TrainfleetError(
                f"the managed job ended: {status}", [Problem("", each) for each in (reasons or why[:1])]
            )
        self.launched = False  # SkyPilot takes its pods down
        return stream.exit_code

    def _record(self, job: int) -> Any:
        """What SkyPilot knows of a managed job; None where it knows nothing."""
        from sky import jobs

        found = self.sky.get(jobs.queue_v2(refresh=False, job_ids=[job], fields=None))[0]
        return found[0] if found else None

    def _controller_log(self, job: int) -> str:
        """What the job's controller wrote: there alone stands why a place was refused."""
        from sky import jobs

        lines: list[str] = []
        stream = EventStream(lambda _: None, lines.append)
        with contextlib.suppress(Exception):
            jobs.tail_logs(job_id=job, follow=False, controller=True, output_stream=stream)
        stream.finish()
        return "\n".join(lines[-300:])

    def _watched(self, job: int) -> Moves:
        def noticed() -> bool:
            record = self._record(job)
            return record is not None and getattr(record.status, "value", "") == "RECOVERING"

        def moved(move: dict[str, Any]) -> None:
            self.tell("moved", text=words(move), **move)

        moves = Moves(
            self.order["task"]["num_nodes"],
            lambda: look(self.order["contexts"], self.order["run"]),
            noticed,
            moved,
        )
        threading.Thread(target=self._look, args=(moves,), daemon=True, name="sky-pods").start()
        return moves

    def _event(self, event: dict[str, Any]) -> None:
        self.placed.set()
        self.stepped = self.stepped or event["kind"] == "step"
        if self.moves is not None:
            self.moves.heard(event["kind"])
        if self.order["managed"] and event["kind"] in VERDICTS:
            self.held.append(event)
        else:
            self.tell(event.pop("kind"), **event)

    def _heard(self, line: str) -> None:
        """SkyPilot's words go to the launch's log, and what is news to the display."""
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
        self.said.append(line)
        if note := note_of(line):
            self.tell("note", text=note)

    def _watch(self) -> None:
        """Look for the launcher's wish to stop, and for the end of its patience."""
        stop, began = os.environ.get(events.STOP_FILE), time.monotonic()
        while not self.over.wait(LOOK_EVERY_S):
            late = not self.placed.is_set() and time.monotonic() - began > self.order["within_s"]
            if late:
                self.late = True
                self.tell(
                    "warning",
                    text=f"no pods within {self.order['within_s'] / 60:g} minutes: taking back what was asked for",
                )
            if late or (stop and Path(stop).exists() and not self.stopping):
                self.stopping = True
                if not self.stepped or not ask_to_stop(self.order["contexts"], self.order["run"]):
                    self.take_down()
                if late:
                    return

    def _look(self, moves: Moves) -> None:
        """Look at a managed job's pods, for the record and to know that it has some."""
        while not self.over.wait(PODS_EVERY_S):
            with contextlib.suppress(Exception):
                moves.tick()
            if moves.settled:
                self.placed.set()

    def _how(self, job: int) -> list[str]:
        if self.order["managed"]:
            return [
                f"managed job {job} of SkyPilot, {self.name}",
                f"follow     sky jobs logs {job}",
                f"end        sky jobs cancel {job}",
            ]
        return [
            f"job {job} on SkyPilot's cluster {self.name}",
            f"follow     sky logs {self.name} {job}",
            f"end        sky down {self.name}",
        ]


def main(arguments: list[str] | None = None) -> int:
    """The process's entry point; returns the training's exit code."""
    from trainfleet import process

    if events.PARENT in os.environ:
        process.die_with(int(os.environ[events.PARENT]))
    sink = events.Sink(os.environ.get(events.EVENTS))
    try:
        order = json.loads(Path((arguments or sys.argv[1:])[0]).read_text(encoding="utf-8"))
        os.environ.setdefault("SKYPILOT_DISABLE_USAGE_COLLECTION", "1")
        sink.send("note", text="starting SkyPilot")
        import sky

        drive = Drive(order, sink.send, sky)

        def end(*_: object) -> None:
            if drive.launched:
                drive.take_down()
            os._exit(1)

        signal.signal(signal.SIGTERM, end)
        return drive.run()
    except TrainfleetError as error:
        return tell(sink, error)
    except Exception as error:
        import traceback

        sink.send("crash", rank=0, error=f"{type(error).__name__}: {error}", trace=traceback.format_exc())
        raise
    finally:
        sink.close()


if __name__ == "__main__":
    sys.exit(main())
