"""Launches in their own process, as a user starts them: wait for a step, kill, read the rows."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

LIMIT_S = 280
TIMED = (
    "samples_per_second",
    "tokens_per_second",
    "mfu",
    "data_wait",
    "communication",
    "least_data_wait",
    "slowest_data_wait",
    "slowest_data_wait_rank",
    "slowest_data_wait_node",
    "slowest_backward_seconds",
    "step_seconds",
    "checkpoint_seconds",
    "validation_seconds",
    "eta_seconds",
)
"""Fields of a row that depend on the clock. All others must be equal bit for bit."""


def wait_for(what: Callable[[], Any], why: str, limit_s: float = LIMIT_S) -> Any:
    """Poll until `what()` is true, and return its value. After the limit, the test fails with `why`."""
    deadline = time.monotonic() + limit_s
    while not (found := what()):
        assert time.monotonic() < deadline, f"waited {limit_s:g} s: {why}"
        time.sleep(0.02)
    return found


def running(pids: set[int]) -> set[int]:
    """Those of `pids` that are still running."""
    left = set()
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                left.add(pid)
    return left


@dataclass
class Launched:
    """One `trainfleet` process and every process that was seen below it."""

    process: subprocess.Popen[str]
    run_dir: Path
    seen: set[int] = field(default_factory=set)

    def look(self) -> set[int]:
        """Record the processes below the launcher; returns all that were ever seen."""
        with contextlib.suppress(psutil.NoSuchProcess):
            self.seen |= {child.pid for child in psutil.Process(self.process.pid).children(recursive=True)}
        return self.seen

    def workers(self) -> list[psutil.Process]:
        """The ranks of a launch with torchrun, which are forked from another rank process."""
        below = psutil.Process(self.process.pid).children(recursive=True)
        forks = {
            child.pid: child
            for child in below
            if any("multiprocessing.forkserver" in word for word in child.cmdline())
        }
        return [child for child in forks.values() if child.ppid() in forks]

    def until_step(self, step: int) -> None:
        """Wait until metrics.jsonl has a row of `step` or later."""

        def there() -> bool:
            self.look()
            assert self.process.poll() is None, (
                f"ended with {self.process.returncode} before step {step}: {self.finish()}"
            )
            return any(row["step"] >= step for row in rows(self.run_dir))

        wait_for(there, f"no step {step}")

    def kill_all(self) -> None:
        """Send SIGKILL to the launcher and everything below it, the launcher first."""
        below = self.look()
        for pid in (self.process.pid, *below):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.communicate()
        self.gone()

    def gone(self) -> None:
        """Wait until every process that was seen has ended."""
        wait_for(lambda: not running(self.seen), f"left behind: {running(self.seen)}", 60)

    def finish(self, limit_s: float = LIMIT_S) -> tuple[int, str, str]:
        """Wait for the end; returns code, stdout, stderr."""
        stdout, stderr = self.process.communicate(timeout=limit_s)
        return self.process.returncode, stdout, stderr


def rows(run_dir: Path) -> list[dict[str, Any]]:
    """The complete rows of a run so far."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        for line in (run_dir / "metrics.jsonl").read_text(errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
    return found


def untimed(run_dir: Path) -> list[dict[str, Any]]:
    """The rows without the fields that depend on the clock."""
    return [{key: value for key, value in row.items() if key not in TIMED} for row in rows(run_dir)]


class Launcher:
    """Starts `trainfleet launch` on a small text. Every run logs each step and can be killed at each step."""

    def __init__(self, storage: Path, text: Path, cache: Path) -> None:
        self.storage = storage
        self.environment = os.environ | {"TRAINFLEET_CACHE": str(cache), "NO_COLOR": "1", "COLUMNS": "160"}
        self.overrides = [
            f"workload.data.source={text}",
            "workload.data.glob='**/*.txt'",
            "workload.data.validation_share=0.15",
            "workload.data.test_share=0.15",
            "steps=24",
            "optimizer.warmup=1",
            "validation.every=8",
            "checkpoint.every=5",
            "log.every=1",
        ]
        self.started: list[Launched] = []

    def __call__(self, name: str, *arguments: str, on: str = "torchrun", **environment: str) -> Launched:
        command = [
            str(Path(sys.executable).with_name("trainfleet")),
            "launch",
            "lm-tiny",
            *self.overrides,
            *arguments,
        ]
        process = subprocess.Popen(
            [*command, "--on", on, "--run", name, "--storage", str(self.storage)],
            env=self.environment | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        launched = Launched(process, self.storage / name)
        self.started.append(launched)
        return launched

    def end(self) -> None:
        """End every process, whatever the test did."""
        for launched in self.started:
            if launched.process.poll() is None:
                launched.kill_all()
