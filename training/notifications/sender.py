"""Sends a run's messages from threads of their own, each once, also across restarts.

A file of the run's storage for each delivered message lets another process of the same launch know of it. It
is written after the delivery: a process that is killed in between sends the message again, with the same id.
"""

from __future__ import annotations

import hashlib
import queue
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trainfleet.errors import TrainfleetError
from trainfleet.training.notifications import delivery
from trainfleet.training.notifications.delivery import Endpoint
from trainfleet.training.notifications.messages import Message
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.runs.storage import NOTIFICATIONS
from trainfleet.training.stores import NotFoundError, RetryPolicy, is_remote, open_store

CLOSE_S = 10.0
"""How long the end of a run waits for messages that are still being sent."""
MAX_WAITING = 100
"""Messages that wait for an address; further ones are dropped."""
STORE_RETRY = RetryPolicy(2, 0.5, 0.5, 10.0)

Dropped = Callable[[str], Any]


class Delivered:
    """Which messages were delivered, in the run's storage."""

    def __init__(self, recipe: Recipe, run_dir: Path) -> None:
        url = recipe.home_url()
        self._store = open_store(url if is_remote(url) else str(run_dir), STORE_RETRY)

    def has(self, name: str) -> bool:
        """Whether a message was delivered. A storage that does not answer does not prevent a message."""
        try:
            self._store.read(f"{NOTIFICATIONS}{name}")
        except NotFoundError:
            return False
        except TrainfleetError:
            return False
        return True

    def add(self, name: str) -> None:
        """Record a delivery."""
        try:
            self._store.put(f"{NOTIFICATIONS}{name}", b"")
        except TrainfleetError:
            return  # a process that is started again may send it twice, with the same id


class Notifier:
    """Sends the messages of one process of a run. Every method returns at once, except `close`."""

    def __init__(
        self, recipe: Recipe, run_dir: Path, launch: str, env: Mapping[str, str], on_dropped: Dropped
    ) -> None:
        """`on_dropped` is called, from any thread, with a sentence for each message that cannot be sent."""
        self.recipe, self.launch, self.dropped = recipe, launch, 0
        url = recipe.home_url()
        self._home = url if is_remote(url) else str(run_dir.absolute())
        self._on_dropped, self._lock = on_dropped, threading.Lock()
        self._ended = threading.Event()
        self._delivered = Delivered(recipe, run_dir)
        found, problems = delivery.endpoints(recipe.notifications, env)
        self._channels = [_Channel(each, self) for each in found]
        for problem in problems:
            self._on_dropped(f"no notifications to {problem.where}: {problem.what}")

    def send(
        self, event: str, text: str, details: Mapping[str, Any], *, key: str = "", whole_run: bool = False
    ) -> None:
        """Send a message, unless the recipe leaves out its event or it was sent before.

        Args:
            event: `start`, `failure`, `preemption`, `end` or `budget`.
            text: one sentence for people.
            details: plain values for programs.
            key: distinguishes messages of one event; by default there is one per launch.
            whole_run: whether it is sent once for the run and not once for each launch.
        """
        if event != "test" and event not in self.recipe.notifications.events:
            return
        # A receiver may get messages of many runs, and drops those whose id it has seen.
        parts = (
            [event, _digest(f"{self._home} {key}")]
            if whole_run
            else [self.launch, event, *([_digest(key)] if key else [])]
        )
        facts = {"storage": self.recipe.home_url(), **details}
        message = Message("-".join(parts), event, self.recipe.name, self.launch, text, facts)
        for channel in self._channels:
            channel.put(message)

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Wait until the messages are sent, at most `timeout_s`; those that are left are dropped."""
        deadline = time.monotonic() + timeout_s
        for channel in self._channels:
            channel.finish(max(0.0, deadline - time.monotonic()))
        self._ended.set()

    def was_delivered(self, message: Message, endpoint: Endpoint) -> bool:
        """Whether this or another process has delivered it."""
        return self._delivered.has(_file(message, endpoint))

    def record(self, message: Message, endpoint: Endpoint) -> None:
        """Note that it was delivered."""
        self._delivered.add(_file(message, endpoint))

    def drop(self, message: Message, endpoint: Endpoint, why: str) -> None:
        """Report a message that was not delivered."""
        with self._lock:
            self.dropped += 1
        self._on_dropped(f"the notification `{message.event}` did not reach {endpoint.key}: {why}")

    def wait(self, seconds: float) -> bool:
        """Wait between two attempts; True: this process ends."""
        return self._ended.wait(seconds)


class _Channel:
    """The messages to one address, in order. A slow server delays no other."""

    def __init__(self, endpoint: Endpoint, owner: Notifier) -> None:
        self._endpoint, self._owner = endpoint, owner
        self._waiting: queue.Queue[Message | None] = queue.Queue(MAX_WAITING)
        self._current: Message | None = None
        self._thread = threading.Thread(target=self._work, daemon=True, name=f"notify-{endpoint.kind}")
        self._thread.start()

    def put(self, message: Message) -> None:
        try:
            self._waiting.put_nowait(message)
        except queue.Full:
            self._owner.drop(message, self._endpoint, f"{MAX_WAITING} others wait")

    def finish(self, timeout_s: float) -> None:
        try:
            self._waiting.put_nowait(None)
        except queue.Full:
            timeout_s = 0.0
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            left = [self._current, *self._waiting.queue]
            for message in filter(None, left):
                self._owner.drop(message, self._endpoint, "the run ended before the server accepted it")

    def _work(self) -> None:
        while (message := self._waiting.get()) is not None:
            self._current = message
            try:
                self._send(message)
            except Exception as error:  # noqa: BLE001 - later messages must still be sent
                self._owner.drop(message, self._endpoint, type(error).__name__)
            self._current = None

    def _send(self, message: Message) -> None:
        if self._owner.was_delivered(message, self._endpoint):
            return
        why = delivery.deliver(self._endpoint, message, self._owner.wait)
        if not why:
            self._owner.record(message, self._endpoint)
        elif not self._owner.wait(0):
            self._owner.drop(message, self._endpoint, why)


def notify_failure(
    recipe: Recipe,
    run_dir: Path,
    launch: str,
    env: Mapping[str, str],
    *,
    text: str,
    on_dropped: Dropped,
    key: str = "",
) -> None:
    """Report that a launch failed, and wait until that is sent, at most CLOSE_S. Never raises.

    The driver, the submitter and the launcher call this when they learn of a failure. It is sent once.

    Args:
        recipe, run_dir: the run.
        launch: identifies the launch.
        env: has the addresses.
        text: why it failed.
        on_dropped: called with a sentence if it cannot be sent.
        key: distinguishes what the launch may survive from its failure.
    """
    if not recipe.notifications.enabled or "failure" not in recipe.notifications.events:
        return
    try:
        notifier = Notifier(recipe, run_dir, launch, env, on_dropped)
        notifier.send("failure", f"{recipe.name} failed: {text}", {"status": "failed"}, key=key)
        notifier.close()
    except TrainfleetError as error:  # the storage's address is not valid here
        on_dropped(f"the notification `failure` was not sent: {error.summary}")


def _file(message: Message, endpoint: Endpoint) -> str:
    return f"{message.id}.{endpoint.kind}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
