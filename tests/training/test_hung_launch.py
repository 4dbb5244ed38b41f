"""A launch whose rank hangs: it is named and restarted, and the losses are those of an undisturbed run."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.training.launches import Launched, Launcher, untimed

pytestmark = [pytest.mark.launch, pytest.mark.deep, pytest.mark.timeout(900)]
WORKLOAD = """
import os
import signal
from typing import Literal

import torch.distributed as dist

from trainfleet.training.workloads.lm.settings import LmSettings
from trainfleet.training.workloads.lm.workload import LanguageModel


class Stopping(LanguageModel):
    # Rank 1 stops like a process that hangs, once, when it has built some batches.

    class Settings(LmSettings):
        name: Literal["stopping_workload:Stopping"]
        once: str

    built = 0

    def batch(self, split, indices):
        self.built += split == "train"
        if self.built == 14 and dist.is_initialized() and dist.get_rank() == 1:
            try:
                os.close(os.open(self.settings.once, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                pass
            else:
                os.kill(os.getpid(), signal.SIGSTOP)
        return super().batch(split, indices)
"""


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory, text_folder: Path, cache: Path) -> Iterator[Launcher]:
    made = Launcher(tmp_path_factory.mktemp("runs"), text_folder, cache)
    (made.storage / "stopping_workload.py").write_text(WORKLOAD)
    yield made
    made.end()


def start(launcher: Launcher, name: str, on: str) -> Launched:
    return launcher(
        name,
        "workload.name=stopping_workload:Stopping",
        f"workload.once={launcher.storage / on}",
        "scaling.workers=2",
        "scaling.hang_timeout=10",
        "scaling.restarts=6",
        "batch.global_batch=16",
        "batch.micro_batch=8",
        on=on,
        PYTHONPATH=os.pathsep.join([str(launcher.storage), os.environ.get("PYTHONPATH", "")]),
    )


@pytest.mark.parametrize("on", ["torchrun", "local"])
def test_a_stopped_rank_is_restarted_with_the_losses_of_an_undisturbed_run(
    launcher: Launcher, on: str
) -> None:
    """SIGSTOP, as a machine that swaps or a driver that waits for ever; with torchrun and with Ray."""
    launched = start(launcher, f"stopped-{on}", on)
    code, stdout, errors = launched.finish()
    assert code == 0, errors
    assert (launcher.storage / on).exists(), "a rank was stopped"
    printed = stdout + errors
    assert "rank 1 (process " in printed, printed
    assert "does not respond" in printed
    starts = json.loads((launched.run_dir / "run.json").read_text())["starts"]
    assert len(starts) > 1
    assert starts[-1]["from_step"] in (5, 10)
    whole = start(launcher, f"whole-{on}", on)  # it stops nothing, because the file exists
    assert whole.finish()[0] == 0
    assert len(json.loads((whole.run_dir / "run.json").read_text())["starts"]) == 1
    found, expected = (
        [row for row in untimed(each.run_dir) if row["kind"] != "event"] for each in (launched, whole)
    )
    assert [row["step"] for row in expected if row["kind"] == "train"] == list(range(1, 25))
    assert found == expected
