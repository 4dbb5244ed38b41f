"""`trainfleet runs attach`: how a followed run that has ended is reported and recorded."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from trainfleet.errors import InputError, TrainfleetError
from trainfleet.training.cli.outcome import closing_lines
from trainfleet.training.launch.attach import attach
from trainfleet.training.launch.control import RunControl, RunRef
from trainfleet.training.launch.find_run import find_run
from trainfleet.training.launch.remote.where import Where
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.report import read_run_summary
from trainfleet.training.runs.storage import RunStorage, require_same_home
from trainfleet.training.runtime.run_lock import locked

DAYS_AGO = (datetime.now(UTC) - timedelta(days=3)).isoformat(timespec="seconds")
START = {"at": DAYS_AGO, "from_step": 0, "held_seconds": 3600.0, "usd_per_hour": 50.0}
LAUNCH = {"at": DAYS_AGO, "on": "torchrun", "owner": "ada", "starts_before": 0, "host": platform.node()}


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs" / "night"
    folder.mkdir(parents=True)
    return folder


def write(folder: Path, launch: dict[str, Any] | None = None, **record: Any) -> None:
    launches = [{**LAUNCH, "folder": str(folder), **(launch or {})}]
    document = {"name": "night", "steps": 40, "step": 40, "starts": [START], "launches": launches, **record}
    (folder / "run.json").write_text(json.dumps(document))


class Ending:
    """A display; the run ends just after it has shown a line."""

    def __init__(self, end: Callable[[], None]) -> None:
        self.end = end

    def handle(self, event: Mapping[str, Any]) -> None:
        self.end()

    def ask(self, answers: Mapping[str, str], interrupted: Callable[[], bool]) -> str:
        return ""

    def close(self) -> None: ...


def test_attach_waits_for_workers_that_restart(run_dir: Path) -> None:
    write(run_dir, status="failed", error="CUDA error")
    (run_dir / "metrics.jsonl").write_text(json.dumps({"kind": "train", "step": 40, "loss": 1.0}) + "\n")
    view = Ending(lambda: write(run_dir, {"status": "finished", "seconds": 60.0}, status="finished"))
    with locked(run_dir, fresh=False):
        outcome = attach(find_run("night", Where()), as_json=True, view=view)
    assert outcome.document["status"] == "finished"


def test_attach_reports_a_failed_run(run_dir: Path) -> None:
    write(run_dir, status="failed", error="CUDA error")
    with pytest.raises(TrainfleetError, match="the run failed: CUDA error"):
        attach(find_run("night", Where()), as_json=True)


@pytest.mark.parametrize("launch", [{"status": "stopped"}, {"on": "gone", "status": "detached"}])
@pytest.mark.parametrize(
    ("record", "limits", "message", "code"),
    [
        ({}, {}, "stopped after step 20, which is saved; run the same command", 130),
        # A limit that an earlier launch has reached.
        ({"result": {"step": 10, "limits": ["old"]}}, {"max_hours": 2}, "stopped after step 20", 130),
        ({"result": {"step": 20, "limits": ["1 of 1 hours"]}}, {}, "reached its limit; step 20 is saved", 1),
        # Nobody heard its result.
        ({}, {"max_usd": 49}, "reached its limit; step 20 is saved", 1),
    ],
)
def test_attach_reports_a_stopped_run_as_its_launch_does(
    run_dir: Path,
    launch: dict[str, Any],
    record: dict[str, Any],
    limits: dict[str, float],
    message: str,
    code: int,
) -> None:
    write(run_dir, launch, status="stopped", **{"step": 20, **record})
    (run_dir / "recipe.yaml").write_text(json.dumps({"limits": limits}))
    with pytest.raises(TrainfleetError, match=message) as raised:
        attach(find_run("night", Where()), as_json=True)
    assert raised.value.exit_code == code
    reasons = {each.what for each in raised.value.problems}
    assert reasons <= {"1 of 1 hours", "the run has used $50.00 of $49.00"}
    assert bool(reasons) == (code == 1)


def test_a_launch_that_nobody_followed_lasted_as_long_as_its_machines_were_held(run_dir: Path) -> None:
    pool = {"name": "h100", "per_node": 1, "usd_per_hour": 50.0}
    platform = {"name": "aws", "cloud": "aws", "pools": [pool]}
    launch = {"on": "gone", "status": "detached", "workers": 1, "platform": platform, "starts_before": 1}
    earlier = START | {"held_seconds": 7200.0}
    write(run_dir, launch, status="finished", starts=[earlier, START])
    outcome = attach(find_run("night", Where()), as_json=True)
    assert closing_lines(outcome)[0] == "finished 40 steps in 1h00m"
    figures = read_run_summary(run_dir).figures()
    assert (figures["seconds"], [each["usd"] for each in figures["cost"]]) == (3600, [50.0])
    assert figures["timeline"][0]["ended"] < datetime.now(UTC).isoformat()[:10]


HERE, THERE = "runs/night", "s3://team/runs/night"


@pytest.mark.parametrize(
    ("of", "home", "text"),
    [
        ({"storage": HERE}, THERE, "contains files of /"),
        ({"storage": "s3://other/runs/night"}, THERE, "contains files of s3://other/runs/night"),
        ({"storage": THERE}, HERE, f"contains files of {THERE}"),
    ],
    ids=["local", "other-url", "now-local"],
)
def test_a_folder_is_used_for_the_run_of_one_storage_only(
    of: dict[str, Any], home: str, text: str, run_dir: Path, tiny: Callable[..., Recipe]
) -> None:
    """Before the first upload as well, which is what writes home.json."""
    write(run_dir, {**of, "status": "killed"}, status="running")
    before = (run_dir / "run.json").read_text()
    recipe = tiny(f"storage={home.removesuffix('/night')}", "name=night")
    with pytest.raises(InputError, match=text):
        RunStorage(recipe, run_dir, lambda *_: None).fetch()
    if home == THERE:
        with pytest.raises(InputError, match=text):
            attach(RunControl(RunRef("night", home)), as_json=True)
    assert (run_dir / "run.json").read_text() == before


def test_a_run_that_never_started_may_be_launched_with_another_storage(
    run_dir: Path, tiny: Callable[..., Recipe]
) -> None:
    write(run_dir, {"storage": HERE, "status": "failed"}, status="failed", starts=[])
    require_same_home(run_dir, THERE)
    write(run_dir, {"storage": THERE, "attached": True}, starts=[])
    assert not RunStorage(tiny("storage=runs", "name=night"), run_dir, lambda *_: None).fetch()
