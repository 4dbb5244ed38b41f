"""A run by SkyPilot whose launcher is gone, from another folder, while SkyPilot's API server is killed."""

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import Any

import psutil
import pytest

from tests.cluster.conftest import until
from tests.cluster.faults import Note, show
from tests.cluster.launches import SUSPENDED_S, Launch, suspended
from tests.cluster.pauses import Pauses
from tests.cluster.sky_place import NEAR, TWO, Place, place
from trainfleet.process import every_process

pytestmark = [pytest.mark.cluster, pytest.mark.deep, pytest.mark.timeout(1500)]
__all__ = ["place"]
ENDLESS = ("steps=20000", "log.every=5", "checkpoint.every=50", "validation.every=20000")
FEW = ("steps=1500", "log.every=5", "checkpoint.every=100", "validation.every=1500")
REPEATS = int(os.environ.get("TRAINFLEET_REPEATS", "1"))
"""How often SkyPilot's server is killed under each command."""
FURTHER = 100
"""Steps after the server was killed, before the log counts as continued: more than were on the way."""


def listed_in(place: Place) -> list[dict[str, Any]]:
    """The runs in the store, as this place sees them."""
    listed = place.call("runs", "list", "--storage", f"{place.store.url}/runs", "--json")
    found: list[dict[str, Any]] = json.loads(listed.stdout)["runs"]
    return found


def in_group(group: int) -> list[str]:
    """The command lines of the processes of a group."""
    found = []
    for process in every_process():
        with contextlib.suppress(psutil.Error, OSError):
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline()))
    return found


def server_killed(place: Place, launch: Launch, record_property: Note, what: str) -> None:
    """Kill the server, and wait for a new step. The longest time without a step is recorded, not asserted."""
    for _ in range(REPEATS):
        with Pauses(lambda: launch) as pauses:
            group = place.kill_server()
            launch.reach(launch.step() + FURTHER, 300)
        until(lambda group=group: not in_group(group), "what the killed server left is ended", 60)
        show(record_property, f"server killed under {what}", next_step=pauses.stopped)


def test_a_run_whose_launcher_was_killed_is_shown_and_stopped_from_another_folder(
    place: Place, record_property: Note
) -> None:
    there = ("--storage", f"{place.store.url}/runs")
    with place.launched("left", NEAR, more=(*TWO, *ENDLESS)) as launch:
        launch.reach(10)
        launch.kill()
    elsewhere = place.elsewhere()
    (listed,) = listed_in(elsewhere)
    assert (listed["run"], listed["state"], listed["on"]) == ("left", "running", "sky")
    logs = elsewhere.call("runs", "logs", "left", *there)
    assert "step " in logs.stdout, logs.stderr

    with elsewhere.started("attach", "runs", "attach", "left", *there) as attach:
        attach.reach(15)
        server_killed(place, attach, record_property, "runs attach, unmanaged")
        stopped = elsewhere.call("runs", "stop", "left", *there)
        assert stopped.returncode == 0, stopped.stderr
        assert "saved and ended" in stopped.stdout + stopped.stderr
        until(lambda: attach.ended, "attach ends with the run", 120)
    assert attach.process.returncode == 130, attach.output
    assert (elsewhere.folder / "runs" / "left" / "report.html").is_file()
    (after,) = listed_in(elsewhere)
    assert after["state"] == "stopped"
    place.gone()


def test_a_managed_job_outlives_its_launcher_and_skypilots_server(
    place: Place, record_property: Note
) -> None:
    """The run is long enough to continue while the server starts twice, even where a step takes 0.03 s."""
    there, steps = ("--storage", f"{place.store.url}/runs"), 6000 * REPEATS
    with place.launched("kept-on", NEAR, more=(*TWO, *FEW, f"steps={steps}", "--managed")) as launch:
        launch.reach(10)
        server_killed(place, launch, record_property, "launcher, managed")
        launch.kill()
    elsewhere = place.elsewhere()
    with elsewhere.started("attach", "runs", "attach", "kept-on", *there) as attach:
        attach.reach(15)
        server_killed(place, attach, record_property, "runs attach, managed")
        assert attach.process.wait(900) == 0, attach.output
    (after,) = [each for each in listed_in(elsewhere) if each["run"] == "kept-on"]
    assert (after["state"], after["step"]) == ("finished", steps)
    place.gone()


def test_a_run_finishes_while_its_launcher_is_suspended(place: Place) -> None:
    """As on a laptop that is closed for ten minutes. Its pods are held until the launcher is back."""
    with place.launched("suspended", NEAR, more=(*TWO, *FEW)) as launch:
        launch.reach(10)
        with suspended(launch.process):
            time.sleep(SUSPENDED_S)
            (there,) = [each for each in listed_in(place.elsewhere()) if each["run"] == "suspended"]
            assert (there["state"], there["step"]) == ("finished", 1500)
        assert launch.process.wait(300) == 0, launch.output
    assert "finished 1500 steps" in launch.output
    place.gone()


def test_of_two_launches_of_one_name_at_once_one_trains(place: Place) -> None:
    """From two folders: in one folder, the run's lock rejects the second before SkyPilot."""
    elsewhere, few = place.elsewhere(), ("steps=20", "log.every=5", "checkpoint.every=20")
    with (
        place.launched("twice", NEAR, more=(*TWO, *few)) as first,
        elsewhere.launched("twice", NEAR, more=(*TWO, *few)) as second,
    ):
        codes = [each.process.wait(900) for each in (first, second)]
    outputs = [each.output for each in (first, second)]
    assert sorted(codes) == [0, 2], outputs
    assert "finished 20 steps" in outputs[codes.index(0)]
    assert "already in progress" in outputs[codes.index(2)]
    (listed,) = [each for each in listed_in(place) if each["run"] == "twice"]
    assert (listed["state"], listed["step"]) == ("finished", 20)
    place.gone()
