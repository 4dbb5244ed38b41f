"""Batches that are lost with their process, or that no process builds. A stand-in takes the place of Ray."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RayActorError

from trainfleet.errors import TrainfleetError
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.recipe.schema_data import DataLoading
from trainfleet.training.trainer import remote_batches
from trainfleet.training.trainer.remote_batches import RemoteBatches
from trainfleet.training.workloads import make_workload

Make = Callable[..., Recipe]


class Process:
    """A stand-in for an actor: what it was asked for is lost when it has begun with the sample `DEADLY_SAMPLE`."""

    DEADLY_SAMPLE = 13

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.build = SimpleNamespace(remote=lambda split, indices, *_: (self, indices))

    def result(self, indices: list[int]) -> list[int]:
        if self.DEADLY_SAMPLE in indices:
            self.ended.set()
        if self.ended.wait(0.3):
            raise RayActorError
        return indices


def test_a_batch_that_ends_its_processes_does_not_take_others_with_it(
    tiny: Make, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tiny("data_loading.engine=ray", "data_loading.workers=1", "data_loading.prefetch_factor=2")
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    monkeypatch.setattr("ray.get", lambda asked, timeout: asked[0].result(asked[1]))
    monkeypatch.setattr("ray.kill", lambda actor: None)
    monkeypatch.setattr(RemoteBatches, "_new", lambda self: Process())
    pool = RemoteBatches(recipe, make_workload(recipe, cache), "cpu", cache, lambda *_: None)
    pool.start()
    with ThreadPoolExecutor(2) as threads:
        deadly = threads.submit(pool.batch, "train", [Process.DEADLY_SAMPLE])
        for sample in (1, 2):
            assert threads.submit(pool.batch, "train", [sample]).result(30) == [sample]
        with pytest.raises(TrainfleetError, match="a batch of train cannot be built"):
            deadly.result(30)
    pool.close()
    with pytest.raises(TrainfleetError, match="the run has ended"):
        pool.batch("train", [3])


def test_a_wait_without_any_batch_is_reported_once_until_there_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from ray.exceptions import GetTimeoutError

    clock, events = [1000.0], list[tuple[str, str]]()
    answers: list[str | None] = [None, None, "first", None, "second"]
    pool = RemoteBatches.__new__(RemoteBatches)
    pool._lock, pool._reported, pool._built_at = threading.Lock(), False, clock[0]
    pool._loading = DataLoading(engine="ray", workers=3, cpus_per_worker=2)
    pool._notify = lambda *event: events.append(event)

    def get(asked: Any, timeout: float) -> Any:
        clock[0] += timeout
        if (answer := answers.pop(0)) is None:
            raise GetTimeoutError
        return answer

    monkeypatch.setattr("ray.get", get)
    monkeypatch.setattr(remote_batches, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    assert pool._wait("asked") == "first"
    ((what, text),) = events
    assert what == "warning"
    assert "they need 3 x 2 free CPUs per worker" in text
    assert pool._wait("asked") == "second"
    assert len(events) == 2
    pool._built_at = clock[0] + 1  # another process has built one meanwhile
    answers[:] = [None, "third"]
    assert pool._wait("asked") == "third"
    assert len(events) == 2
