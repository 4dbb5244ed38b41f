"""How the launcher and its ranks talk: variables down, and up JSON lines over a local socket.

Used by `trainfleet.training.run` (sends) and `trainfleet.training.launch` (listens). Not by stdout: there
Ray, torch and Python libraries talk, and
a line of theirs must never drown ours. Easy to get wrong: a launcher that is gone must not stop the run, so
sending never fails.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainfleet.training.runtime.ray_events import SCHEME, Post

EVENTS = "TRAINFLEET_EVENTS"
"""Path of the launcher's Unix socket. `stdout`: JSON lines there, for a launcher that reads a log far away.
Unset when nobody listens,
then people's lines go to stdout."""
STDOUT = "stdout"
LAST_WORDS = ("result", "error", "crash")
"""Events after which a rank may be gone."""


RUN_DIR = "TRAINFLEET_RUN_DIR"
STOP_FILE = "TRAINFLEET_STOP_FILE"
"""When this file appears, every rank saves and ends after its step."""
RAY_TEMP = "TRAINFLEET_RAY_TEMP"
"""Where a Ray of our own keeps its session; the launcher removes it."""
RAY_FOR_RUN = "TRAINFLEET_RAY_FOR_RUN"
"""Set by a launcher that made the Ray of RAY_ADDRESS for this run alone, to end with it."""
ALLOW_CHANGES = "TRAINFLEET_ALLOW_CHANGES"
"""Keys of the recipe, with commas between, that may differ from the checkpoint's."""
LAUNCH = "TRAINFLEET_LAUNCH"
"""Names a launch, so that its restarted workers may go on where the ones before them were at work."""
PARENT = "TRAINFLEET_PARENT"
"""Set by a launcher: its workers die with it."""


class Sink:
    """Where a rank sends its events; without a listener rank 0's become lines on stdout."""

    def __init__(self, address: str | None) -> None:
        self._socket: socket.socket | None = None
        self._post: Post | None = None
        self._lock = threading.Lock()
        self._stdout = address == STDOUT
        self.listened = bool(address)
        if address and address.startswith(SCHEME):
            with contextlib.suppress(Exception):  # Ray may be ending
                self._post = Post(address)
        elif address and not self._stdout:
            channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            with contextlib.suppress(OSError):
                channel.connect(address)
                self._socket = channel

    def send(self, kind: str, **fields: Any) -> None:
        """Send one event; lost without a word when the listener is gone."""
        line = json.dumps({"kind": kind, **fields}, default=str) + "\n"
        with self._lock, contextlib.suppress(OSError):
            if self._stdout:
                sys.stdout.write(line)
                sys.stdout.flush()
            elif self._post is not None:
                with contextlib.suppress(Exception):  # Ray may be ending
                    self._post.send(line, kind in LAST_WORDS)
            elif self._socket is not None:
                self._socket.sendall(line.encode())

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()


class Listener:
    """The launcher's end: collects events of every rank in one queue."""

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
                with contextlib.suppress(json.JSONDecodeError):  # the last line of a killed rank may be cut
                    self._queue.put(json.loads(line))

    def drain(self) -> Iterator[dict[str, Any]]:
        """Events that have arrived since the last call."""
        while True:
            try:
                yield self._queue.get_nowait()
            except queue.Empty:
                return

    def close(self) -> None:
        """Stop listening, after what the ended processes sent has been read."""
        with contextlib.suppress(OSError):  # wakes the thread that waits in accept
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for reader in self._readers:
            reader.join(1.0)
