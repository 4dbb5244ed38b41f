"""Sends the events of ranks on other machines through Ray to the driver's stdout, which a remote launcher
reads
as a log.

Ray does not order events of different ranks, and loses pending ones of a dead worker.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

NAMESPACE = "trainfleet"
SCHEME = "ray:"
ERROR_LINE = '{"kind": "error"'
"""How EventSink starts the line of an error."""
POLL_INTERVAL_S = 0.25


class EventQueue:
    """A Ray actor on the driver's machine with the lines that were not fetched yet."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def put(self, line: str) -> None:
        self._lines.append(line)

    def take(self) -> list[str]:
        lines, self._lines = self._lines, []
        return lines


class EventSender:
    """Sends a rank's lines to the queue at an address `ray:NAME`."""

    def __init__(self, address: str) -> None:
        import ray

        self._queue: Any = ray.get_actor(address.removeprefix(SCHEME), namespace=NAMESPACE)

    def send(self, line: str, wait: bool) -> None:
        """Send a line; with `wait`, until it has arrived, because the rank may end next."""
        import ray

        receipt = self._queue.put.remote(line)
        if wait:
            ray.get(receipt, timeout=30)


@contextlib.contextmanager
def to_stdout(on_error: Callable[[dict[str, Any]], Any] = lambda _: None) -> Iterator[str]:
    """The address for ranks; what they send is written to stdout inside the context. Requires a connected
    Ray. `on_error` gets an event `error` before it is written: its reader may end this process.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    name = f"events-{secrets.token_hex(6)}"
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    events: Any = (
        ray.remote(EventQueue)
        .options(name=name, namespace=NAMESPACE, num_cpus=0, scheduling_strategy=here)
        .remote()
    )
    ended = threading.Event()

    def pump() -> None:
        for line in ray.get(events.take.remote(), timeout=60):
            if line.startswith(ERROR_LINE):
                on_error(json.loads(line))
            sys.stdout.write(line)
        sys.stdout.flush()

    def keep_pumping() -> None:
        while not ended.wait(POLL_INTERVAL_S):
            with contextlib.suppress(Exception):
                pump()

    thread = threading.Thread(target=keep_pumping, daemon=True, name="events-relay")
    thread.start()
    try:
        yield SCHEME + name
    finally:
        ended.set()
        thread.join(10)
        with contextlib.suppress(Exception):
            pump()
            ray.kill(events)
