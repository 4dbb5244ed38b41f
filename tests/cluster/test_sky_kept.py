"""A SkyPilot cluster that outlives its runs, on a real cluster: an edited workload needs no new pods."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import psutil
import pytest

from tests.cluster.conftest import until
from tests.cluster.sky_place import NEAR, PROGRAM, TWO, Place, place
from tests.training.user_code import FEW_STEPS, write_page
from trainfleet.process import every_process

pytestmark = [pytest.mark.cluster, pytest.mark.deep, pytest.mark.timeout(1500)]
__all__ = ["place"]
KEPT = ("--cluster", "shared", "--idle", "20m")
ENDLESS = ("steps=20000", "log.every=5", "checkpoint.every=1000", "validation.every=20000")


def arguments(place: Place, recipe: Path, run: str, *more: str) -> list[str]:
    """A launch of the edited folder on the cluster that stays."""
    return [
        *("launch", str(recipe), "--on", "sky", "--stack", f"{NEAR}.json", "--from-secret", "s3-keys"),
        *("--storage", f"{place.store.url}/runs", "--run", run, "--code", str(recipe.parent)),
        *(*KEPT, *more),
    ]


def uids(place: Place) -> set[str]:
    found = json.loads(place.cluster.kubectl("-n", NEAR, "get", "pods", "-o", "json"))["items"]
    return {pod["metadata"]["uid"] for pod in found}


def tunnels(place: Place) -> list[psutil.Process]:
    """The processes through which SkyPilot's server calls its process in the head's pod (SKYLET_GRPC_PORT)."""
    found = []
    for each in every_process():
        try:
            own = each.environ().get("HOME") == place.environment["HOME"]
            if own and each.name() == "kubectl" and any(part.endswith(":46590") for part in each.cmdline()):
                found.append(each)
        except psutil.Error:
            continue
    return found


def test_an_edited_workload_runs_on_the_pods_of_the_run_before(place: Place) -> None:
    recipe = write_page(place.folder / "scratch", unit="as written")
    first = place.call(*arguments(place, recipe, "first", *TWO, *FEW_STEPS))
    assert first.returncode == 0, first.stderr
    assert "creating the cluster shared, which is deleted 20 minutes after its last run" in first.stdout
    before = uids(place)
    assert len(before) == 2
    write_page(place.folder / "scratch", unit="as edited")
    second = place.call(*arguments(place, recipe, "second", *TWO, *FEW_STEPS, "--json"))
    assert second.returncode == 0, second.stderr
    assert place.record("second")["unit"] == "as edited"
    assert uids(place) == before

    larger = place.call(*arguments(place, recipe, "larger", "scaling.workers=1", *FEW_STEPS))
    assert larger.returncode == 2, larger.stderr
    assert "has 2 pods, and the run needs 1" in larger.stderr

    with place.launched("stopped", NEAR, more=(*TWO, *ENDLESS, *KEPT)) as launch:
        launch.reach(10)
        assert tunnels(place)
        for each in tunnels(place):
            each.kill()
        launch.reach(launch.step() + 20)
        assert launch.interrupt() == 130, launch.output
    assert "which is saved" in launch.output
    assert uids(place) == before, "Ctrl-C deleted the cluster"
    again = place.call(*arguments(place, recipe, "again", *TWO, *FEW_STEPS, "--json"))
    assert again.returncode == 0, again.stderr
    assert uids(place) == before

    down = [str(Path(PROGRAM).with_name("sky")), "down", "shared", "--yes"]
    subprocess.run(down, env=place.environment, check=True, capture_output=True, timeout=600)
    place.gone()
    until(lambda: not tunnels(place), "nothing of the cluster is left", 30)
