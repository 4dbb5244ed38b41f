"""A store that does not respond costs a run time, and at worst a restart: at its start, and for streamed data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainfleet.errors import InputError, TrainfleetError
from trainfleet.training import worker
from trainfleet.training.checkpoint.errors import UnavailableStoreError
from trainfleet.training.data import remote
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.runs.storage import RunStorage
from trainfleet.training.stores import RetryPolicy, StoreUnavailableError, open_store
from trainfleet.training.stores.folder import FolderBackend
from trainfleet.training.trainer import loop

Make = Callable[..., Recipe]
QUICK = ("checkpoint.patience.attempts=2", "checkpoint.patience.first_wait=0.001")


class Outage(FolderBackend):
    """A folder that answers 503 to the first `left` requests."""

    def __init__(self, root: Path, left: int) -> None:
        super().__init__(root)
        self.left = left

    def sizes(self, prefix: str) -> dict[str, int]:
        self.left -= 1
        if self.left >= 0:
            raise OSError(
                "AWS Error SLOW_DOWN during ListObjectsV2 operation: Please reduce your request rate."
            )
        return super().sizes(prefix)


def test_a_request_is_tried_again_for_its_budget(tmp_path: Path) -> None:
    store = open_store(str(tmp_path), RetryPolicy(2, 0.001, 0.001, 20.0, budget_s=600))
    store.backend = Outage(tmp_path, 9)
    store.backend.local = False
    assert store.sizes() == {}
    store.retry, store.backend.left = RetryPolicy(2, 0.001, 0.001, 20.0), 9
    with pytest.raises(StoreUnavailableError, match="after 2 attempts"):
        store.sizes()
    assert store.backend.left == 7


def test_a_start_is_patient_and_the_saves_of_the_loop_are_not(tmp_path: Path, tiny: Make) -> None:
    storage = RunStorage(
        tiny(f"storage={tmp_path}", "checkpoint.tolerate.minutes=7"), tmp_path, lambda *_: None
    )
    with storage.patient():
        assert storage.checkpoints.retry.budget_s == 420
    assert storage.checkpoints.retry.budget_s == 0


def test_a_run_starts_when_its_store_is_back(
    tmp_path: Path, tiny: Make, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = RunStorage.__init__

    def unavailable(self: RunStorage, *given: Any) -> None:
        real(self, *given)
        self.checkpoints.backend = Outage(tmp_path / "run" / "checkpoints", 9)
        self.checkpoints.backend.local = False

    monkeypatch.setattr(RunStorage, "__init__", unavailable)
    assert run(tiny(*QUICK), tmp_path / "run").status == "finished"
    with pytest.raises(StoreUnavailableError):
        run(tiny(*QUICK, "checkpoint.tolerate.minutes=0"), tmp_path / "run")


@pytest.mark.parametrize(
    ("error", "sent"),
    [
        (StoreUnavailableError("the store is down"), "crash"),
        (UnavailableStoreError("cannot save the checkpoint of step 4"), "crash"),
        (InputError("the recipe is wrong"), "error"),
        (TrainfleetError("a guard ended the run"), "error"),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, Exception) else "",
)
def test_a_store_that_does_not_respond_restarts_the_workers_instead_of_ending_the_run(
    tmp_path: Path, tiny: Make, monkeypatch: pytest.MonkeyPatch, error: TrainfleetError, sent: str
) -> None:
    events: list[str] = []
    monkeypatch.setattr(worker.EventSink, "send", lambda _, kind, **__: events.append(kind))

    def fails(*_: Any) -> None:
        raise error

    monkeypatch.setattr(loop, "train", fails)
    with pytest.raises(type(error)):
        worker.work(tiny(), tmp_path, {})
    assert [kind for kind in events if kind in ("crash", "error")] == [sent]


@pytest.mark.parametrize(("budget_s", "attempts"), [(0.0, 5), (600.0, 26)])
def test_a_block_is_waited_for(monkeypatch: pytest.MonkeyPatch, budget_s: float, attempts: int) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(remote, "_JITTER", SimpleNamespace(uniform=lambda *_: 1.0))

    def refused() -> None:
        raise OSError("AWS Error SLOW_DOWN during GetObject operation")

    with pytest.raises(StoreUnavailableError, match=f"failed {attempts} times"):
        remote.with_retries(refused, "s3://b/a", pauses.append, budget_s)
    assert sum(pauses) >= budget_s
    assert max(pauses) <= 30
