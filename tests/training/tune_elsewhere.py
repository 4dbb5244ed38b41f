"""A launcher whose runs are elsewhere: each is a thread of the test, which outlives its launch.

The launch writes a job, which `Elsewhere` runs; the run keeps the files of a real one. `python -m
tests.training.tune_elsewhere SPEC.json` is the launcher's follower.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainfleet.errors import InputError, Problem, TrainfleetError
from trainfleet.files import write_whole
from trainfleet.training.launch.base import Launcher
from trainfleet.training.launch.options import LaunchOptions
from trainfleet.training.launch.remote.follower import (
    Detached,
    FollowerSpec,
    Stopped,
    detach_requested,
    follow,
    stop_requested,
)
from trainfleet.training.launch.request import Target
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.runs.reader import read_run
from trainfleet.training.runtime.events import EventSink
from trainfleet.training.stores import open_store
from trainfleet.training.stores.lease import IN_PROGRESS, Lease, remove_stop, request_stop

SITE = """
from trainfleet.training.launch import base
base.LAUNCHERS["elsewhere"] = "tests.training.tune_elsewhere:ElsewhereLauncher"
"""
STEPS = (4, 8, 12, 16)


class Options(LaunchOptions):
    """It has none."""


class Spec(FollowerSpec):
    """The message to the follower."""

    jobs: str
    home: str
    name: str
    lr: float


class ElsewhereLauncher(Launcher[Options]):
    """Hands a run over as a file."""

    remote = detachable = True
    grace_seconds = 20.0
    options_model = Options

    def check(self, recipe: Recipe, target: Target) -> None:
        """Everything can run there."""

    def command(self, recipe: Recipe, file: Path, target: Target) -> list[str]:
        spec = file.with_name("spec.json")
        jobs = Path(recipe.storage).parent.parent / "jobs"
        home, lr = str(target.run_dir), recipe.optimizer.lr
        Spec(detach=False, within_s=1.0, jobs=str(jobs), home=home, name=recipe.name, lr=lr).write(spec)
        return [sys.executable, "-m", "tests.training.tune_elsewhere", str(spec)]


def follow_run(spec: Spec, sink: EventSink) -> int:
    """Hand the run over and follow it until it ends, is stopped or is left alone."""
    job, home = Path(spec.jobs, spec.name), Path(spec.home)
    if job.exists():
        raise InputError(IN_PROGRESS, [Problem(spec.name, "another launch started it")])
    job.parent.mkdir(exist_ok=True)
    write_whole(job, json.dumps({"home": spec.home, "lr": spec.lr}))
    while job.exists():
        if detach_requested():
            Detached(job=spec.name, how=["it continues"]).send(sink)
            return 0
        if stop_requested():
            request_stop(open_store(spec.home))
            while job.exists():
                time.sleep(0.02)
            raise Stopped
        time.sleep(0.02)
    record = read_run(home)
    if record["status"] == "failed":
        raise TrainfleetError(record["error"])
    step = record["step"]
    sink.send("step", step=step, total=STEPS[-1])
    sink.send("result", status=record["status"], step=step, metrics={}, resumed_from=0, checkpoint=None)
    return 0


@dataclass
class Elsewhere:
    """Runs the jobs of a folder, each in a thread.

    Attributes:
        folder: where `jobs` is.
        held: the names of runs that wait after their first validation.
        fails: how often the run of a name still fails after its first validation.
        started: the names of the runs in the order of their starts.
        at_once: the largest number of runs at the same time.
    """

    folder: Path
    held: set[str] = field(default_factory=set)
    fails: dict[str, int] = field(default_factory=dict)
    started: list[str] = field(default_factory=list)
    at_once: int = 0
    _ended: threading.Event = field(default_factory=threading.Event)

    def environment(self, root: Path) -> dict[str, str]:
        """The environment in which `--on elsewhere` exists."""
        site = self.folder / "site"
        site.mkdir(exist_ok=True)
        (site / "sitecustomize.py").write_text(SITE)
        return {"PYTHONPATH": f"{site}:{root}"}

    def running(self) -> set[str]:
        """The names of the runs that have not ended."""
        return {each.name for each in (self.folder / "jobs").glob("[!.]*") if "." not in each.name}

    @contextlib.contextmanager
    def serve(self) -> Iterator[Elsewhere]:
        """Take jobs inside the block."""
        server = threading.Thread(target=self._serve, daemon=True)
        server.start()
        try:
            yield self
        finally:
            self._ended.set()
            server.join()

    def _serve(self) -> None:
        threads: dict[str, threading.Thread] = {}
        while not self._ended.wait(0.02):
            for name in self.running():
                if name not in threads or not threads[name].is_alive():
                    self.started.append(name)
                    threads[name] = threading.Thread(target=self._train, args=(name,), daemon=True)
                    threads[name].start()
            self.at_once = max(self.at_once, len(self.running()))

    def _train(self, name: str) -> None:
        job = self.folder / "jobs" / name
        spec = json.loads(job.read_text())
        home = Path(spec["home"])
        lease = Lease(open_store(str(home)), name, heartbeat_s=0.1)
        lease.acquire()
        done = [json.loads(line)["step"] for line in _text(home / "metrics.jsonl").splitlines()]
        _update(
            home, status="running", starts=[*read_run(home).get("starts", []), {"at": "", "from_step": 0}]
        )
        status, error = "finished", ""
        for step in (each for each in STEPS if each not in done):
            # The longer it trains, the better; the smaller `lr`, the better.
            row = {"kind": "validation", "step": step, "validation/loss": spec["lr"] + 1 / step}
            with (home / "metrics.jsonl").open("a") as file:
                file.write(json.dumps(row) + "\n")
            done.append(step)
            if self.fails.get(name):
                self.fails[name] -= 1
                status, error = "failed", f"the loss of {name} is NaN"
                break
            until = time.monotonic() + 0.8
            while (time.monotonic() < until or name in self.held) and not lease.stop_requested:
                time.sleep(0.02)
            if lease.stop_requested and step != STEPS[-1]:
                status = "stopped"
                break
        asked = STEPS[-1] if status == "finished" else 0
        _update(home, status=status, step=done[-1], asked=asked, **({"error": error} if error else {}))
        if lease.stop_requested:
            remove_stop(lease.store)
        lease.release()
        job.unlink()


def _text(file: Path) -> str:
    return file.read_text() if file.exists() else ""


def _update(home: Path, **facts: Any) -> None:
    write_whole(home / "run.json", json.dumps({**read_run(home), **facts}))


if __name__ == "__main__":
    sys.exit(follow(Spec, follow_run))
