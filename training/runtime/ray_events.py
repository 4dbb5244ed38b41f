"""Brings the events of ranks on other machines to the stdout of the process that drives them, through Ray
itself.

Used by `trainfleet.training.run` when TRAINFLEET_EVENTS is `stdout`: a launcher far away reads that stdout as
a log. Easy to get wrong:
Ray carries no order between callers and nothing from a worker that has died, so only rank 0's steps and every
rank's errors matter.
"""

from __future__ import annotations

import contextlib
import secrets
import sys
import threading
from collections.abc import Iterator
from typing import Any

NAMESPACE = "trainfleet"
SCHEME = "ray:"
LOOK_EVERY_S = 0.25


class Mailbox:
    """What a Ray actor near the driver holds: lines that nobody has fetched yet."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def put(self, line: str) -> None:
        self._lines.append(line)

    def take(self) -> list[str]:
        lines, self._lines = self._lines, []
        return lines


class Post:
    """A rank's way to the mailbox of an address `ray:NAME`."""

    def __init__(self, address: str) -> None:
        import ray

        self._mailbox: Any = ray.get_actor(address.removeprefix(SCHEME), namespace=NAMESPACE)

    def send(self, line: str, last_words: bool) -> None:
        """Send a line; the last words of a rank wait until they have arrived, for the rank may die next."""
        import ray

        receipt = self._mailbox.put.remote(line)
        if last_words:
            ray.get(receipt, timeout=30)


@contextlib.contextmanager
def to_stdout() -> Iterator[str]:
    """The address that ranks send to; what they send is written to stdout while the block lasts. Ray must be
    connected.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    name = f"events-{secrets.token_hex(6)}"
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    mailbox: Any = (
        ray.remote(Mailbox)
        .options(name=name, namespace=NAMESPACE, num_cpus=0, scheduling_strategy=here)
        .remote()
    )
    over = threading.Event()

    def pump() -> None:
        for line in ray.get(mailbox.take.remote(), timeout=60):
            sys.stdout.write(line)
        sys.stdout.flush()

    def keep_pumping() -> None:
        while not over.wait(LOOK_EVERY_S):
            with contextlib.suppress(Exception):
                pump()

    thread = threading.Thread(target=keep_pumping, daemon=True, name="events-relay")
    thread.start()
    try:
        yield SCHEME + name
    finally:
        over.set()
        thread.join(10)
        with contextlib.suppress(Exception):
            pump()
            ray.kill(mailbox)
