"""The child processes of the `ray up` follower: Ray's command line, the ssh tunnel, and their output."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import IO, Any

from trainfleet.training.launch.remote.follower import print_line

RAY = [sys.executable, "-m", "ray.scripts.scripts"]
TICK_S = 0.1
RETRY_S = 2.0
ERROR_SIGNS = (
    "error",
    "lacks",
    "denied",
    "refused",
    "not found",
    "failed",
    "unreachable",
    "no route",
    "timed out",
    "could not",
    "cannot",
)


STDERR = 2
"""The file descriptor of this process."""


def start(
    command: Sequence[str], *, stdout: int | None, env: dict[str, str] | None = None
) -> subprocess.Popen[Any]:
    """Start a child process with both its outputs in `stdout`."""
    quiet = {**(env or os.environ), "RAY_USAGE_STATS_ENABLED": "0", "RAY_DISABLE_IMPORT_WARNING": "1"}
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.STDOUT, env=quiet, text=True
    )


def run(command: Sequence[str], timeout_s: float) -> int | None:
    """Run a child process to its end; its exit code, or None if it took too long. Its outputs are on stderr:
    what a command prints with `--json` is on stdout.
    """
    child = start(command, stdout=STDERR)
    try:
        return child.wait(timeout_s)
    except subprocess.TimeoutExpired:
        end(child)
        return None


def end(child: subprocess.Popen[Any]) -> None:
    """End a child process: SIGTERM, then SIGKILL."""
    with contextlib.suppress(ProcessLookupError):
        child.terminate()
    try:
        child.wait(5)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


@contextlib.contextmanager
def tunnel(cluster_file: str, remote_port: int, local_port: int = 0) -> Iterator[str]:
    """The head's dashboard on a port of this machine, by ssh, reopened when it breaks; yields its address."""
    port = local_port or _free_port()
    closed = threading.Event()
    command = [*RAY, "dashboard", "--no-config-cache", "--port", str(port)]
    command += ["--remote-port", str(remote_port), cluster_file]

    def keep_open() -> None:
        while not closed.is_set():
            child = start(command, stdout=subprocess.DEVNULL)
            while child.poll() is None and not closed.wait(TICK_S):
                pass
            end(child)
            closed.wait(RETRY_S)

    thread = threading.Thread(target=keep_open, daemon=True, name="tunnel")
    thread.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        closed.set()
        thread.join(30)


class Tail:
    """Prints a child's output, and remembers the last lines."""

    def __init__(self, child: subprocess.Popen[Any]) -> None:
        self._lines: list[str] = []
        assert child.stdout is not None
        self._thread = threading.Thread(target=self._read, args=(child.stdout,), daemon=True)
        self._thread.start()

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            print_line(line.rstrip("\n"))
            self._lines = [*self._lines[-40:], line.strip()]

    def errors(self) -> list[str]:
        """The lines that report an error, at most four. Waits for the end of the output."""
        self._thread.join(10)
        return [line for line in self._lines if any(sign in line.lower() for sign in ERROR_SIGNS)][-4:]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
