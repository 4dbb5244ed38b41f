"""How long is a run away when a worker is killed? SIGKILL for one of two workers, until the workers that take
over have done a step.

    python -m benchmarks.restart [--recipe NAME] [--smoke] [--json]

Under torchrun and under Ray Train, with a tiny model and with one of 50 million parameters, and split by what
the time goes for:
noticing (the worker that was left has ended too), starting (new workers say that they are there), loading
(imports, meeting,
data, checkpoint) and the step. Easy to get wrong: this is processes and imports more than training, so a busy
machine shows in full.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
import os
import platform
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import command
from trainfleet.errors import Interrupted, TrainfleetError
from trainfleet.training.launch.request import Request
from trainfleet.training.launch.supervise import start
from trainfleet.training.runtime import local_resources

PLACES = ("torchrun", "local")
PHASES = ("noticed", "started", "loaded", "stepped")
TARGET = 10.0
SETTLED_S = 30.0
"""How long a run has been at work when it is struck: under Ray the processes that wait for it have imported
by then.
"""
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
    # About 12 x 4 x 1024^2 weights and little else; one short sample a rank, so that a step is no longer than
    # it must be.
    "50 M parameters": (
        "checkpoint.every=2",
        "workload.model.layers=4",
        "workload.model.width=1024",
        "workload.model.heads=16",
        "batch.global_batch=2",
        "batch.micro_batch=1",
    ),
}


class Seen(Exception):  # noqa: N818 - ends a run that has shown what it was started for
    """The step after the kill is done."""


class Watch:
    """Hears what a run's ranks say, kills the last of them when it has settled and saved twice, and notes
    when what happened.
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
        """Take one event in; called by the launcher.

        Raises:
            Seen: the step after the kill is done.
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

    def close(self) -> None:
        """Nothing was opened."""

    def seconds(self) -> dict[str, float]:
        """Seconds of each phase, and in all."""
        if self.killed is None:
            raise TrainfleetError(f"within {LIMIT_S:g} s the run did not come to its second checkpoint")
        if set(self.at) != set(PHASES):
            raise TrainfleetError(
                f"the run did not come back: of {', '.join(PHASES)} it came to {', '.join(self.at) or 'none'}"
            )
        marks = [self.killed, *(self.at[phase] for phase in PHASES)]
        spent = {
            phase: after - before for phase, before, after in zip(PHASES, marks, marks[1:], strict=False)
        }
        return spent | {"in all": marks[-1] - marks[0]}

    def _kill(self) -> None:
        if len(self.workers) < 2:
            raise TrainfleetError("there is no second worker to be killed")
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
            raise Seen


def restart(recipe: str, place: str, changes: Sequence[str] = ()) -> dict[str, float]:
    """Kill one of two workers once; seconds by phase and in all.

    Raises:
        TrainfleetError: the run failed, or did not come back.
    """
    watch = Watch()
    limit = threading.Timer(
        LIMIT_S, os.kill, (os.getpid(), signal.SIGTERM)
    )  # which the launcher takes as a wish to stop
    limit.start()
    try:
        with (
            tempfile.TemporaryDirectory(prefix="trainfleet-restart-") as folder,
            contextlib.suppress(Seen, Interrupted),
        ):
            start(
                Request(
                    recipe, (*CHANGES, "scaling.workers=2", *changes), on=place, run="run", storage=folder
                ),
                view=watch,
            )
    finally:
        limit.cancel()
    return watch.seconds()


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
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": local_resources.describe(),
        "load": round(os.getloadavg()[0], 2),
        "versions": {
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in ("torch", "ray")},
        },
        "recipe": recipe,
        "rounds": rounds,
        "seconds": {
            size: {
                place: {phase: _figures([each[phase] for each in runs]) for phase in (*PHASES, "in all")}
                for place, runs in by_place.items()
            }
            for size, by_place in found.items()
        },
        "target": TARGET,
    }


def _figures(times: list[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(times), 2),
        "least": round(min(times), 2),
        "most": round(max(times), 2),
    }


def show(document: dict[str, Any]) -> None:
    """Print the figures as they go into docs/benchmarks.md."""
    print(f"{document['date']}, {document['machine']}, load {document['load']} at the end")
    print(", ".join(f"{name} {version}" for name, version in document["versions"].items()))
    print(
        f"{document['recipe']}, one of two workers killed, {document['rounds']} rounds; medians, in brackets the least and the most\n"
    )
    print(
        f"| model | place | {' | '.join(PHASES)} | in all | target |\n|---|---|{'---|' * (len(PHASES) + 2)}"
    )
    for size, by_place in document["seconds"].items():
        for place, phases in by_place.items():
            cells = " | ".join(f"{row['median']:.1f} s" for row in (phases[phase] for phase in PHASES))
            whole = phases["in all"]
            print(
                f"| {size} | {place} | {cells} | {whole['median']:.1f} s ({whole['least']:.1f}-{whole['most']:.1f}) | <= {document['target']:g} s |"
            )


def _chosen(name: str, smoke: bool) -> dict[str, Any]:
    return (
        measure(name or "lm-tiny", 1, {"tiny": SIZES["tiny"]}, PLACES[:1])
        if smoke
        else measure(name or "lm-tiny", 3, SIZES)
    )


def main() -> int:
    """Measure and print; `lm-tiny` by default, in a smoke run under torchrun alone."""
    return command.run(__doc__, "recipe", _chosen, show)


if __name__ == "__main__":
    sys.exit(main())
