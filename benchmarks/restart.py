"""Time from SIGKILL of one of two workers to the next step of the run.

    python -m benchmarks.restart [--recipe NAME] [--smoke] [--json]

Measured with torchrun and with Ray Train, for a tiny model and one of 50 million parameters, by phase:
noticed (the other worker has ended too), started (new workers report), loaded (imports, process group, data,
checkpoint) and stepped. Most of the time is process starts and imports, so other load affects it in full.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks import command
from trainfleet.errors import Interrupted, TrainfleetError
from trainfleet.training.launch.request import Request
from trainfleet.training.launch.supervise import start

PLACES = ("torchrun", "local")
PHASES = ("noticed", "started", "loaded", "stepped")
TARGET = 10.0
SETTLED_S = 30.0
"""How long a run trains before the kill: Ray's prestarted processes have finished their imports by then."""
LIMIT_S = 300.0
CHANGES = (
    "steps=100000",
    "optimizer.warmup=1",
    "validation.every=100000",
    "validation.samples=16",
    "log.every=1",
    "log.tensorboard=false",
)
SIZES = {
    "tiny": ("checkpoint.every=10",),
    # About 12 x 4 x 1024^2 weights; one short sample per rank, for a short step.
    "50 M parameters": (
        "checkpoint.every=2",
        "workload.model.layers=4",
        "workload.model.width=1024",
        "workload.model.heads=16",
        "batch.global_batch=2",
        "batch.micro_batch=1",
    ),
}


class Finished(Exception):  # noqa: N818 - ends the measured run
    """Raised after the first step that follows the kill."""


class RestartMonitor:
    """Receives the events of a run, kills the last rank after a warm-up and two checkpoints, and records the
    time of each phase.
    """

    def __init__(self, settled_s: float = SETTLED_S) -> None:
        self.settled_s = settled_s
        self.workers: dict[int, int] = {}
        self.checkpoints = 0
        self.first_step: float | None = None
        self.killed: float | None = None
        self.at: dict[str, float] = {}
        self.deadline = time.monotonic() + LIMIT_S

    def handle(self, event: Mapping[str, Any]) -> None:
        """Handle one event; the launcher calls it.

        Raises:
            Finished: the first step after the kill is done.
        """
        if self.killed is not None:
            self._after(event)
        elif event["kind"] == "worker":
            self.workers[int(event["rank"])] = int(event["pid"])
        elif event["kind"] == "checkpoint":
            self.checkpoints += 1
        elif event["kind"] == "step":
            now = time.monotonic()
            self.first_step = self.first_step or now
            if self.checkpoints >= 2 and now - self.first_step >= self.settled_s:
                self._kill()

    def ask(self, answers: Mapping[str, str], interrupted: Callable[[], bool]) -> str:  # noqa: ARG002
        """The first answer, without asking; the launcher requires it."""
        return next(iter(answers))

    def close(self) -> None:
        """Do nothing; the launcher requires it."""

    def seconds(self) -> dict[str, float]:
        """The seconds of each phase, and the total under `in all`."""
        if self.killed is None:
            raise TrainfleetError(f"the run wrote no second checkpoint within {LIMIT_S:g} s")
        if set(self.at) != set(PHASES):
            reached = ", ".join(self.at) or "none"
            raise TrainfleetError(f"the run did not recover: of {', '.join(PHASES)} it reached {reached}")
        marks = [self.killed, *(self.at[phase] for phase in PHASES)]
        spent = {
            phase: after - before for phase, before, after in zip(PHASES, marks, marks[1:], strict=False)
        }
        return spent | {"in all": marks[-1] - marks[0]}

    def _kill(self) -> None:
        if len(self.workers) < 2:
            raise TrainfleetError("the run has no second worker to kill")
        self.killed = time.monotonic()
        os.kill(self.workers[max(self.workers)], signal.SIGKILL)
        threading.Thread(target=self._await_end, args=(self.workers[0],), daemon=True).start()

    def _await_end(self, pid: int) -> None:
        import psutil

        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            while (
                process.is_running()
                and process.status() != psutil.STATUS_ZOMBIE
                and time.monotonic() < self.deadline
            ):
                time.sleep(0.01)
        self.at.setdefault("noticed", time.monotonic())

    def _after(self, event: Mapping[str, Any]) -> None:
        now = time.monotonic()
        if event["kind"] == "worker":
            self.at.setdefault("started", now)
        elif event["kind"] == "event" and event["what"] == "resumed":
            self.at["loaded"] = now
        elif event["kind"] == "step" and "loaded" in self.at:
            self.at["stepped"] = now
            raise Finished


def restart(recipe: str, place: str, changes: Sequence[str] = ()) -> dict[str, float]:
    """Kill one of two workers once; returns the seconds by phase and in total.

    Raises:
        TrainfleetError: the run failed, or did not recover.
    """
    monitor = RestartMonitor()
    limit = threading.Timer(LIMIT_S, os.kill, (os.getpid(), signal.SIGTERM))  # stops the launcher cleanly
    limit.start()
    try:
        with (
            tempfile.TemporaryDirectory(prefix="trainfleet-restart-") as folder,
            contextlib.suppress(Finished, Interrupted),
        ):
            start(
                Request(
                    recipe, (*CHANGES, "scaling.workers=2", *changes), on=place, run="run", storage=folder
                ),
                view=monitor,
            )
    finally:
        limit.cancel()
    return monitor.seconds()


def measure(
    recipe: str, rounds: int, sizes: Mapping[str, Sequence[str]], places: Sequence[str] = PLACES
) -> dict[str, Any]:
    """Measure everything and return the document that `--json` prints. Times are in seconds."""
    found: dict[str, dict[str, list[dict[str, float]]]] = {
        size: {place: [] for place in places} for size in sizes
    }
    for number in range(rounds):
        for size, changes in sizes.items():
            for place in places:
                print(f"round {number + 1}/{rounds}: {size}, {place}", file=sys.stderr)
                found[size][place].append(restart(recipe, place, changes))
    return {
        **command.environment(("torch", "ray")),
        "recipe": recipe,
        "rounds": rounds,
        "seconds": {
            size: {
                place: {
                    phase: command.summary([each[phase] for each in runs], 2) for phase in (*PHASES, "in all")
                }
                for place, runs in by_place.items()
            }
            for size, by_place in found.items()
        },
        "target": TARGET,
    }


def show(document: dict[str, Any]) -> None:
    """Print the tables of docs/benchmarks.md."""
    command.show_environment(document)
    print(f"{document['recipe']}, one of two workers killed, {document['rounds']} rounds; median (min-max)\n")
    print(f"| model | launcher | {' | '.join(PHASES)} | total | target |")
    print(f"|---|---|{'---|' * (len(PHASES) + 2)}")
    for size, by_place in document["seconds"].items():
        for place, phases in by_place.items():
            cells = " | ".join(f"{row['median']:.1f} s" for row in (phases[phase] for phase in PHASES))
            total = phases["in all"]
            span = f"{total['median']:.1f} s ({total['least']:.1f}-{total['most']:.1f})"
            print(f"| {size} | {place} | {cells} | {span} | <= {document['target']:g} s |")


def _chosen(name: str, smoke: bool) -> dict[str, Any]:
    if smoke:
        return measure(name or "lm-tiny", 1, {"tiny": SIZES["tiny"]}, PLACES[:1])
    return measure(name or "lm-tiny", 3, SIZES)


def main() -> int:
    """Measure and print; `lm-tiny` by default, in a smoke run with torchrun only."""
    return command.run(__doc__, "recipe", _chosen, show)


if __name__ == "__main__":
    sys.exit(main())
