"""Launchers: a run ends with all its processes, resumes, is not started twice at once, and leaves nothing
behind.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.training.launches import Launcher, rows, running, untimed, wait_for
from trainfleet import recipes
from trainfleet.errors import InputError
from trainfleet.infra.outputs.contract import CONTRACT_VERSION
from trainfleet.training.launch.base import LAUNCHERS, find
from trainfleet.training.launch.base import Launcher as BaseLauncher
from trainfleet.training.launch.options import LaunchOptions
from trainfleet.training.launch.request import Request, Target
from trainfleet.training.launch.supervise import resolve
from trainfleet.training.recipe.schema import ScalingConfig
from trainfleet.training.runtime import local_resources

pytestmark = pytest.mark.timeout(900)
ONE = "scaling.workers=1"
"""One rank, for tests that do not depend on the number of ranks; it starts in half the time."""


@pytest.fixture
def launcher(tmp_path: Path, text_folder: Path, cache: Path) -> Iterator[Launcher]:
    made = Launcher(tmp_path / "runs", text_folder, cache)
    yield made
    made.end()


def workspaces(pid: int) -> list[Path]:
    """The working folders of the launcher `pid`."""
    return list(Path(tempfile.gettempdir()).glob(f"tf-{pid}-*"))


def outputs(**changes: Any) -> dict[str, Any]:
    """The outputs of a platform as `pulumi stack output --json` prints them."""
    plain = {
        "contract_version": 1,
        "trainfleet_version": "0.1.0",
        "name": "bench",
        "cloud": "local",
        "region": "here",
        "environment": "dev",
        "kube_context": "local",
        "kubeconfig": "{}",
        "bucket_url": "file:///srv/bench",
        "registry": "",
        "image": "trainfleet:dev",
        "namespace": "training",
        "service_account": "trainer",
        "training_identity": "",
        "queue": "",
        "autoscaler": "",
        "shared_volume": "",
        "secrets": [],
        "pools": [],
        "ray_version": "2.60.0",
        "ray_tls": True,
        "ray_token_auth": True,
    }
    return {"platform": plain | changes}


@pytest.mark.launch
@pytest.mark.parametrize(
    ("on", "number"),
    [
        ("torchrun", signal.SIGINT),
        pytest.param("torchrun", signal.SIGTERM, marks=pytest.mark.deep),
        pytest.param("local", signal.SIGINT, marks=pytest.mark.deep),
    ],
)
def test_a_signal_saves_and_ends_every_process_and_the_run_resumes(
    launcher: Launcher, on: str, number: int
) -> None:
    launched = launcher("stopped", "steps=400", "checkpoint.every=1000", on=on)
    launched.until_step(3)
    launched.process.send_signal(number)
    code, stdout, errors = launched.finish()
    assert code == 130, errors
    assert "run the same command again" in errors
    assert "Traceback" not in stdout + errors
    assert running(launched.seen) == set()
    assert workspaces(launched.process.pid) == []
    saved = list((launched.run_dir / "checkpoints").glob("*/COMMITTED"))
    assert len(saved) == 1
    step = int(saved[0].parent.name.removeprefix("step-"))
    assert json.loads((launched.run_dir / "run.json").read_text())["launches"][-1]["status"] == "stopped"
    again = launcher("stopped", "steps=400", "checkpoint.every=1000")
    again.until_step(step + 1)
    again.kill_all()
    assert [row["step"] for row in rows(again.run_dir) if row["kind"] == "train"][: step + 1] == list(
        range(1, step + 2)
    )


@pytest.mark.launch
@pytest.mark.deep
def test_a_signal_before_the_first_step_ends_every_process(launcher: Launcher) -> None:
    launched = launcher("early", on="local")
    wait_for(lambda: len(launched.look()) >= 3, "no process below the launcher")
    launched.process.send_signal(signal.SIGTERM)
    code, _, errors = launched.finish()
    assert code == 130, errors
    launched.gone()
    assert workspaces(launched.process.pid) == []


@pytest.mark.launch
@pytest.mark.deep
@pytest.mark.parametrize("on", ["torchrun", "local"])
def test_the_processes_of_a_killed_launcher_end(launcher: Launcher, on: str) -> None:
    launched = launcher("orphans", "steps=2000", on=on)
    launched.until_step(2)
    launched.look()
    assert len(launched.seen) >= 3
    left = workspaces(launched.process.pid)
    assert left
    os.kill(launched.process.pid, signal.SIGKILL)
    launched.process.communicate()
    launched.gone()
    finished = launcher("swept", ONE, "steps=2", "validation.every=2")
    assert finished.finish()[0] == 0
    assert not any(folder.exists() for folder in left), "the next launch removes what a killed one left"


@pytest.mark.launch
@pytest.mark.deep
def test_a_killed_worker_restarts_and_the_losses_are_the_same(launcher: Launcher) -> None:
    whole = launcher("whole")
    assert whole.finish()[0] == 0
    launched = launcher("worker")
    launched.until_step(7)
    ranks = launched.workers()
    assert len(ranks) == 2
    ranks[-1].kill()
    code, _, errors = launched.finish()
    assert code == 0, errors
    assert untimed(launched.run_dir) == untimed(whole.run_dir)
    assert len(json.loads((launched.run_dir / "run.json").read_text())["starts"]) == 2


@pytest.mark.launch
@pytest.mark.deep
def test_a_finished_run_is_reported_and_fresh_moves_it_away(launcher: Launcher) -> None:
    first = launcher("done", ONE, "steps=2", "validation.every=2")
    assert first.finish()[0] == 0
    before = (first.run_dir / "metrics.jsonl").read_bytes()
    code, stdout, _ = launcher("done", ONE, "steps=2", "validation.every=2").finish()
    assert code == 0
    assert "nothing to do" in stdout
    assert (first.run_dir / "metrics.jsonl").read_bytes() == before
    code, stdout, errors = launcher(
        "done", ONE, "steps=2", "validation.every=2", "--fresh", "--json"
    ).finish()
    assert code == 0, errors
    document = json.loads(stdout)
    assert (document["status"], document["step"], document["resumed_from"]) == ("finished", 2, 0)
    assert Path(document["report"]).is_file()
    assert len(document["losses"]) == 2
    aside = [each for each in first.run_dir.parent.iterdir() if each.name.startswith("done.")]
    assert len(aside) == 1
    assert (aside[0] / "metrics.jsonl").read_bytes() == before


@pytest.mark.launch
def test_a_second_launch_of_a_run_is_rejected(launcher: Launcher) -> None:
    first = launcher("busy", ONE, "steps=2000")
    wait_for((first.run_dir / "run.json").exists, "no run.json")
    code, _, errors = launcher("busy", ONE, "steps=2000").finish()
    assert code == 2
    assert "already in progress" in errors
    assert "Traceback" not in errors
    first.kill_all()


@pytest.mark.launch
@pytest.mark.deep
def test_a_local_platform_sets_the_runs_folder_and_is_recorded(launcher: Launcher, tmp_path: Path) -> None:
    file = tmp_path / "outputs.json"
    file.write_text(json.dumps(outputs(bucket_url=f"file://{tmp_path}/bucket")))
    recipe, (platform,) = resolve(Request("lm-tiny", on="torchrun", stacks=(str(file),), run="night"), {})
    assert recipe.run_dir() == tmp_path / "bucket" / "night"
    assert platform.facts()["contract_version"] == CONTRACT_VERSION, (
        "the contract of an older release is migrated"
    )
    launched = launcher("placed", ONE, "steps=1", "--platform", str(file))
    assert launched.finish()[0] == 0
    noted = json.loads((launched.run_dir / "run.json").read_text())["launches"][-1]["platform"]
    assert (noted["name"], noted["cloud"]) == ("bench", "local")


def test_a_platform_with_an_object_store_stores_runs_below_its_url(tmp_path: Path) -> None:
    file = tmp_path / "outputs.json"
    file.write_text(json.dumps(outputs(bucket_url="s3://bucket")))
    recipe, (platform,) = resolve(Request("lm-tiny", stacks=(str(file),)), {})
    assert (recipe.home_url(), str(recipe.run_dir())) == ("s3://bucket/lm-tiny", "runs/lm-tiny")
    assert (
        resolve(Request("lm-tiny", stacks=(str(file),), storage=str(tmp_path)), {})[0].run_dir()
        == tmp_path / "lm-tiny"
    )
    assert all({"instance_type", "spot", "usd_per_hour"} <= set(pool) for pool in platform.facts()["pools"])


def test_the_storage_of_a_platform_gives_way_to_one_that_is_named(tmp_path: Path) -> None:
    stack, other = tmp_path / "outputs.json", tmp_path / "other.json"
    stack.write_text(json.dumps(outputs(bucket_url="s3://bucket/runs")))
    other.write_text(json.dumps(outputs(name="other", bucket_url="gs://other")))
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"{(Path(recipes.__path__[0]) / 'lm-tiny.yaml').read_text()}\nstorage: s3://of-the-file\n"
    )

    def storage(*overrides: str, **fields: Any) -> str:
        stacks = (str(stack), str(other))
        request = Request(str(recipe), overrides=overrides, on="sky", stacks=stacks, **fields)
        return resolve(request, {"TRAINFLEET_STORAGE": "s3://of-the-environment"})[0].storage

    assert storage() == "s3://bucket/runs"
    assert storage("seed=3", "storage=s3://mine") == "s3://mine"
    assert storage("storage=s3://mine", storage="s3://named") == "s3://named"


@pytest.mark.parametrize("name", ["local", "torchrun"])
def test_every_launcher_on_this_machine_has_a_check_and_a_command(name: str, tmp_path: Path) -> None:
    recipe, _ = resolve(Request("lm-tiny"), {})
    command = find(name).command(
        recipe, tmp_path / "recipe.yaml", Target(Request("lm-tiny", on=name), (), tmp_path)
    )
    assert find_spec(command[command.index("-m") + 1]) is not None
    assert command[-1] == str(tmp_path / "recipe.yaml")


@pytest.mark.parametrize("name", sorted(LAUNCHERS))
def test_every_name_is_a_launcher_with_options(name: str) -> None:
    launcher = find(name)
    assert isinstance(launcher, BaseLauncher)
    assert issubclass(launcher.options_model, LaunchOptions)


def test_too_many_workers_are_rejected_with_the_number_that_fits() -> None:
    with pytest.raises(InputError, match=r"need 999 CPUs, this machine has \d+ \(such as scaling.workers="):
        local_resources.require(ScalingConfig(workers=999))
