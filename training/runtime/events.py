"""Communication between a launcher and its ranks: variables, and events as JSON lines over a local socket.

Events do not use stdout, where Ray, torch and other libraries write. Their types are in `runs.schema`.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trainfleet.training.runtime.ray_events import SCHEME, EventSender

EVENTS = "TRAINFLEET_EVENTS"
"""Path of the launcher's Unix socket, or `stdout` for a remote launcher that reads a log. Without it, rank 0
prints
readable lines."""
STDOUT = "stdout"
FINAL_EVENTS = ("result", "error", "crash")
"""Events after which a rank may end."""

RUN_DIR = "TRAINFLEET_RUN_DIR"
STOP_FILE = "TRAINFLEET_STOP_FILE"
"""If this file exists, every rank saves and ends after its step."""
DETACH = "detach"
"""The name of a file next to it that asks a follower to leave its run alone."""
RAY_TEMP = "TRAINFLEET_RAY_TEMP"
"""Session folder of a local Ray; the launcher removes it."""
RAY_NODES = "TRAINFLEET_RAY_NODES"
"""Set by a launcher whose Ray cluster has this number of nodes, some of which may still join."""
RANK_CPUS = "TRAINFLEET_RANK_CPUS"
"""Set by a launcher whose Ray nodes are sized for their ranks: the CPUs of Ray that one rank reserves."""
ALLOW_CHANGES = "TRAINFLEET_ALLOW_CHANGES"
"""Comma-separated recipe keys that may differ from the checkpoint's."""
LAUNCH = "TRAINFLEET_LAUNCH"
"""Identifies a launch, so that its restarted workers keep its write access."""
NOTIFIED_LAUNCH = "TRAINFLEET_NOTIFIED_LAUNCH"
"""The same for the messages of a run, where each driver of a launch has its own LAUNCH (SkyPilot)."""
SUBMITTED = "TRAINFLEET_SUBMITTED"
"""Set for a driver whose failure is reported by its submitter, which knows whether it starts again."""
USD_PER_HOUR = "TRAINFLEET_USD_PER_HOUR"
"""The price of all machines of the run, where it is known."""
JOB = "TRAINFLEET_JOB"
"""What the ranks do instead of training, as JSON: `trainfleet.training.inference.job.Job`."""
PARENT = "TRAINFLEET_PARENT"
"""Process id of the launcher, with which its workers end."""


def price_in(env: Mapping[str, str]) -> float | None:
    """The value of USD_PER_HOUR; None without one."""
    return float(env[USD_PER_HOUR]) if env.get(USD_PER_HOUR) else None


def notified_launch(env: Mapping[str, str]) -> str:
    """What identifies the launch in messages about the run; without a launcher, the parent process."""
    return env.get(NOTIFIED_LAUNCH) or env.get(LAUNCH) or f"process-{os.getppid()}"


class EventSink:
    """Sends a rank's events to the launcher."""

    def __init__(self, address: str | None) -> None:
        self._socket: socket.socket | None = None
        self._sender: EventSender | None = None
        self._lock = threading.Lock()
        self._stdout = address == STDOUT
        self.has_listener = bool(address)
        if address and address.startswith(SCHEME):
            with contextlib.suppress(Exception):  # Ray may be ending
                self._sender = EventSender(address)
        elif address and not self._stdout:
            channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            with contextlib.suppress(OSError):
                channel.connect(address)
                self._socket = channel

    def send(self, kind: str, **fields: Any) -> None:
        """Send one event. Never fails, because a run continues without its launcher."""
        line = json.dumps({"kind": kind, **fields}, default=str) + "\n"
        with self._lock, contextlib.suppress(OSError):
            if self._stdout:
                sys.stdout.write(line)
                sys.stdout.flush()
            elif self._sender is not None:
                with contextlib.suppress(Exception):  # Ray may be ending
                    self._sender.send(line, kind in FINAL_EVENTS)
            elif self._socket is not None:
                self._socket.sendall(line.encode())

    def counts(self) -> dict[str, int]:
        """Further values of the rows of metrics."""
        return {}

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()


class Listener:
    """Receives the events of every rank in the launcher."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._queue: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._readers: list[threading.Thread] = []
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server.bind(str(path))
        os.chmod(path, 0o600)
        self._server.listen(64)
        threading.Thread(target=self._accept, daemon=True, name="events").start()

    def _accept(self) -> None:
        while True:
            try:
                channel, _ = self._server.accept()
            except OSError:
                return
            reader = threading.Thread(target=self._read, args=(channel,), daemon=True, name="events-reader")
            reader.start()
            self._readers.append(reader)

    def _read(self, channel: socket.socket) -> None:
        with channel, contextlib.suppress(OSError), channel.makefile("r", encoding="utf-8") as lines:
            for line in lines:
                with contextlib.suppress(json.JSONDecodeError):  # a killed rank's last line may be truncated
                    self._queue.put(json.loads(line))

    def drain(self) -> Iterator[dict[str, Any]]:
        """Events that have arrived since the last call."""
        while True:
            try:
                yield self._queue.get_nowait()
            except queue.Empty:
                return

    def close(self) -> None:
        """Stop listening, after the events of ended processes are read."""
        with contextlib.suppress(OSError):  # wakes the thread that waits in accept
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for reader in self._readers:
            reader.join(1.0)
