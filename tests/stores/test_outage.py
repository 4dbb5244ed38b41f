"""A store that rejects every request for five minutes, while a run of two ranks saves into it on a busy machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.stores.running import Running
from tests.training.launches import Launched, rows, untimed
from trainfleet.training.stores import open_store

OUTAGE_S = 300
STEP_S = 3.0
"""How long a step takes at least, so that the run outlasts the outage."""
WORKLOAD = """
import time
from typing import Literal

from trainfleet.training.workloads.lm.settings import LmSettings
from trainfleet.training.workloads.lm.workload import LanguageModel


class Slow(LanguageModel):
    class Settings(LmSettings):
        name: Literal["slow_workload:Slow"]
        step_s: float

    def batch(self, split, indices):
        if split == "train":
            time.sleep(self.settings.step_s)
        return super().batch(split, indices)
"""


@pytest.fixture
def load() -> Iterator[None]:
    """Two processes that compute without end."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    yield
    for each in busy:
        each.kill()
        each.wait()


@pytest.mark.deep
@pytest.mark.launch
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("store_server", ["s3"], indirect=True)
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_run_outlasts_an_outage_of_five_minutes(
    strategy: str,
    store_server: Running,
    prefix: str,
    tmp_path: Path,
    text_folder: Path,
    cache: Path,
    load: None,
) -> None:
    """Without a restart and with the losses of a run in a folder; what failed to be saved is saved afterwards."""
    url = store_server.url(prefix)
    steps = int(OUTAGE_S / STEP_S * 1.3)
    start = partial(launch, tmp_path, cache, [*course(text_folder, steps), f"strategy={strategy}"])
    launched = start("outage", url, STEP_S)
    launched.until_step(6)
    began = time.monotonic()
    store_server.proxy.fail("status", times=10**9, status=503)
    while time.monotonic() - began < OUTAGE_S:
        assert launched.process.poll() is None, launched.finish()
        time.sleep(1)
    assert store_server.proxy.injected > 10
    store_server.proxy.repair()
    reached = max(row["step"] for row in rows(launched.run_dir))
    assert reached > 6 + OUTAGE_S / STEP_S / 4, "it trained meanwhile"
    code, _, errors = launched.finish(900)
    assert code == 0, errors
    events = [row["what"] for row in rows(launched.run_dir) if row["kind"] == "event"]
    assert events.count("save_failed") >= 2
    record = json.loads((launched.run_dir / "run.json").read_text())
    assert [each["from_step"] for each in record["starts"]] == [0], "no restart"
    assert any(f"step-{steps:08}/" in name for name in open_store(f"{url}/outage").sizes())
    whole = start("whole", str(tmp_path / "runs"), 0.0)
    assert whole.finish()[0] == 0
    found, expected = (
        [{**row, "failed_saves": 0} for row in untimed(each.run_dir) if row["kind"] != "event"]
        for each in (launched, whole)
    )
    assert found == expected


def course(text: Path, steps: int) -> list[str]:
    return [
        "workload.name=slow_workload:Slow",
        f"workload.data.source={text}",
        "workload.data.glob='**/*.txt'",
        "workload.data.validation_share=0.15",
        "workload.data.test_share=0.15",
        "scaling.workers=2",
        "batch.global_batch=16",
        "batch.micro_batch=8",  # one batch per step and rank
        f"steps={steps}",
        "optimizer.warmup=1",
        "validation.every=50",
        "checkpoint.every=5",
        "log.every=1",
    ]


def launch(
    folder: Path, cache: Path, overrides: list[str], name: str, storage: str, step_s: float
) -> Launched:
    (folder / "slow_workload.py").write_text(WORKLOAD)
    command = [str(Path(sys.executable).with_name("trainfleet")), "launch", "lm-tiny", *overrides]
    command += [f"workload.step_s={step_s}", "--on", "torchrun", "--run", name, "--storage", storage]
    environment = os.environ | {"TRAINFLEET_CACHE": str(cache), "PYTHONPATH": str(folder), "NO_COLOR": "1"}
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    return Launched(process, folder / "runs" / name)
