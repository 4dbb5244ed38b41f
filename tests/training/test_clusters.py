"""One recipe on three clusters at once: one of them fails, the others finish, and the same command resumes it.

Each cluster is torchrun on this machine with a folder of its own. tests/cluster/test_clusters.py does the same
with KubeRay in three namespaces.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.training.launches import Launcher, rows, running, untimed, wait_for
from trainfleet.workspace import workspace

pytestmark = [pytest.mark.launch, pytest.mark.timeout(900)]
NAMES = ("one", "two", "three")


class Group:
    """`trainfleet launch --clusters` in a folder of its own."""

    def __init__(self, folder: Path, text: Path, cache: Path) -> None:
        self.folder = folder
        self.settings = Launcher(folder, text, cache)
        self.processes: list[subprocess.Popen[str]] = []
        entries = [{"name": name, "launcher": "torchrun", "storage": str(folder / name)} for name in NAMES]
        entries[1]["overrides"] = ["seed=2"]  # type: ignore[assignment]
        (folder / "clusters.yaml").write_text(json.dumps(entries))

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [str(Path(sys.executable).with_name("trainfleet")), "launch", "lm-tiny", "--run", "night"]
        process = subprocess.Popen(
            [
                *command,
                "--clusters",
                "clusters.yaml",
                *self.settings.overrides,
                "scaling.workers=1",
                *arguments,
            ],
            cwd=self.folder,
            env=self.settings.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        return process

    def run_dir(self, name: str) -> Path:
        return self.folder / name / f"night-{name}"

    def until_step(self, step: int, *names: str) -> None:
        def reached() -> bool:
            assert self.processes[-1].poll() is None, self.processes[-1].communicate()
            return all(any(row["step"] >= step for row in rows(self.run_dir(name))) for name in names)

        wait_for(reached, f"step {step} of {names}")

    def launches(self) -> dict[str, psutil.Process]:
        """The launch processes of the clusters, by name."""
        below = psutil.Process(self.processes[-1].pid).children()
        lines = {child: child.cmdline() for child in below}
        return {
            Path(line[-1]).stem: child for child, line in lines.items() if "clusters.member" in " ".join(line)
        }

    def below(self) -> set[int]:
        return {child.pid for child in psutil.Process(self.processes[-1].pid).children(recursive=True)}


@pytest.fixture
def group(tmp_path: Path, text_folder: Path, cache: Path) -> Iterator[Group]:
    made = Group(tmp_path, text_folder, cache)
    yield made
    for process in made.processes:
        if process.poll() is None:
            process.kill()
            process.communicate()


def document(process: subprocess.Popen[str], code: int) -> tuple[dict[str, Any], str]:
    """What `--json` printed at the end, and the errors."""
    out, err = process.communicate(timeout=280)
    assert process.returncode == code, err
    return json.loads(out), err


def test_a_cluster_that_fails_ends_no_other_and_is_resumed_by_the_same_command(group: Group) -> None:
    first = group.start("--json")
    group.until_step(12, "three")  # a checkpoint of step 5 is complete by then
    group.launches()["three"].send_signal(signal.SIGKILL)
    found, err = document(first, 1)
    assert {each["cluster"]: each["status"] for each in found["clusters"]} == {
        "one": "finished",
        "two": "finished",
        "three": "failed",
    }
    assert "1 of 3 runs failed; run the same command again to resume" in err
    assert (found["overall"]["finished"], found["overall"]["failed"]) == (2, 1)
    losses = [
        [row["loss"] for row in untimed(group.run_dir(name)) if row["kind"] == "train"] for name in NAMES
    ]
    assert len(losses[0]) == len(losses[1]) == 24
    assert losses[0] != losses[1], "two has a seed of its own"
    assert 12 <= len(losses[2]) < 24

    found, _ = document(group.start("--json"), 0)
    by_name = {each["cluster"]: each for each in found["clusters"]}
    assert {each["status"] for each in by_name.values()} == {"finished"}
    assert by_name["three"]["resumed_from"] >= 5
    assert [each["step"] for each in by_name.values()] == [24, 24, 24]
    again = [row["loss"] for row in untimed(group.run_dir("three")) if row["kind"] == "train"]
    assert again[-5:] == losses[0][-5:], "the same seed as one"
    overall = found["overall"]
    assert (overall["clusters"], overall["finished"], overall["failed"], overall["resumes"]) == (3, 3, 0, 1)
    assert overall["best_validation"] <= overall["mean_validation"]
    page = Path(found["report"]).read_text()
    assert all(f"night-{name}" in page for name in NAMES)
    assert "All together" in page
    assert "mean of the best validations" in page


@pytest.mark.deep
def test_ctrl_c_saves_every_run_and_leaves_no_process(group: Group) -> None:
    process = group.start("steps=2000")
    group.until_step(3, *NAMES)
    below = group.below()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, (out, err)
    assert "stopping all runs" in out
    assert not running(below)
    for name in NAMES:
        record = json.loads((group.run_dir(name) / "run.json").read_text())
        assert record["launches"][-1]["status"] == "stopped", name


@pytest.mark.deep
def test_runs_end_with_a_group_that_is_killed(group: Group) -> None:
    process = group.start("steps=2000")
    group.until_step(1, *NAMES)
    below = group.below()
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    wait_for(lambda: not running(below), f"left behind: {running(below)}", 60)
    with workspace():
        """The next launch removes the working folders of those that were killed."""


def test_mistakes_on_any_cluster_are_reported_before_anything_starts(group: Group) -> None:
    entries = json.loads((group.folder / "clusters.yaml").read_text())
    entries[0]["overrides"] = ["stepz=1"]
    entries[2]["stack"] = "nowhere.json"
    (group.folder / "clusters.yaml").write_text(json.dumps(entries))
    out, err = group.start().communicate(timeout=120)
    assert group.processes[-1].returncode == 2
    assert {line.split()[0] for line in out.splitlines()} == {"[two]"}, (
        "only a valid launch is checked further"
    )
    assert "nothing was started" in err
    assert "stepz" in err
    assert "nowhere.json" in err
    assert not (group.folder / "runs").exists()
    assert not (group.folder / "two").exists()
