"""Old checkpoints of thousands of files are removed while the run continues, or by its next start."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from trainfleet.training.checkpoint import Checkpoints, step_name
from trainfleet.training.checkpoint import checkpoints as checkpoints_module
from trainfleet.training.recipe.schema import CheckpointConfig, Recipe
from trainfleet.training.runs.schema import MARKER
from trainfleet.training.runs.storage import RunStorage
from trainfleet.training.stores import RetryPolicy, StoreError, open_store
from trainfleet.training.stores.folder import FolderBackend, FolderOutput
from trainfleet.training.trainer.context import RunContext
from trainfleet.training.trainer.loop import train

Make = Callable[..., Recipe]
FILES = 1_200
LIMIT_S = 60.0


class SlowDeletes(FolderBackend):
    """A folder in which each deleted file of a folder takes a while."""

    def __init__(self, root: Path, seconds: float = 0.0) -> None:
        super().__init__(root)
        self.seconds = seconds
        self.before: Callable[[], Any] = lambda: None

    def remove_folder(self, prefix: str) -> None:
        for path in self.sizes(prefix):
            self.before()
            time.sleep(self.seconds)
            super().remove([path])
        super().remove_folder(prefix)


def fill(folder: Path) -> None:
    """Give a checkpoint the files of many ranks."""
    for number in range(FILES):
        (folder / f"__{number + 1}_0.distcp").write_bytes(b"x")


class Filled(SlowDeletes):
    """Step 2 has the files of many ranks."""

    def create(self, path: str) -> FolderOutput:
        if path == f"{step_name(2)}/{MARKER}":
            fill(self.root / step_name(2))
        return super().create(path)


def saved(manager: Checkpoints, step: int) -> Path:
    manager.save(step, {"model": {"value": torch.full((4,), float(step))}}, {}, {}, {})
    found = manager.finish()
    assert found is not None
    return Path(found.path)


def managed(folder: Path, backend: SlowDeletes, stall_s: float = 60.0) -> Checkpoints:
    store = open_store(str(folder), RetryPolicy(attempts=2, first_s=0.01, stall_s=stall_s))
    store.backend = backend
    return Checkpoints(store, CheckpointConfig(keep_last=1, keep_best=False), lambda *_: None)


def test_a_removal_that_makes_progress_may_take_longer_than_a_request_may_stall(tmp_path: Path) -> None:
    """1,200 files at 2 ms each, of a store that may stall for 0.4 s."""
    store = open_store(str(tmp_path), RetryPolicy(attempts=1, stall_s=0.4))
    store.backend = SlowDeletes(tmp_path, 0.002)
    (tmp_path / "step").mkdir()
    fill(tmp_path / "step")
    began = time.monotonic()
    store.remove_folder("step")
    assert time.monotonic() - began > 2.0
    assert not (tmp_path / "step").exists()


def test_a_removal_that_makes_none_is_given_up(tmp_path: Path) -> None:
    store, released = open_store(str(tmp_path), RetryPolicy(attempts=1, stall_s=0.4)), threading.Event()
    store.backend = SlowDeletes(tmp_path)
    store.backend.before = lambda: released.wait(LIMIT_S)
    (tmp_path / "step").mkdir()
    fill(tmp_path / "step")
    with pytest.raises(StoreError, match=r"no progress for 0\.4 s"):
        store.remove_folder("step")
    released.set()


def test_steps_and_saves_continue_while_a_large_checkpoint_is_removed(
    tmp_path: Path, tiny: Make, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    later = threading.Event()
    during: list[tuple[int, int]] = []
    real = RunStorage.__init__

    def slow(self: RunStorage, *given: Any) -> None:
        real(self, *given)
        backend = Filled(tmp_path / "run" / "checkpoints")
        self.checkpoints.backend = backend

        def until_later_saves() -> None:
            began = steps[-1]
            assert later.wait(LIMIT_S), "no later checkpoint became complete"
            during.append((began, steps[-1]))

        backend.before = until_later_saves

    def on_checkpoint(step: int, _: str) -> None:
        if step == 8:
            later.set()

    monkeypatch.setattr(RunStorage, "__init__", slow)
    recipe = tiny("steps=12", "checkpoint.every=2", "checkpoint.keep_last=1", "checkpoint.keep_best=false")
    context = RunContext(
        tmp_path / "run", cache=cache, on_step=lambda step, _: steps.append(step), on_checkpoint=on_checkpoint
    )
    assert train(recipe, context).status == "finished"
    assert len(during) > FILES
    began, ended = during[0]
    assert began < 8 <= ended, "steps and a save continued during the first removal"
    left = [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()]
    assert left == [step_name(12)], "all of them are removed in the end"


def test_a_run_that_ends_during_a_removal_leaves_it_to_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints_module, "REMOVALS_S", 0.1)
    backend, released = SlowDeletes(tmp_path), threading.Event()
    manager = managed(tmp_path, backend)
    fill(saved(manager, 1))
    backend.before = lambda: released.wait(LIMIT_S)
    saved(manager, 2)
    began = time.monotonic()
    manager.abandon()
    assert time.monotonic() - began < LIMIT_S / 2, "the end of a run does not wait for it"
    assert not (tmp_path / step_name(1) / MARKER).exists()
    assert len(list((tmp_path / step_name(1)).iterdir())) > FILES
    again = managed(tmp_path, SlowDeletes(tmp_path))
    assert again.choose() == step_name(2)
    assert [each.name for each in tmp_path.iterdir()] == [step_name(2)]
    released.set()


def test_a_step_that_is_saved_again_waits_for_the_removal_of_its_old_files(tmp_path: Path) -> None:
    backend, released = SlowDeletes(tmp_path), threading.Event()
    manager = managed(tmp_path, backend)
    fill(saved(manager, 1))
    backend.before = lambda: released.wait(LIMIT_S)
    saved(manager, 2)
    manager.save(1, {"model": {"value": torch.full((4,), 9.0)}}, {}, {}, {})
    time.sleep(0.2)
    assert manager.writing
    released.set()
    assert manager.finish() is not None
    manager.abandon()
    reader = managed(tmp_path, SlowDeletes(tmp_path))
    value = torch.zeros(4)
    reader.load(step_name(1), {"model": {"value": value}})
    assert value.tolist() == [9.0] * 4


def test_a_removal_that_fails_is_reported_and_tried_again(tmp_path: Path) -> None:
    notices: list[str] = []
    backend = SlowDeletes(tmp_path)
    manager = managed(tmp_path, backend)
    manager.notify = lambda _, text: notices.append(text)
    saved(manager, 1)

    def fail() -> None:
        raise OSError(13, "Permission denied")

    backend.before = fail
    saved(manager, 2)
    manager.abandon()
    (notice,) = notices
    assert notice.startswith(f"cannot remove {tmp_path}/{step_name(1)}")
    assert (tmp_path / step_name(1)).exists()
    backend.before = lambda: None
    saved(manager, 3)
    manager.abandon()
    assert [each.name for each in tmp_path.iterdir()] == [step_name(3)]
