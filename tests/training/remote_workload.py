"""Workloads whose batches are built in other processes, and what those note in a folder for the tests."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch

from trainfleet.training.workloads import Split
from trainfleet.training.workloads.lm.settings import LmSettings
from trainfleet.training.workloads.lm.workload import LanguageModel

NAME = "tests.training.remote_workload:Traced"
HOLD, BAD, DEADLY = "hold", "bad", "deadly"


class Traced(LanguageModel):
    """Notes in `notes`, by process, what it builds. Files there are orders: `hold` until it is gone, and the
    samples that raise (`bad`) or end the process (`deadly`).
    """

    class Settings(LmSettings):
        name: Literal["tests.training.remote_workload:Traced"]  # type: ignore[assignment]  # another literal
        notes: str

    thread_safe_batch = True

    def batch(self, split: Split, indices: Sequence[int]) -> dict[str, torch.Tensor]:
        folder = Path(self.settings.notes)  # type: ignore[attr-defined]  # declared with the base class's settings
        with (folder / f"{os.getpid()}.txt").open("a") as file:
            file.write(f"{split} {' '.join(map(str, indices))}\n")
        while (folder / HOLD).exists():
            time.sleep(0.01)
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
