"""Has SkyPilot run a task, tells the launcher what it says, and leaves nothing running: `python -m training.launch.sky.drive TASK`.

Started by `training.launch.start` as the process of a run with `--on sky`. A process of its own because SkyPilot takes seconds to import
and its calls block. Easy to get wrong: from the moment that pods are asked for, every way out of here must take them down, except
when the user detached; and SkyPilot takes them down by itself soon after the task has ended, should this process be killed.
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
from training import events
from training.launch.sky import parse
from training.launch.sky.follow import EventStream, note_of, reasons_in
from training.launch.sky.pods import ask_to_stop, trouble

IDLE_MINUTES = 5
"""After so long without a task SkyPilot takes the pods down by itself."""
LOOK_EVERY_S = 1.0
OVER = ("SUCCEEDED", "FAILED", "FAILED_SETUP", "FAILED_DRIVER", "CANCELLED")


@dataclass
class Drive:
    """One run by SkyPilot.

    Args:
        order: what `training.launch.sky.command` wrote.
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
    said: list[str] = field(default_factory=list)

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
            self.placed.set()
            if self.order["detach"]:
                self.tell("detached", how=self._how(job), job=job, cluster=self.name)
                self.launched = False
                return 0
            return self._follow(job)
        finally:
            self.over.set()
            if self.launched:
                self.take_down()

    def take_down(self) -> None:
        """Ask for the end of whatever was started; does not wait for it."""
        with contextlib.suppress(Exception):
            if self.request is not None and not self.placed.is_set():
                self.sky.get(self.sky.api_cancel(self.request, silent=True))
        with contextlib.suppress(Exception):
            if self.order["managed"]:
                from sky import jobs

                jobs.cancel(name=self.name)
            else:
                self.sky.down(self.name)
        self.launched = False

    def _see_contexts(self) -> None:
        """Leave out contexts that do not answer, so that SkyPilot loses no time with them."""
        found = {context: trouble(context, namespace) for context, namespace in self.order["contexts"].items()}
        bad = {context: why for context, why in found.items() if why is not None}
        if len(bad) == len(found):
            raise TrainfleetError("no context can be used", [Problem(context, why) for context, why in bad.items()])
        for context, why in bad.items():
            self.tell("warning", text=f"{context} is left out: {why}")
        resources = self.order["task"]["resources"]
        if bad and "ordered" in resources:
            resources["ordered"] = [each for each in resources["ordered"] if each["infra"].removeprefix("k8s/") not in bad]
        for each in self.order["left_out"]:
            self.tell("note", text=f"{each} is not tried: it needs another number of pods")

    def _refuse_a_second(self) -> None:
        """Two launches of one name would share a cluster."""
        name, fix = self.name, "wait for it, or use --run NAME"
        if self.order["managed"]:
            from sky import jobs

            records = self.sky.get(jobs.queue_v2(refresh=False, skip_finished=True))[0]
            live = [record for record in records if record.job_name == name]
        else:
            live = [record for record in self.sky.get(self.sky.status(cluster_names=[name])) if record is not None]
        if live:
            self.launched = False
            raise InputError("this run is going on already", [Problem(name, "SkyPilot has a run of this name", f"{fix}; to end it: sky down {name}")])

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
            self.request = self.sky.launch(task, cluster_name=self.name, idle_minutes_to_autostop=IDLE_MINUTES, down=True)
            job, _ = self.sky.stream_and_get(self.request, output_stream=stream)
        except TrainfleetError:
            raise
        except Exception as error:
            raise self._failure(error) from error
        return int(job)

    def _failure(self, error: Exception) -> TrainfleetError:
        text = "\n".join([str(error), *self.said[-200:]])
        reasons = reasons_in(text)
        problems = [Problem("", reason) for reason in reasons] or [Problem("", line) for line in str(error).splitlines()[:3] if line.strip()]
        if self.stopping:
            return TrainfleetError("stopped before the run had pods; what was asked for is taken back")
        if type(error).__name__ == "ResourcesUnavailableError":
            tried = ", ".join(dict.fromkeys(self.order["contexts"]))
            return TrainfleetError(f"no room anywhere; tried {tried}", problems)
        return TrainfleetError(f"SkyPilot could not start the run: {(str(error).splitlines() or [type(error).__name__])[0]}", problems)

    def _follow(self, job: int) -> int:
        """Tell what the run tells until it has ended."""
        stream = EventStream(self._event, self._heard)
        if self.order["managed"]:
            from sky import jobs

            jobs.tail_logs(job_id=job, follow=True, output_stream=stream)
        else:
            self.sky.tail_logs(self.name, job, follow=True, output_stream=stream)
        stream.finish()
        if stream.exit_code is not None:
            self.launched = self.launched and not self.order["managed"]  # a managed job takes its own pods down
            return stream.exit_code
        reasons = reasons_in("\n".join(self.said[-50:]))
        last = self.said[-1] if self.said else "its log ended"
        raise TrainfleetError("the run ended without a word of its own", [Problem("", each) for each in (reasons or [last])])

    def _event(self, event: dict[str, Any]) -> None:
        kind = event.pop("kind")
        self.tell(kind, **event)

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
                self.tell("warning", text=f"no pods within {self.order['within_s'] / 60:g} minutes: taking back what was asked for")
            if late or (stop and Path(stop).exists() and not self.stopping):
                self.stopping = True
                if not self.placed.is_set() or not ask_to_stop(self.order["contexts"], self.order["run"]):
                    self.take_down()
                if late:
                    return

    def _how(self, job: int) -> list[str]:
        if self.order["managed"]:
            return [f"managed job {job} of SkyPilot, {self.name}", f"follow     sky jobs logs {job}", f"end        sky jobs cancel {job}"]
        return [f"job {job} on SkyPilot's cluster {self.name}", f"follow     sky logs {self.name} {job}", f"end        sky down {self.name}"]


def main(arguments: list[str] | None = None) -> int:
    """The process's entry point; returns the training's exit code."""
    from training.launch import process

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
        problems = [[each.where, each.what, each.fix] for each in error.problems]
        sink.send("error", summary=error.summary, problems=problems, exit_code=error.exit_code)
        return error.exit_code
    except Exception as error:
        import traceback

        sink.send("crash", rank=0, error=f"{type(error).__name__}: {error}", trace=traceback.format_exc())
        raise
    finally:
        sink.close()


if __name__ == "__main__":
    sys.exit(main())
