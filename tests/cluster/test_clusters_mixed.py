"""One recipe at once on KubeRay, SkyPilot and `ray up`: two namespaces of the local cluster, and two hosts over
SSH. One run is lost midway, the same command resumes it, and one command stops all.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import until
from tests.cluster.hosts import NETWORK, Hosts, hosts
from tests.cluster.launches import Launch, document
from tests.cluster.sky_place import FAR, NEAR, PROGRAM, Place, place
from trainfleet.training.launch.remote.ray_job import RAY_VERSION

pytestmark = [pytest.mark.cluster, pytest.mark.deep, pytest.mark.timeout(1800)]
__all__ = ["place"]
NAMES = ("pods", "sky", "hosts")
SMALL = ("scaling.workers=1", "scaling.cpus_per_worker=0.05")
STEPS = ("steps=120", "log.every=5", "checkpoint.every=20", "validation.every=120")


@dataclass(frozen=True)
class Mixed:
    """Three launchers, a list that names them, and a store that all of them reach."""

    place: Place
    hosts: Hosts
    clusters: Path

    def arguments(self, run: str, *more: str) -> list[str]:
        storage = f"{self.place.store.url}/runs"
        there = ["--clusters", str(self.clusters), "--storage", storage, "--run", run]
        return ["launch", "lm-tiny", *there, *SMALL, *STEPS, self.place.data, *more]

    def begin(self, run: str, *more: str) -> Launch:
        """Launch in the background."""
        file = self.place.folder / f"{run}.out"
        with file.open("w") as log:
            process = subprocess.Popen(
                [PROGRAM, *self.arguments(run, *more)],
                cwd=self.place.folder,
                env=self.place.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
            )
        return Launch(process, file)

    def left(self) -> list[str]:
        """Pods, RayJobs, Ray's programs on the hosts, and cluster files."""
        kubectl = self.place.cluster.kubectl
        objects = [
            name
            for namespace in (NEAR, FAR)
            for name in kubectl("-n", namespace, "get", "pods,jobs,rayjobs", "-o", "name").split()
        ]
        programs = [line for host in self.hosts.each for line in host.programs() if "sshd" not in line]
        files = self.place.folder / ".local" / "state" / "trainfleet" / "ray-up"
        return [*objects, *programs, *(map(str, files.iterdir()) if files.exists() else ())]


@pytest.fixture(scope="module")
def mixed(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mixed]:
    with hosts(2, tmp_path_factory.mktemp("hosts")) as found:
        for host in found.each:
            (init,) = (
                Path(f"/proc/{host.process.pid}/task/{host.process.pid}/children").read_text().split()[:1]
            )
            route = ["ip", "route", "add", "default", "via", f"{NETWORK}.1"]  # to the store on this machine
            subprocess.run(["nsenter", "--target", init, "--net", *route], check=True)
        keys = {"from-secret": ["s3-keys"]}
        machines = {
            "host": [host.address for host in found.each],
            "ssh-user": "root",
            "ssh-key": str(found.key),
            "secret": ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"],
        }
        outputs = json.loads((place.folder / f"{FAR}.json").read_text()) | {"ray_version": RAY_VERSION}
        (place.folder / "pods.json").write_text(json.dumps(outputs))
        entries = [
            {"name": "pods", "launcher": "kuberay", "stack": "pods.json", "options": keys},
            {"name": "sky", "launcher": "sky", "stack": f"{NEAR}.json", "options": keys},
            {"name": "hosts", "launcher": "ray-up", "options": machines},
        ]
        file = place.folder / "clusters.yaml"
        file.write_text(json.dumps(entries))
        yield Mixed(place, found, file)


def status(found: dict[str, Any]) -> dict[str, str]:
    return {each["cluster"]: each["status"] for each in found["clusters"]}


def reached(launch: Launch, name: str, step: int) -> bool:
    """Whether the run on a cluster has shown a step, or the launch has ended."""
    lines = [line.split() for line in launch.output.splitlines() if line.startswith(f"[{name}]")]
    steps = [int(line[2].partition("/")[0]) for line in lines if line[1] == "step"]
    return launch.ended or max(steps, default=0) >= step


def test_a_run_that_is_lost_on_one_launcher_ends_no_other_and_is_resumed(mixed: Mixed) -> None:
    launch = mixed.begin("trio")
    try:
        until(lambda: reached(launch, "pods", 40), "step 40 on KubeRay", 900)
        assert not launch.ended, launch.output
        mixed.place.cluster.kubectl("-n", FAR, "delete", "rayjob", "tf-trio-pods", "--wait=false")
        assert launch.process.wait(900) == 1, launch.output
    finally:
        launch.kill()
    for name in NAMES:
        assert f"[{name}] the workload is valid" in " ".join(launch.output.split()), launch.output
    state = json.loads((mixed.place.folder / "runs" / "trio.clusters" / "clusters.json").read_text())
    assert status(state) == {"pods": "failed", "sky": "finished", "hosts": "finished"}
    assert "1 of 3 runs failed" in launch.output
    until(lambda: not mixed.left(), f"nothing is left: {mixed.left()}", 180)

    again = mixed.place.call(*mixed.arguments("trio"), "--json")
    assert again.returncode == 0, again.stderr
    found = document(again.stdout)
    assert status(found) == dict.fromkeys(NAMES, "finished")
    by_name = {each["cluster"]: each for each in found["clusters"]}
    assert by_name["pods"]["resumed_from"] >= 20
    losses = {name: each["metrics"]["test/loss"] for name, each in by_name.items()}
    assert losses == pytest.approx(dict.fromkeys(NAMES, losses["pods"]), abs=1e-6)
    assert (found["overall"]["finished"], found["overall"]["failed"]) == (3, 0)
    page = Path(found["report"]).read_text()
    assert all(f"trio-{name}" in page for name in NAMES)
    until(lambda: not mixed.left(), f"nothing is left: {mixed.left()}", 180)


def test_one_command_stops_the_runs_of_all_launchers(mixed: Mixed) -> None:
    launch = mixed.begin("halt", "steps=20000")
    try:
        until(lambda: all(reached(launch, name, 5) for name in NAMES), "step 5 everywhere", 900)
        assert not launch.ended, launch.output
        stopped = mixed.place.call("runs", "stop", "halt", "--json")
        assert stopped.returncode == 0, stopped.stderr
        assert {each["run"] for each in document(stopped.stdout)["runs"]} == {
            f"halt-{name}" for name in NAMES
        }
        launch.process.wait(300)
    finally:
        launch.kill()
    for name in NAMES:
        saved = mixed.place.store.folder / "runs" / "runs" / f"halt-{name}" / "checkpoints"
        assert list(saved.rglob("COMMITTED")), launch.output
    until(lambda: not mixed.left(), f"nothing is left: {mixed.left()}", 180)
