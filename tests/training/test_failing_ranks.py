"""Ranks that fail in different ways end together, and the error names what failed first."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.training.launches import Launcher, wait_for

pytestmark = pytest.mark.timeout(900)

FAILING = """
import os, threading, time
from pathlib import Path
from typing import Literal

from trainfleet.errors import InputError, Problem
from trainfleet.training.workloads.lm.settings import LmSettings
from trainfleet.training.workloads.lm.workload import LanguageModel

FIRST, OTHER, FAILED = os.environ["FIRST"], os.environ["OTHER"], Path(os.environ["FAILED"])

class Failing(LanguageModel):
    class Settings(LmSettings):
        name: Literal["failing:Failing"]

    calls = 0

    def batch(self, split, indices):
        self.calls += split == "train"
        if self.calls > 6:
            self.fail_first() if os.environ["RANK"] == "1" else self.fail_too()
        return super().batch(split, indices)

    def fail_first(self):
        FAILED.touch()
        if FIRST == "data":
            raise InputError("the data cannot be read", [Problem("part-3", "row 7 is torn")])
        raise RuntimeError("row 7 is torn")

    def fail_too(self):
        if OTHER == "hung":
            threading.Event().wait()
        if OTHER == "memory":
            while not FAILED.exists():
                time.sleep(0.01)
            time.sleep(1)
            raise MemoryError("out of memory")
"""
"""lm, which fails on rank 1 in the seventh batch, where rank 0 fails as OTHER says or waits in a collective."""

ENDS_WITHIN_S = 60.0
"""torch's agent kills a rank that SIGTERM does not end after 30 s; the rest is for a busy machine."""


@pytest.fixture
def launcher(
    tmp_path: Path, text_folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Launcher]:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "failing.py").write_text(FAILING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "code"), prepend=os.pathsep)
    made = Launcher(tmp_path / "runs", text_folder, cache)
    yield made
    made.end()


@pytest.mark.launch
@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("first", "other"),
    [
        ("crash", "collective"),
        ("crash", "memory"),
        pytest.param("crash", "hung", marks=pytest.mark.deep),  # torch's agent waits 30 s for a hung rank
        pytest.param("data", "hung", marks=pytest.mark.deep),
    ],
)
def test_ranks_that_fail_differently_end_together_and_the_first_is_named(
    tmp_path: Path, launcher: Launcher, first: str, other: str
) -> None:
    failed = tmp_path / "failed"
    launched = launcher(
        "run",
        *("workload.name=failing:Failing", "scaling.workers=2", "scaling.restarts=0"),
        FIRST=first,
        OTHER=other,
        FAILED=str(failed),
    )
    wait_for(
        lambda: launched.look() and (failed.exists() or launched.process.poll() is not None), "no failure"
    )
    began = time.monotonic()
    code, _, errors = launched.finish()
    assert code != 0
    assert time.monotonic() - began < ENDS_WITHIN_S
    assert "row 7 is torn" in errors
    assert "out of memory" not in errors
    launched.gone()
    launch = json.loads((launched.run_dir / "run.json").read_text())["launches"][-1]
    assert launch["status"] == "failed"
    assert launch["error"] == (
        "the data cannot be read" if first == "data" else "RuntimeError: row 7 is torn"
    )
