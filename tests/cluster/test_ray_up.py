"""`--on ray-up` on two hosts over SSH: the losses of a local run, and nothing left on the hosts.

The hosts are namespaces of this machine, each with an SSH server. The store has TLS; a file carries its keys.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cluster.conftest import until
from tests.cluster.hosts import Hosts, hosts
from tests.cluster.launches import SUSPENDED_S, Launch, fill, suspended
from trainfleet.local_cluster.store import Store, gateway
from trainfleet.local_cluster.stores.servers import KEY, SECRET

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]
KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
LONG = ("steps=4000", "log.every=5", "checkpoint.every=20", "validation.every=4000")


@dataclass(frozen=True)
class Place:
    """Two hosts, a store that they reach, and how to launch on them."""

    hosts: Hosts
    store: Store
    folder: Path

    def arguments(self, run: str, *more: str) -> list[str]:
        machines = [part for host in self.hosts.each for part in ("--host", host.address)]
        keys = [part for name in KEYS for part in ("--secret", name)]
        access = ["--ssh-user", "root", "--ssh-key", str(self.hosts.key), *keys]
        return [
            "launch",
            "lm-tiny",
            "--on",
            "ray-up",
            *machines,
            *access,
            "--storage",
            f"{self.store.url}/runs",
            "--run",
            run,
            *self.recipe,
            *more,
        ]

    @property
    def recipe(self) -> list[str]:
        return ["scaling.cpus_per_worker=0.5", f"workload.data.source={self.store.url}/text"]

    @property
    def env(self) -> dict[str, str]:
        return (
            os.environ
            | self.store.environment
            | {
                "NO_COLOR": "1",
                "COLUMNS": "160",
                "PYTHONUNBUFFERED": "1",
                "XDG_STATE_HOME": str(self.folder / "state"),
            }
        )

    def call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [program("trainfleet"), *arguments],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )

    @contextlib.contextmanager
    def launched(self, run: str, *more: str) -> Iterator[Launch]:
        """Launch in the background for the duration of the block."""
        file = self.folder / f"{run}.out"
        command = [program("trainfleet"), *self.arguments(run, *more)]
        with file.open("w") as log:
            launch = Launch(
                subprocess.Popen(
                    command, cwd=self.folder, env=self.env, stdout=log, stderr=subprocess.STDOUT, text=True
                ),
                file,
            )
        try:
            yield launch
        finally:
            launch.kill()

    def left(self) -> dict[str, Any]:
        """What a run left on the hosts and on this machine."""
        here = self.folder / "state" / "trainfleet" / "ray-up"
        return {
            "programs": [line for host in self.hosts.each for line in host.programs() if "sshd" not in line],
            "home": sorted(
                name for host in self.hosts.each for name in host.home() if name not in (".cache", ".ray")
            ),
            "secrets": [
                name for host in self.hosts.each for name in host.tmp() if name.startswith("trainfleet-")
            ],
            "here": sorted(path.name for path in here.iterdir()) if here.exists() else [],
        }

    def leaves_nothing(self) -> None:
        """Wait until nothing is left: the head's last process sees the end within seconds."""
        until(lambda: self.left() == NOTHING, "nothing is left of the run", 10)


NOTHING: dict[str, Any] = {"programs": [], "home": [], "secrets": [], "here": []}


def program(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Two hosts, and a store with data in it."""
    folder = tmp_path_factory.mktemp("hosts")
    (folder / "store").mkdir()
    with hosts(2, folder) as found, gateway(found.here, folder / "store", (KEY, SECRET)) as store:
        fill(store.folder)
        yield Place(found, store, folder)


@pytest.mark.deep
def test_a_run_on_ray_up_has_the_losses_of_a_local_run_and_leaves_nothing(place: Place) -> None:
    there = place.call(*place.arguments("there", "--json"))
    log = place.folder / "runs" / "there" / "launch.log"
    assert there.returncode == 0, there.stderr + (log.read_text() if log.exists() else "")
    here = place.call(
        "launch",
        "lm-tiny",
        "--on",
        "local",
        "--run",
        "here",
        "--storage",
        str(place.folder / "here"),
        "--json",
        *place.recipe,
    )
    assert here.returncode == 0, here.stderr
    one, other = json.loads(there.stdout), json.loads(here.stdout)
    assert one["step"] == other["step"] == 40
    assert [round(loss, 6) for _, loss in one["losses"]] == [round(loss, 6) for _, loss in other["losses"]]
    assert Path(one["report"]).is_file()
    place.leaves_nothing()
    assert SECRET not in Path(one["report"]).read_text() + "".join(
        path.read_text() for path in place.folder.glob("runs/there/*.log")
    )


@pytest.mark.deep
def test_a_stopped_run_saves_and_leaves_nothing(place: Place) -> None:
    with place.launched("stopped", *LONG) as launch:
        launch.reach(30, 600)
        assert launch.interrupt() == 130, launch.output
    assert "which is saved" in launch.output
    place.leaves_nothing()


@pytest.mark.slow
def test_a_detached_run_ends_and_its_head_then_cleans_up_the_hosts(place: Place) -> None:
    """Nobody runs `ray down`: the launcher has ended."""
    left = place.call(*place.arguments("left", "steps=20", "--detach", "--idle", "12s"))
    assert left.returncode == 0, left.stderr
    checkpoints = place.store.folder / "runs" / "runs" / "left" / "checkpoints"
    until(checkpoints.is_dir, "the run saves", 300)

    def on_hosts() -> dict[str, Any]:
        return {name: found for name, found in place.left().items() if name != "here"}

    until(lambda: not any(on_hosts().values()), "the head cleans up", 300)
    assert list(checkpoints.rglob("COMMITTED"))
    # The launcher's files, with which `runs attach` and `ray down` reach the hosts, stay on this machine.
    assert place.left()["here"] == ["tf-left"]
    shutil.rmtree(place.folder / "state" / "trainfleet" / "ray-up" / "tf-left")


@pytest.mark.deep
def test_a_run_outlives_its_launcher_and_is_followed_to_its_end(place: Place) -> None:
    """The ssh connection is cut, then the launcher is killed. A second launch must not restart Ray."""
    steps = ("steps=1500", "log.every=10", "checkpoint.every=100", "validation.every=1500")
    with place.launched("outlives", *steps, "--idle", "20s") as launch:
        launch.reach(20, 600)
        for each in psutil.Process(launch.process.pid).children(recursive=True):
            if each.name() == "ssh":
                each.kill()
        seen = launch.step()
        launch.reach(seen + 40, 300)
        launch.process.kill()
        launch.process.wait()
    second = place.call(*place.arguments("outlives", *steps))
    assert second.returncode == 2, second.stderr
    assert "already in progress" in second.stderr
    assert "runs attach outlives" in second.stderr
    followed = place.call("runs", "attach", "outlives", "--storage", f"{place.store.url}/runs", "--json")
    assert followed.returncode == 0, followed.stderr
    here = place.call(
        *("launch", "lm-tiny", "--on", "local", "--run", "undisturbed", "--json"),
        *("--storage", str(place.folder / "here"), *place.recipe, *steps),
    )
    assert here.returncode == 0, here.stderr
    one, other = json.loads(followed.stdout), json.loads(here.stdout)
    assert one["step"] == other["step"] == 1500
    assert [round(loss, 6) for _, loss in one["losses"]] == [round(loss, 6) for _, loss in other["losses"]]

    def on_hosts() -> dict[str, Any]:
        return {name: found for name, found in place.left().items() if name != "here"}

    until(lambda: not any(on_hosts().values()), "the head cleans up", 300)
    shutil.rmtree(place.folder / "state" / "trainfleet" / "ray-up" / "tf-outlives")


@pytest.mark.deep
def test_a_run_finishes_while_its_launcher_is_suspended(place: Place) -> None:
    """As on a laptop that is closed for ten minutes. The launcher then finds the run and releases the hosts."""
    steps = ("steps=1500", "log.every=10", "checkpoint.every=100", "validation.every=1500")
    with place.launched("suspended", *steps) as launch:
        launch.reach(20, 600)
        with suspended(launch.process):
            time.sleep(SUSPENDED_S)
            listed = place.call("runs", "list", "--storage", f"{place.store.url}/runs", "--json")
            (there,) = [each for each in json.loads(listed.stdout)["runs"] if each["run"] == "suspended"]
            assert (there["state"], there["step"]) == ("finished", 1500)
        assert launch.process.wait(300) == 0, launch.output
    assert "finished 1500 steps" in launch.output
    place.leaves_nothing()


@pytest.mark.deep
def test_machines_that_stay_take_one_run_at_a_time(place: Place) -> None:
    with place.launched("first", "steps=300", "log.every=10", "--cluster", "shared") as launch:
        launch.reach(20, 600)
        second = place.call(*place.arguments("second", "steps=20", "--cluster", "shared"))
        assert second.returncode == 2, second.stderr
        assert "trains tf-first-" in second.stderr
        # The token of the head is on the machine that started it.
        elsewhere = replace(place, folder=place.folder / "elsewhere")
        elsewhere.folder.mkdir()
        third = elsewhere.call(*place.arguments("third", "steps=20", "--cluster", "shared"))
        assert third.returncode == 2, third.stderr
        assert "another machine started it" in third.stderr
        assert launch.process.wait(600) == 0, launch.output
    record = json.loads((place.folder / "runs" / "first" / "run.json").read_text())
    assert (record["status"], record["step"], len(record["starts"])) == ("finished", 300, 1)
    after = place.call(*place.arguments("after", "steps=20", "--cluster", "shared"))
    assert after.returncode == 0, after.stderr
    shared = place.folder / "state" / "trainfleet" / "ray-up" / "shared"
    bash(f"ray down --yes {shared}/cluster.yaml", place)
    shutil.rmtree(shared)


def test_a_launch_that_is_stopped_while_ray_starts_leaves_nothing(place: Place) -> None:
    with place.launched("early") as launch:
        until(
            lambda: launch.ended or any("ray" in line for line in place.hosts.each[0].programs()),
            "Ray starts on the head",
            300,
        )
        assert launch.interrupt() == 130, launch.output
    place.leaves_nothing()


@pytest.mark.deep
def test_the_printed_commands_work(place: Place) -> None:
    file = place.folder / "by-hand.yaml"
    written = place.call(*place.arguments("by-hand", "steps=10", "--write", str(file)))
    assert written.returncode == 0, written.stderr
    assert SECRET not in file.read_text() + written.stdout
    up, dashboard, token, submit, down = written.stdout.split("\n\n")[1].strip().splitlines()
    bash(up.replace("ray up", "ray up --yes"), place)
    try:
        waiting = "until curl --silent http://127.0.0.1:8265 >/dev/null; do sleep 0.5; done"
        output = bash(f"set -m\n{dashboard}\n{token}\ntrap 'kill %1' EXIT\n{waiting}\n{submit}", place)
        assert "succeeded" in output
    finally:
        bash(down.replace("ray down", "ray down --yes"), place)
    assert (place.store.folder / "runs" / "runs" / "by-hand" / "checkpoints").is_dir()


def bash(script: str, place: Place) -> str:
    environment = place.env | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=place.folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_all_unusable_hosts_are_reported_together(place: Place, tmp_path: Path) -> None:
    other = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)], check=True)
    done = place.call(
        *(str(other) if part == str(place.hosts.key) else part for part in place.arguments("refused"))
    )
    assert done.returncode == 2
    assert "a host cannot be used" in done.stderr
    assert done.stderr.count("Permission denied") == 2
    assert place.left()["here"] == []


def test_an_unreachable_head_is_reported(place: Place) -> None:
    head = place.hosts.each[0].address
    done = place.call(*("10.219.77.99" if part == head else part for part in place.arguments("gone")))
    assert done.returncode == 2
    assert "10.219.77.99" in done.stderr
    assert any(words in done.stderr for words in ("No route to host", "timed out", "refused"))
