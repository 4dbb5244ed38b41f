"""Warm processes: each runs programs one after another in forks of itself, and keeps the provider SDKs
imported between them.

A process belongs to one rehearsal at a time; where rehearsals follow each other in one command (`sharing`),
the next takes over what the last left idle.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

PROGRAM = Path(__file__).with_name("program.py")


@dataclass
class PooledProcess:
    """One process that waits for programs to run."""

    key: tuple[str, str]
    """Interpreter and PYTHONPATH."""
    process: subprocess.Popen[str]
    errors: IO[str] = field(repr=False)
    """What the process itself writes to stderr, as an interpreter does that cannot start."""
    busy: bool = False

    def run(self, described: dict[str, Any]) -> int:
        """Run a program to its end; returns its exit code, -1 where the process ended."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.busy = True
        try:
            self.process.stdin.write(json.dumps(described) + "\n")
            self.process.stdin.flush()
            code = int(self.process.stdout.readline() or -1)
        except (OSError, ValueError):  # the process was killed meanwhile
            return -1
        self.busy = False
        return code

    def last_output(self) -> str:
        """The last line of its stderr, or nothing."""
        self.errors.seek(0)
        return (self.errors.read().strip().splitlines() or [""])[-1]

    def kill(self) -> None:
        """End the process and the forks in which programs run."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.errors):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    @property
    def usable(self) -> bool:
        return not self.busy and self.process.poll() is None


@dataclass
class _Idle:
    """What waits for the next rehearsal."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    holders: int = 0
    waiting: list[PooledProcess] = field(default_factory=list)


_IDLE = _Idle()


@contextlib.contextmanager
def sharing() -> Iterator[None]:
    """Let rehearsals of this process hand their warm processes on to each other; at the end the idle ones
    end.
    """
    with _IDLE.lock:
        _IDLE.holders += 1
    try:
        yield
    finally:
        with _IDLE.lock:
            _IDLE.holders -= 1
            ended, _IDLE.waiting = (_IDLE.waiting, []) if not _IDLE.holders else ([], _IDLE.waiting)
        for pooled in ended:
            pooled.kill()


def take(python: str, environment: dict[str, str]) -> PooledProcess:
    """Return a process of this interpreter: one that waits, or a new one. Each program it runs brings its own
    environment.
    """
    key = (python, environment.get("PYTHONPATH", ""))
    with _IDLE.lock:
        _IDLE.waiting, ended = (
            [pooled for pooled in _IDLE.waiting if pooled.usable],
            [pooled for pooled in _IDLE.waiting if not pooled.usable],
        )
        found = next((pooled for pooled in _IDLE.waiting if pooled.key == key), None)
        if found is not None:
            _IDLE.waiting.remove(found)
    for pooled in ended:
        pooled.kill()
    if found is not None:
        return found
    errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - closed when the process is ended
    process = subprocess.Popen(
        [python, "-u", str(PROGRAM), "--serve"],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        start_new_session=True,
    )
    return PooledProcess(key, process, errors)


def give_back(pooled: PooledProcess) -> None:
    """End a process, or keep it for the next rehearsal where that is requested and no program runs in it."""
    with _IDLE.lock:
        kept = pooled.usable and _IDLE.holders > 0
        if kept:
            _IDLE.waiting.append(pooled)
    if not kept:
        pooled.kill()
