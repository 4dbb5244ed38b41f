"""Pooled processes that run programs in forks and keep the provider SDKs imported between them.

A process belongs to one rehearsal at a time. Within `sharing`, later rehearsals of the same command reuse
idle processes.
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
    """A process that waits for programs to run."""

    key: tuple[str, str]
    """Interpreter and PYTHONPATH."""
    process: subprocess.Popen[str]
    errors: IO[str] = field(repr=False)
    """stderr of the process itself, for example of an interpreter that fails to start."""
    busy: bool = False

    def run(self, described: dict[str, Any]) -> int:
        """Run a program; return its exit code, or -1 if the process died."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.busy = True
        try:
            self.process.stdin.write(json.dumps(described) + "\n")
            self.process.stdin.flush()
            code = int(self.process.stdout.readline() or -1)
        except (OSError, ValueError):  # the process was killed in the meantime
            return -1
        self.busy = False
        return code

    def last_output(self) -> str:
        """Return the last line of stderr, or an empty string."""
        self.errors.seek(0)
        return (self.errors.read().strip().splitlines() or [""])[-1]

    def kill(self) -> None:
        """Kill the process and its forks."""
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
    """Idle processes for the next rehearsal."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    holders: int = 0
    waiting: list[PooledProcess] = field(default_factory=list)


_IDLE = _Idle()


@contextlib.contextmanager
def sharing() -> Iterator[None]:
    """Let the rehearsals in this process reuse pooled processes; end the idle ones on exit."""
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
    """Return an idle process of this interpreter, or a new one. Each run passes its own environment."""
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
    errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - closed with the process
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
    """Return a process to the pool within `sharing`; otherwise, or if it is busy, end it."""
    with _IDLE.lock:
        kept = pooled.usable and _IDLE.holders > 0
        if kept:
            _IDLE.waiting.append(pooled)
    if not kept:
        pooled.kill()
