"""Builds a rank's next batches in threads, or in processes of Ray (`remote_batches`), and copies them to its
device, ahead of the step loop.

A batch is asked for by its samples. What was built for others, after a change of the batch size or of the
position, is discarded, so a batch never depends on what was expected.
"""

from __future__ import annotations

import ctypes
import queue
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trainfleet.errors import InputError, Problem
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.trainer.build_share import WORTH, BuildShare
from trainfleet.training.trainer.remote_batches import RemoteBatches, refused
from trainfleet.training.workloads import Split, Workload
from trainfleet.training.workloads.base import batches_in_threads
from trainfleet.training.workloads.transfer import Copying, CopyStream

CLOSE_S = 5.0
"""How long `close` waits for a batch that is being built. Its thread then ends on its own, or with the
process.
"""
KEY = "data_loading.workers"

Loaded = tuple[Any, Copying | None]
"""What a workload returned, and its copy; None if it is not a batch, which the checks then report."""


@dataclass(eq=False)
class _Task:
    """A batch to build in a thread, as the step loop's thread would build it."""

    split: Split
    indices: list[int]
    grad: bool = field(default_factory=torch.is_grad_enabled)
    result: Future[Loaded] = field(default_factory=Future)

    def run(self, load: Callable[[Split, list[int]], Loaded]) -> None:
        if not self.result.set_running_or_notify_cancel():
            return
        try:
            with torch.set_grad_enabled(self.grad):
                loaded = load(self.split, self.indices)
        except BaseException as error:  # noqa: BLE001 - raised in the loop's thread, if it asks for this batch
            self.result.set_exception(error)
        else:
            self.result.set_result(loaded)


class BatchLoader:
    """The batches of one rank. Everything but the building of batches is in the caller's thread.

    Attributes:
        depth: how many batches are built ahead; 0: none, and there are no threads.
    """

    def __init__(
        self,
        recipe: Recipe,
        workload: Workload,
        device: str,
        check: Callable[[Split, list[int], Any], None],
        notify: Callable[[str, str], Any],
        *,
        cache: Path | None = None,
    ) -> None:
        """Start nothing yet.

        Args:
            recipe: its `data_loading`.
            workload: builds the batches.
            device: of this rank.
            check: called in order with the split, the samples and what the workload returned.
            notify: called with the kind of an event and a sentence about it.
            cache: folder of prepared data, for processes of Ray.

        Raises:
            InputError: the recipe asks for threads or processes, and the workload does not declare that it
                supports them, or there is no Ray.
        """
        self._workload, self._check, self._notify = workload, check, notify
        self._name, self._asked = recipe.workload.name, recipe.data_loading.workers
        self._remote: RemoteBatches | None = None
        self._share: BuildShare | None = None
        """With `auto` on a CPU, until it is decided whether a thread builds batches: the loop does so."""
        if recipe.data_loading.processes:
            if not batches_in_threads(workload):
                raise refused(f"`{self._name}` does not declare `thread_safe_batch`")
            self._remote = RemoteBatches(recipe, workload, device, cache, notify)
            self._workers = self.depth = self._remote.depth  # each thread waits for one batch
        else:
            self._workers = self._count()
            if self._workers and self._asked == "auto" and not device.startswith("cuda"):
                self._share = BuildShare()
            self.depth = self._workers * recipe.data_loading.prefetch_factor
        self._copies = CopyStream(device)
        self._tried = False
        self._ahead: dict[Split, deque[_Task]] = {}
        """By split, in the order in which they are expected."""
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def take(
        self, split: Split, indices: list[int], ahead: Sequence[list[int]] = ()
    ) -> dict[str, torch.Tensor]:
        """A batch on the device; `ahead` are the samples of the next ones of this split, which are built
        meanwhile.

        Raises:
            Exception: whatever the workload or the check raises for this batch.
        """
        if self._share is not None:
            return self._finished(split, indices, self._load_alone(self._share, split, indices))
        expected = self._ahead.setdefault(split, deque())
        if expected and expected[0].indices != indices:
            _discard(expected, 0)
        task = expected.popleft() if expected else None
        first = self._load_first(split, indices) if not self._tried and self.depth else None
        if first is None and task is None and self._remote is not None:
            task = self._submit(split, indices)
        self._expect(split, expected, ahead)
        loaded = first or (task.result.result() if task is not None else self._load(split, indices))
        return self._finished(split, indices, loaded)

    def _finished(self, split: Split, indices: list[int], loaded: Loaded) -> dict[str, torch.Tensor]:
        given, copying = loaded
        self._check(split, indices, given)
        assert copying is not None, "the check accepts batches of CPU tensors only"
        return self._copies.finish(copying)

    def prefetch(self, split: Split, indices: Sequence[int]) -> None:
        """Have the blocks of these samples opened where the batches are built; returns immediately."""
        (self._workload if self._remote is None else self._remote).prefetch(split, indices)

    def close(self) -> None:
        """Discard what was built ahead, and end the threads and processes."""
        for expected in self._ahead.values():
            _discard(expected, 0)
        if self._remote is not None:
            self._remote.close()
        for _ in self._threads:
            self._tasks.put(None)
        until = time.monotonic() + CLOSE_S
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        # A thread that has not ended keeps the queue that has its end.
        self._threads, self._tasks = [], queue.SimpleQueue()

    def _count(self) -> int:
        safe = batches_in_threads(self._workload)
        if not isinstance(self._asked, int):  # auto
            return int(safe)
        if self._asked and not safe:
            what = f"`{self._name}` does not declare that its `batch` may run in threads"
            fix = "thread_safe_batch = True in its class, if it may (docs/add-a-workload.md), or 0"
            raise InputError("batches cannot be built in threads", [Problem(KEY, what, fix)])
        return self._asked

    def _expect(self, split: Split, expected: deque[_Task], ahead: Sequence[list[int]]) -> None:
        """Have the first batches of `ahead` built, in this order."""
        for place, indices in enumerate(islice(ahead, self.depth)):
            if place < len(expected) and expected[place].indices != indices:
                _discard(expected, place)
            if place == len(expected):
                expected.append(self._submit(split, indices))

    def _submit(self, split: Split, indices: list[int]) -> _Task:
        task = _Task(split, indices)
        self._tasks.put(task)
        self._start_thread()
        return task

    def _start_thread(self) -> None:
        if len(self._threads) < self._workers:
            # NOTE: a daemon, so that a `batch` that never returns does not keep the process from ending.
            thread = threading.Thread(
                target=_work,
                args=(self._tasks, self._load if self._remote is None else self._load_remote),
                name=f"batches-{len(self._threads)}",
                daemon=True,
            )
            thread.start()
            self._threads.append(thread)

    def _load(self, split: Split, indices: list[int]) -> Loaded:
        return self._copied(self._workload.batch(split, indices))

    def _load_remote(self, split: Split, indices: list[int]) -> Loaded:
        assert self._remote is not None
        return self._copied(self._remote.batch(split, indices))

    def _copied(self, given: Any) -> Loaded:
        tensors = isinstance(given, dict) and all(
            isinstance(value, torch.Tensor) and value.device.type == "cpu" for value in given.values()
        )
        return given, self._copies.start(given) if tensors else None

    def _load_alone(self, share: BuildShare, split: Split, indices: list[int]) -> Loaded:
        """Build a batch in this thread, and decide after some of them whether a thread builds the others."""
        began = time.perf_counter()
        loaded = self._load(split, indices) if self._tried else self._load_first(split, indices)
        share.add(began, time.perf_counter() - began)
        if not self.depth:  # the workload draws random numbers
            self._share = None
        elif (found := share.share()) is not None:
            self._share = None
            if found < WORTH:
                self._workers = self.depth = 0
        return loaded

    def _load_first(self, split: Split, indices: list[int]) -> Loaded:
        """Build the first batch in this thread, while processes start. There will be no others if it draws
        from a random generator that they would share with the model: the results would depend on timing.
        """
        self._tried = True
        if self._remote is not None:
            self._remote.start()
        before = _generators()
        loaded = self._load(split, indices)
        drawn = [name for name, state in _generators().items() if state != before[name]]
        if drawn:
            what = f"`batch` of `{self._name}` draws random numbers from {' and '.join(drawn)}"
            if self._remote is not None:
                raise refused(what)
            if self._asked != "auto":
                fix = "a generator seeded by the sample's index, or 0"
                raise InputError("batches cannot be built in threads", [Problem(KEY, what, fix)])
            self._notify("fallback", f"{what}, so batches are built in the step loop ({KEY})")
            self._workers = self.depth = 0
        return loaded


def _work(tasks: queue.SimpleQueue[_Task | None], load: Callable[[Split, list[int]], Loaded]) -> None:
    while (task := tasks.get()) is not None:
        task.run(load)
        del task  # or the batch would be kept until the next one


def _discard(expected: deque[_Task], place: int) -> None:
    """Remove what is expected from `place` on."""
    while len(expected) > place:
        expected.pop().result.cancel()


def _generators() -> dict[str, Any]:
    """The states of the process's random generators on the CPU."""
    _, keys, *rest = np.random.get_state(legacy=True)
    state = torch.get_rng_state()  # uint8, on the CPU; read without an operation of torch
    return {
        "torch's generator": ctypes.string_at(state.data_ptr(), state.numel()),
        "NumPy's generator": (np.asarray(keys).tobytes(), *rest),
        "Python's generator": random.getstate(),
    }
