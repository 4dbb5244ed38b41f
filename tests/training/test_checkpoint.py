"""Checkpoints: retention, which one a run resumes from, damaged ones, and what is reported."""

from __future__ import annotations

import errno
import json
import pickle
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING

from tests.training.checkpoint_reader import tensors_of
from trainfleet.errors import InputError
from trainfleet.training.checkpoint import CheckpointError, Checkpoints, Saved, step_name
from trainfleet.training.checkpoint.errors import UnavailableStoreError
from trainfleet.training.checkpoint.files import METADATA, TornError, read_metadata
from trainfleet.training.checkpoint.tolerance import FailedSaves
from trainfleet.training.recipe.schema import CheckpointConfig, SaveTolerance
from trainfleet.training.runs.reader import MARKER
from trainfleet.training.stores import RetryPolicy, open_store
from trainfleet.training.stores.folder import FolderOutput
from trainfleet.training.trainer.state import rng_state, set_rng_state

SHARD = "__0_0.distcp"
QUICK = RetryPolicy(attempts=3, first_s=0.01, longest_s=0.02, stall_s=30)


class Notices(list[tuple[str, str]]):
    def __call__(self, what: str, text: str) -> None:
        self.append((what, text))


def checkpoints(folder: Path, **settings: Any) -> Checkpoints:
    notices = Notices()
    return Checkpoints(open_store(str(folder), QUICK, notices), CheckpointConfig(**settings), notices)


def weights(step: int, size: int = 8) -> dict[str, Any]:
    return {"model": {"weights": torch.full((size,), float(step))}, "optimizer": {"lr": 0.5}}


def save(manager: Checkpoints, step: int, loss: float | None = None) -> Path:
    manager.save(
        step, weights(step), {"rank": 0}, {"step": step}, {} if loss is None else {"validation/loss": loss}
    )
    saved = manager.finish()
    assert isinstance(saved, Saved)
    manager.abandon()  # waits for removals
    return Path(saved.path)


def names(folder: Path) -> list[int]:
    return sorted(int(path.name[5:]) for path in folder.iterdir())


def test_the_latest_checkpoint_is_loaded(tmp_path: Path) -> None:
    manager = checkpoints(tmp_path)
    assert manager.choose() is None
    save(manager, 9)
    save(manager, 10)
    assert manager.choose() == step_name(10)
    into = weights(0)
    manager.load(step_name(10), into)
    assert into["model"]["weights"].tolist() == [10.0] * 8
    assert into["optimizer"]["lr"] == 0.5
    assert manager.read(step_name(10)) == {"format": 2, "shared": {"step": 10}, "ranks": [{"rank": 0}]}


def test_a_save_holds_the_state_of_its_snapshot(tmp_path: Path) -> None:
    manager = checkpoints(tmp_path)
    state = weights(1, size=1 << 20)
    for step in (1, 2, 3):
        state["model"]["weights"].fill_(float(step))
        manager.save(step, state, {}, {}, {})
        state["model"]["weights"].fill_(-1.0)
    manager.finish()
    for step in (2, 3):
        assert tensors_of(tmp_path / step_name(step))["model.weights"].unique().tolist() == [float(step)]


def test_a_changed_state_gets_a_new_plan(tmp_path: Path) -> None:
    manager = checkpoints(tmp_path)
    save(manager, 1)
    manager.save(2, weights(2, size=3) | {"more": torch.ones(2)}, {}, {}, {})
    manager.finish()
    assert {name: value.tolist() for name, value in tensors_of(tmp_path / step_name(2)).items()} == {
        "model.weights": [2.0] * 3,
        "more": [1.0, 1.0],
    }


@pytest.mark.parametrize(
    ("settings", "left"),
    [
        ({"keep_last": 2}, [2, 5, 6]),
        ({"keep_last": 1}, [2, 6]),
        ({"keep_last": 1, "keep_best": False}, [6]),
        ({"keep_last": 1, "mode": "max"}, [1, 6]),
        ({"keep_last": 9}, [1, 2, 3, 4, 5, 6]),
        ({"keep_last": 1, "keep_best": False, "keep_every": 3}, [3, 6]),
    ],
)
def test_the_last_few_the_best_and_every_nth_are_kept(
    tmp_path: Path, settings: dict[str, Any], left: list[int]
) -> None:
    manager = checkpoints(tmp_path, **settings)
    for step, loss in enumerate([3.0, 1.0, 2.0, 1.0, None, 2.5], start=1):
        save(manager, step, loss)
    assert names(tmp_path) == left
    assert sorted(checkpoints(tmp_path, **settings).notes()) == [step_name(step) for step in left]


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def rename_format(path: Path) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 9}))


DAMAGE: list[tuple[Callable[[Path], Any], str, str]] = [
    (cut_short, SHARD, "bytes instead of"),
    (flip_a_bit, SHARD, "its checksum differs"),
    (flip_a_bit, "plain.pt", "its checksum differs"),
    (Path.unlink, METADATA, f"{METADATA} is missing"),
    (cut_short, MARKER, f"{MARKER} cannot be read"),
    (rename_format, MARKER, "has format 9, but this version reads 2"),
]


@pytest.mark.parametrize(("damage", "file", "words"), DAMAGE)
def test_a_damaged_checkpoint_is_skipped_with_a_message(
    tmp_path: Path, damage: Callable[[Path], Any], file: str, words: str
) -> None:
    save(checkpoints(tmp_path), 1)
    damage(save(checkpoints(tmp_path), 2) / file)
    manager = checkpoints(tmp_path)
    assert manager.choose() == step_name(1)
    ((what, text),) = manager.notify  # type: ignore[misc]  # an instance of Notices
    assert what == "fallback"
    assert step_name(2) in text
    assert words in text
    assert text.endswith(f"resuming from {step_name(1)}")


def test_purging_does_not_keep_a_damaged_checkpoint_instead_of_a_valid_one(tmp_path: Path) -> None:
    save(checkpoints(tmp_path), 1, 5.0)
    flip_a_bit(save(checkpoints(tmp_path), 3, 1.0) / SHARD)
    manager = checkpoints(tmp_path, keep_last=1)
    manager.choose()
    save(manager, 2, 4.0)
    assert manager.best() == step_name(2)
    assert manager.last_good() == str(tmp_path / step_name(2))
    assert checkpoints(tmp_path).choose() == step_name(2)


def test_a_damaged_checkpoint_is_replaced_at_its_step(tmp_path: Path) -> None:
    save(checkpoints(tmp_path), 1)
    flip_a_bit(save(checkpoints(tmp_path), 2) / SHARD)
    manager = checkpoints(tmp_path)
    assert manager.choose() == step_name(1)
    save(manager, 2)
    assert checkpoints(tmp_path).choose() == step_name(2)


def test_a_run_with_only_damaged_checkpoints_does_not_start_over(tmp_path: Path) -> None:
    for step in (1, 2):
        flip_a_bit(save(checkpoints(tmp_path), step) / SHARD)
    with pytest.raises(CheckpointError, match="no checkpoint of this run can be read") as caught:
        checkpoints(tmp_path).choose()
    assert len(caught.value.problems) == 3


def test_a_run_removes_the_files_of_a_killed_save_and_a_reader_does_not(tmp_path: Path) -> None:
    save(checkpoints(tmp_path), 1)
    (save(checkpoints(tmp_path), 2) / MARKER).unlink()
    reader = Checkpoints(open_store(str(tmp_path)), CheckpointConfig(), Notices(), read_only=True)
    assert reader.choose() == step_name(1)
    assert names(tmp_path) == [1, 2]
    assert checkpoints(tmp_path).choose() == step_name(1)
    assert names(tmp_path) == [1]


@pytest.mark.parametrize("fails", ["in a write", "when it is closed"])
def test_a_full_disk_reports_and_keeps_the_last_valid_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    manager, write = checkpoints(tmp_path), FolderOutput.write
    save(manager, 1)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def full_after_300_bytes(self: FolderOutput, data: Any) -> None:
        (full if self._file.tell() + len(data) > 300 else write)(self, data)

    with monkeypatch.context() as patched:
        if fails == "in a write":
            patched.setattr(FolderOutput, "write", full_after_300_bytes)
        else:
            patched.setattr(FolderOutput, "close", full)
        with pytest.raises(CheckpointError, match="cannot save the checkpoint of step 2") as caught:
            save(manager, 2)
    assert not isinstance(caught.value, UnavailableStoreError), "the run would continue"
    assert "No space left on device" in str(caught.value)
    assert str(tmp_path / step_name(1)) in str(caught.value)
    assert checkpoints(tmp_path).choose() == step_name(1)
    assert names(tmp_path) == [1]


def test_a_temporary_disk_error_only_causes_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, real, left = checkpoints(tmp_path), FolderOutput.close, [2]

    def fail_once(self: FolderOutput) -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise OSError(errno.EIO, "Input/output error")
        real(self)

    monkeypatch.setattr(FolderOutput, "close", fail_once)
    save(manager, 1)
    assert [what for what, _ in manager.notify] == ["store", "store"]  # type: ignore[attr-defined]  # an instance of Notices
    assert checkpoints(tmp_path).choose() == step_name(1)


def test_a_failed_save_is_reported_and_the_next_one_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = Notices()
    store = open_store(str(tmp_path), QUICK, Notices())
    manager = Checkpoints(store, CheckpointConfig(), Notices(), on_failed_save=failed)

    def unavailable(_: FolderOutput) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(FolderOutput, "close", unavailable)
        for step in (1, 2):
            manager.save(step, weights(step), {"rank": 0}, {"step": step}, {})
            assert manager.finish() is None
    assert [what for what, _ in failed] == ["save_failed"] * 2
    assert "step 2 is not saved, the run continues (2 in a row" in failed[1][1]
    assert "Input/output error" in failed[1][1]
    assert (manager.failures.in_a_row, manager.failures.counts()) == (2, {"failed_saves": 2})
    save(manager, 3)
    assert (manager.failures.in_a_row, manager.failures.counts()) == (0, {"failed_saves": 2})
    assert checkpoints(tmp_path).choose() == step_name(3)
    assert names(tmp_path) == [3]


def test_after_a_failed_save_the_loop_does_not_wait_for_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, real, back = checkpoints(tmp_path), FolderOutput.close, threading.Event()

    def unavailable(_: FolderOutput) -> None:
        raise OSError(errno.EIO, "Input/output error")

    def slow(self: FolderOutput) -> None:
        assert back.wait(30)
        real(self)

    monkeypatch.setattr(FolderOutput, "close", unavailable)
    manager.save(1, weights(1), {"rank": 0}, {"step": 1}, {})
    assert manager.finish() is None
    monkeypatch.setattr(FolderOutput, "close", slow)
    for step in (2, 3):
        manager.save(step, weights(step), {"rank": 0}, {"step": step}, {})
    back.set()
    saved = manager.finish()
    assert saved is not None
    assert saved.step == 2
    assert names(tmp_path) == [2]


@pytest.mark.parametrize(
    ("saves", "minutes", "error", "tolerated"),
    [
        (0, 0, UnavailableStoreError, 0),
        (3, 0, UnavailableStoreError, 3),
        (0, 2.5, UnavailableStoreError, 2),
        (1, 2.5, UnavailableStoreError, 2),
        (4, 2.5, UnavailableStoreError, 4),
        (3, 30, CheckpointError, 0),
    ],
)
def test_saves_may_fail_until_there_are_too_many_and_the_last_one_is_too_old(
    saves: int, minutes: float, error: type[CheckpointError], tolerated: int
) -> None:
    now = [0.0]
    failures = FailedSaves(SaveTolerance(saves=saves, minutes=minutes), lambda: now[0])
    survived = 0
    for _ in range(10):
        now[0] += 60  # a save fails each minute
        if failures.failed(error("cannot save")):
            break
        survived += 1
    assert survived == tolerated


def test_a_folder_that_cannot_be_created_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file where the folder should be")
    with pytest.raises(CheckpointError, match="cannot save the checkpoint of step 1"):
        save(checkpoints(tmp_path / "checkpoints"), 1)


def test_another_model_is_rejected_by_name_and_shape(tmp_path: Path) -> None:
    manager = checkpoints(tmp_path)
    save(manager, 1)
    with pytest.raises(InputError, match="of another model") as caught:
        manager.load(step_name(1), {"model": {"weights": torch.zeros(9), "bias": torch.zeros(1)}})
    text = str(caught.value)
    assert "has shape [8] in the checkpoint and [9] here" in text
    assert "model.bias: is not in the checkpoint" in text


def test_another_vocabulary_is_reported(tmp_path: Path) -> None:
    manager = checkpoints(tmp_path)
    manager.save(1, {"model": torch.nn.Sequential(torch.nn.Embedding(10, 4)).state_dict()}, {}, {}, {})
    manager.finish()
    other = torch.nn.Sequential(torch.nn.Embedding(12, 4))
    with pytest.raises(InputError, match="the checkpoint's vocabulary has 10 tokens, this run's has 12"):
        manager.load(step_name(1), {"model": other.state_dict()}, other)


def test_metadata_that_runs_code_is_not_loaded(tmp_path: Path) -> None:
    manager = checkpoints(tmp_path)
    folder = save(manager, 1)
    (folder / METADATA).write_bytes(pickle.dumps(Path("anything")))
    with pytest.raises(TornError, match="does not belong to a checkpoint"):
        read_metadata(manager.store, step_name(1))
    with pytest.raises(CheckpointError, match="does not belong to a checkpoint"):
        manager.load(step_name(1), weights(0))


class EnumMember:
    """Pickles as members of an enum do in Python 3.11.0 to 3.11.3."""

    def __init__(self, of: Any, name: str) -> None:
        self.of, self.name = of, name

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self.of, self.name)


def test_metadata_of_an_older_python_is_loaded(tmp_path: Path) -> None:
    manager = checkpoints(tmp_path)
    folder = save(manager, 1)
    (folder / METADATA).write_bytes(pickle.dumps(EnumMember(_MEM_FORMAT_ENCODING, "TORCH_PRESERVE_FORMAT")))
    assert read_metadata(manager.store, step_name(1)) is _MEM_FORMAT_ENCODING.TORCH_PRESERVE_FORMAT  # type: ignore[comparison-overlap]
    for other in (EnumMember(_MEM_FORMAT_ENCODING, "__init__"), EnumMember(torch.Size, "count")):
        (folder / METADATA).write_bytes(pickle.dumps(other))
        with pytest.raises(TornError, match="does not belong to a checkpoint"):
            read_metadata(manager.store, step_name(1))


def test_random_generators_resume_from_their_state() -> None:
    state = rng_state()
    first = (torch.rand(3).tolist(), random.random(), np.random.random())
    set_rng_state(state)
    assert (torch.rand(3).tolist(), random.random(), np.random.random()) == first
