"""Runs as files, and the console without a port."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from trainfleet.ui.access import Access
from trainfleet.ui.app import Console
from trainfleet.ui.guard import Guard
from trainfleet.ui.run_store import RunStore

PORT = 8970
HOST = f"http://127.0.0.1:{PORT}"

MakeRun = Callable[..., Path]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """The folder of runs."""
    folder = tmp_path / "runs"
    folder.mkdir()
    return folder


@pytest.fixture
def a_run(runs: Path) -> MakeRun:
    """Writes a run of some rows; further keys are those of run.json."""

    def write(folder: str, rows: int = 5, metric: str = "loss", **record: Any) -> Path:
        path = runs / folder
        path.mkdir()
        launch = {
            "at": "2026-11-20T08:00:00+00:00",
            "on": "torchrun",
            "owner": "ada",
            "status": "finished",
            "seconds": 60.0,
        }
        start = {
            "at": launch["at"],
            "from_step": 0,
            "held_seconds": 60.0,
            "trained_seconds": 50.0,
            "usd_per_hour": 6.0,
        }
        document = {
            "name": folder,
            "status": "finished",
            "steps": rows,
            "starts": [start],
            "launches": [launch],
        } | record
        (path / "run.json").write_text(json.dumps(document))
        lines = [
            {
                "kind": "train",
                "step": step,
                "loss": 3 / step,
                metric: 3 / step,
                "lr": 1e-3,
                "step_seconds": 0.5,
            }
            for step in range(1, rows + 1)
        ]
        lines.append({"kind": "validation", "step": rows, f"validation/{metric}": 0.5})
        (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (path / "recipe.yaml").write_text(f"name: {folder}\n")
        return path

    return write


@pytest.fixture
def guard(runs: Path, monkeypatch: pytest.MonkeyPatch) -> Guard:
    """The whole application; it reads the list for every request."""
    monkeypatch.setattr("trainfleet.ui.run_store.LIST_EVERY_S", 0.0)
    monkeypatch.setattr("trainfleet.ui.pages.runs.LIST_WAIT_S", 20.0)
    return Guard(Console(RunStore([str(runs)])).app, Access(), PORT)


@pytest.fixture
def stranger(guard: Guard) -> TestClient:
    """A client without a token, which follows no redirect."""
    return TestClient(guard, base_url=HOST, follow_redirects=False)


@pytest.fixture
def client(guard: Guard) -> TestClient:
    """A client that has logged in with the token of the printed address."""
    found = TestClient(guard, base_url=HOST, follow_redirects=False)
    answer = found.get(f"/?token={guard.access.token}")
    assert answer.status_code == 303, answer.text
    return found
