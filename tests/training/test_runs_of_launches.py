"""`trainfleet runs` with real launches on this machine: listed, followed, attached to and stopped from another
folder, also after their launcher was killed.
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

import pytest

from tests.training.launches import Launcher, rows, wait_for

pytestmark = [pytest.mark.launch, pytest.mark.timeout(900)]
LONG = ("steps=100000", "validation.every=100000", "checkpoint.every=50", "scaling.workers=1")


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory, text_folder: Path, cache: Path) -> Iterator[Launcher]:
    made = Launcher(tmp_path_factory.mktemp("runs"), text_folder, cache)
    yield made
    made.end()


def call(launcher: Launcher, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`trainfleet runs` in another folder, as on another machine that has the storage."""
    program = str(Path(sys.executable).with_name("trainfleet"))
    return subprocess.run(
        [program, "runs", *arguments, "--storage", str(launcher.storage)],
        cwd=folder,
        env=launcher.environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def listed(launcher: Launcher, folder: Path, run: str) -> dict[str, Any]:
    done = call(launcher, folder, "list", "--json")
    assert done.returncode == 0, done.stderr
    return next(each for each in json.loads(done.stdout)["runs"] if each["run"] == run)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("on", ["torchrun", "local"])
def test_a_run_is_listed_and_stopped_from_another_folder(launcher: Launcher, tmp_path: Path, on: str) -> None:
    launched = launcher(f"stopped-{on}", *LONG, on=on, TRAINFLEET_OWNER="ada")
    launched.until_step(10)
    found = listed(launcher, tmp_path, f"stopped-{on}")
    assert (found["state"], found["on"], found["owner"], found["steps"]) == ("running", on, "ada", 100000)
    assert found["step"] >= 10
    done = call(launcher, tmp_path, "stop", f"stopped-{on}", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["how"] == "saved and ended"
    code, _, errors = launched.finish()
    assert (code, "which is saved" in errors) == (130, True), errors
    launched.gone()
    found = listed(launcher, tmp_path, f"stopped-{on}")
    assert found["state"] == "stopped"
    assert (launched.run_dir / "checkpoints" / f"step-{found['step']:08}" / "COMMITTED").exists()
    again = call(launcher, tmp_path, "stop", f"stopped-{on}", "--json")
    assert json.loads(again.stdout)["how"] == "had already ended"
    lines = call(launcher, tmp_path, "logs", f"stopped-{on}")
    assert f"step {rows(launched.run_dir)[-1]['step']:>6}/100000" in lines.stdout


@pytest.mark.deep
def test_a_run_without_its_launcher_is_lost_and_resumes(launcher: Launcher, tmp_path: Path) -> None:
    launched = launcher("lost", *LONG)
    launched.until_step(60)
    launched.kill_all()
    assert listed(launcher, tmp_path, "lost")["state"] == "lost"
    done = call(launcher, tmp_path, "stop", "lost")
    assert (done.returncode, "nothing could be asked to stop" in done.stderr) == (1, True), done.stderr
    attached = call(launcher, tmp_path, "attach", "lost")
    assert (attached.returncode, "the run is lost" in attached.stderr) == (1, True), attached.stderr


def test_attach_follows_to_the_end_and_ctrl_c_ends_only_itself(launcher: Launcher, tmp_path: Path) -> None:
    launched = launcher("followed", "steps=400", "validation.every=400", "scaling.workers=1")
    launched.until_step(5)
    program = str(Path(sys.executable).with_name("trainfleet"))
    attach = [program, "runs", "attach", "followed", "--storage", str(launcher.storage)]
    first = subprocess.Popen(
        attach, cwd=tmp_path, env=launcher.environment, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    assert first.stdout is not None
    assert "step" in first.stdout.readline()
    first.send_signal(signal.SIGINT)
    rest = first.communicate(timeout=120)[0]
    assert (first.returncode, "detached: the run continues" in rest) == (0, True), rest
    assert launched.process.poll() is None, "Ctrl-C in attach ended the run"
    second = subprocess.run(
        attach,
        cwd=tmp_path,
        env=launcher.environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert second.returncode == 0, second.stderr
    assert "step   5/400" in second.stdout
    assert "finished 400 steps" in second.stdout
    code, _, errors = launched.finish()
    assert code == 0, errors
    launches = json.loads((launched.run_dir / "run.json").read_text())["launches"]
    assert [each["status"] for each in launches] == ["finished"]


@pytest.mark.deep
def test_a_rank_that_no_signal_reaches_is_stopped_through_its_storage(
    launcher: Launcher, tmp_path: Path
) -> None:
    launched = launcher("through-storage", *LONG)
    launched.until_step(10)
    record = launched.run_dir / "run.json"

    def claim_elsewhere() -> None:
        """As if it had been launched on another machine."""
        document = json.loads(record.read_text())
        document["launches"][-1]["host"] = "elsewhere"
        temporary = record.with_suffix(".new")
        temporary.write_text(json.dumps(document))
        os.replace(temporary, record)

    claim_elsewhere()
    done = call(launcher, tmp_path, "stop", "through-storage", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["how"] == "saved and ended"
    wait_for(lambda: launched.process.poll() is not None, "its launcher ends")
    code, _, errors = launched.finish()
    assert (code, "which is saved" in errors) == (130, True), errors
