"""Checkpoints: which are kept, which one a run goes on from, and what is said when none can be written or read."""

from __future__ import annotations

import errno
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from training.checkpoint import STATE_FILE, CheckpointError, Checkpoints, rng_state, set_rng_state, step_name
from training.sections import Checkpoints as Settings


class Told(list[tuple[str, str]]):
    def __call__(self, what: str, text: str) -> None:
        self.append((what, text))


def checkpoints(folder: Path, **settings: Any) -> Checkpoints:
    return Checkpoints(folder, Settings(**settings), Told())


def save(kept: Checkpoints, step: int, loss: float | None = None) -> Path:
    return kept.save(step, {"step": step, "weights": torch.full((8,), float(step))}, {} if loss is None else {"validation/loss": loss})


def names(folder: Path) -> list[int]:
    return sorted(int(path.name[5:]) for path in (folder / "checkpoints").iterdir())


def test_the_newest_is_chosen_and_reads_back(tmp_path: Path) -> None:
    kept = checkpoints(tmp_path)
    assert kept.choose() is None
    save(kept, 9)
    save(kept, 10)
    assert kept.choose() == step_name(10)
    assert kept.load(step_name(10))["weights"].tolist() == [10.0] * 8


@pytest.mark.parametrize(
    ("settings", "left"),
    [
        ({"keep_last": 2}, [2, 5, 6]),
        ({"keep_last": 1}, [2, 6]),
        ({"keep_last": 1, "keep_best": False}, [6]),
        ({"keep_last": 1, "mode": "max"}, [1, 6]),
        ({"keep_last": 9}, [1, 2, 3, 4, 5, 6]),
    ],
)
def test_the_last_few_and_the_best_are_kept(tmp_path: Path, settings: dict[str, Any], left: list[int]) -> None:
    kept = checkpoints(tmp_path, **settings)
    for step, loss in enumerate([3.0, 1.0, 2.0, 1.0, None, 2.5], start=1):
        save(kept, step, loss)
    assert names(tmp_path) == left


def damage(path: Path) -> None:
    data = bytearray((path / STATE_FILE).read_bytes())
    data[len(data) // 2] ^= 1
    (path / STATE_FILE).write_bytes(data)


def test_a_damaged_one_is_passed_over_and_the_user_told(tmp_path: Path) -> None:
    save(checkpoints(tmp_path), 1)
    damage(save(checkpoints(tmp_path), 2))
    kept = checkpoints(tmp_path)
    assert kept.choose() == step_name(1)
    ((what, text),) = kept.notify  # type: ignore[misc]  # it is a Told
    assert what == "fallback"
    assert step_name(2) in text
    assert "checksum" in text
    assert text.endswith(f"going on from {step_name(1)}")


def test_a_damaged_one_is_never_what_purging_keeps_instead_of_a_sound_one(tmp_path: Path) -> None:
    save(checkpoints(tmp_path), 1, 5.0)
    damage(save(checkpoints(tmp_path), 3, 1.0))
    kept = checkpoints(tmp_path, keep_last=1)
    kept.choose()
    save(kept, 2, 4.0)
    assert kept.best() == step_name(2)
    assert kept.last_good() == tmp_path / "checkpoints" / step_name(2)
    assert checkpoints(tmp_path).choose() == step_name(2)


def test_when_all_are_damaged_the_run_does_not_start_over(tmp_path: Path) -> None:
    for step in (1, 2):
        damage(save(checkpoints(tmp_path), step))
    with pytest.raises(CheckpointError, match="no checkpoint of this run can be read") as caught:
        checkpoints(tmp_path).choose()
    assert len(caught.value.problems) == 3


def test_a_full_disk_names_the_last_good_one_and_leaves_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = checkpoints(tmp_path)
    save(kept, 1)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        with pytest.raises(CheckpointError) as caught:
            save(kept, 2)
    assert "No space left on device" in str(caught.value)
    assert str(tmp_path / "checkpoints" / step_name(1)) in str(caught.value)
    assert names(tmp_path) == [1]
    assert checkpoints(tmp_path).choose() == step_name(1)


def test_a_folder_that_cannot_be_made_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file where the folder should be")
    with pytest.raises(CheckpointError, match="cannot save the checkpoint of step 1"):
        save(checkpoints(tmp_path), 1)


def test_random_generators_go_on_where_they_were() -> None:
    state = rng_state()
    first = (torch.rand(3).tolist(), random.random(), np.random.random())
    set_rng_state(state)
    assert (torch.rand(3).tolist(), random.random(), np.random.random()) == first
