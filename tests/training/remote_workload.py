"""Workloads whose batches are built in other processes, and what those note in a folder for the tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch

from trainfleet.training.workloads import Split
from trainfleet.training.workloads.lm.settings import LmSettings
from trainfleet.training.workloads.lm.workload import LanguageModel

NAME = "tests.training.remote_workload:Traced"
BAD, DEADLY = "bad", "deadly"


class Traced(LanguageModel):
    """Notes in `notes`, by process, what it builds, and whether it opens blocks. Files there are orders: the
    samples that raise (`bad`) or end the process (`deadly`).
    """

    class Settings(LmSettings):
        name: Literal["tests.training.remote_workload:Traced"]  # type: ignore[assignment]  # another literal
        notes: str

    thread_safe_batch = True

    def prefetch(self, split: Split, indices: Sequence[int]) -> None:
        (Path(self.settings.notes) / f"{os.getpid()}.opened").touch()  # type: ignore[attr-defined]  # as below
        super().prefetch(split, indices)

    def batch(self, split: Split, indices: Sequence[int]) -> dict[str, torch.Tensor]:
        folder = Path(self.settings.notes)  # type: ignore[attr-defined]  # declared with the base class's settings
        with (folder / f"{os.getpid()}.txt").open("a") as file:
            file.write(f"{split} {' '.join(map(str, indices))}\n")
        if split == "train" and set(indices) & ordered(folder, BAD):
            raise ValueError(f"a sample of {min(indices)} cannot be decoded")
        if set(indices) & ordered(folder, DEADLY):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().batch(split, indices)


def ordered(folder: Path, name: str) -> set[int]:
    """The samples in a file of orders."""
    file = folder / name
    return set(map(int, file.read_text().split())) if file.exists() else set()


def built(folder: Path) -> dict[int, list[str]]:
    """What each process has begun to build, by its id, except this one."""
    files = {int(each.stem): each for each in folder.glob("*.txt")}
    return {pid: each.read_text().splitlines() for pid, each in files.items() if pid != os.getpid()}


def opened(folder: Path, clear: bool = False) -> set[int]:
    """The processes that opened blocks ahead."""
    found = list(folder.glob("*.opened"))
    pids = {int(each.stem) for each in found}
    if clear:
        for each in found:
            each.unlink()
    return pids
