"""A run that another one has taken over removes nothing: the other may have committed the same step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.training.test_checkpoint import checkpoints, save, weights
from trainfleet.errors import InputError
from trainfleet.training.checkpoint import CheckpointError, Checkpoints, step_name
from trainfleet.training.checkpoint import checkpoints as checkpoints_module
from trainfleet.training.recipe.schema import CheckpointConfig
from trainfleet.training.runs.schema import MARKER
from trainfleet.training.runs.storage import RunStorage
from trainfleet.training.stores import open_store
from trainfleet.training.stores.lease import Lease
from trainfleet.training.trainer.context import RunContext
from trainfleet.training.trainer.loop import train


def holder(folder: Path, lease: Lease, **config: Any) -> Checkpoints:
    """The checkpoints of a run that holds, or held, a lease."""
    return Checkpoints(
        open_store(str(folder)),
        CheckpointConfig(**config),
        lambda *_: None,
        before_commit=lease.verify,
        before_removal=lease.verify,
    )


def taken_over(folder: Path) -> tuple[Lease, Lease]:
    """A lease, and the one that has taken it over before the first one's next heartbeat."""
    home = open_store(str(folder))
    first, second = Lease(home, "launch", heartbeat_s=600), Lease(home, "launch", heartbeat_s=600)
    first.acquire()
    second.acquire()
    return first, second


def fails_to_save(manager: Checkpoints, step: int) -> None:
    manager.save(step, weights(step), {"rank": 0}, {"step": step}, {})
    with pytest.raises(CheckpointError, match="writes here"):
        manager.finish()


def test_the_loser_leaves_the_same_step_of_the_winner_alone(tmp_path: Path) -> None:
    first, second = taken_over(tmp_path)
    loser, winner = holder(tmp_path / "c", first), holder(tmp_path / "c", second)
    committed = save(winner, 2)
    before = (committed / MARKER).read_bytes()
    fails_to_save(loser, 2)
    assert (committed / MARKER).read_bytes() == before
    assert checkpoints(tmp_path / "c").choose() == step_name(2)
    for lease in (first, second):
        lease.release()


def test_a_loser_that_has_written_its_share_removes_nothing_when_it_cannot_commit(tmp_path: Path) -> None:
    first, second = taken_over(tmp_path)
    loser = holder(tmp_path / "c", first)
    loser.save(2, weights(2), {"rank": 0}, {"step": 2}, {})
    with pytest.raises(CheckpointError, match="writes here"):
        loser.finish()
    assert (tmp_path / "c" / step_name(2)).exists()
    for lease in (first, second):
        lease.release()


def test_a_loser_removes_neither_unfinished_nor_superseded_checkpoints(tmp_path: Path) -> None:
    first, second = taken_over(tmp_path)
    winner = holder(tmp_path / "c", second)
    save(winner, 1)
    (save(winner, 2) / MARKER).unlink()
    with pytest.raises(InputError, match="already in progress"):
        holder(tmp_path / "c", first).choose()
    assert (tmp_path / "c" / step_name(2)).exists()
    for lease in (first, second):
        lease.release()


def test_the_storage_of_a_run_asks_its_lease(tmp_path: Path, tiny: Any) -> None:
    storage = RunStorage(tiny(f"storage={tmp_path}"), tmp_path / "run", lambda *_: None)
    storage.enter("launch")
    storage.require_access()
    thief = Lease(open_store(str(tmp_path / "run")), "launch", heartbeat_s=600)
    thief.acquire()
    with pytest.raises(InputError, match="already in progress"):
        storage.require_access()
    storage.leave()
    thief.release()


def test_a_run_asks_its_lease_before_it_removes_a_checkpoint(
    tmp_path: Path, tiny: Any, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []
    require, remove = RunStorage.require_access, checkpoints_module.remove
    monkeypatch.setattr(RunStorage, "require_access", lambda self: happened.append("ask") or require(self))
    monkeypatch.setattr(checkpoints_module, "remove", lambda *at: happened.append("remove") or remove(*at))
    recipe = tiny("steps=6", "checkpoint.every=2", "checkpoint.keep_last=1", "checkpoint.keep_best=false")
    train(recipe, RunContext(tmp_path / "run", cache=cache))
    removals = [place for place, what in enumerate(happened) if what == "remove"]
    assert removals
    # Once before the commit, and again before the removal.
    assert all(happened[place - 2 : place] == ["ask", "ask"] for place in removals)
