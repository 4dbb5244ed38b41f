"""Faults injected into one run on a real cluster: it recovers by itself, with the losses of a run alone.

The seconds from a fault to the next new step depend on the machine. They are recorded (`--junitxml`) and
printed (`-s`), but not asserted.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.conftest import until
from tests.cluster.cut import address, cut
from tests.cluster.launches import LONG, Launch, Place, launched, place
from trainfleet.local_cluster import node
from trainfleet.training.runs.reader import MARKER, read_rows

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1500)]
__all__ = ["place"]
RUN = "faulted"
AWAY_S = 8.0
"""How long the store or the network is unavailable: longer than one attempt of a call, but not all."""
Note = Callable[[str, object], None]


@pytest.fixture(scope="module")
def run(place: Place) -> Iterator[Launch]:
    """A run that trains while the tests of this module inject faults."""
    with launched(place, RUN, *LONG, "scaling.restarts=20") as launch:
        launch.reach(60)
        yield launch
        if not launch.ended:
            # A launcher that is killed leaves the temporary key files of its Kubernetes client.
            launch.interrupt()


def pod(place: Place, role: str) -> str:
    return place.names("pod", f"ray.io/node-type={role}")[0]


def kill_process(place: Place) -> None:
    place.kubectl(
        "exec", pod(place, "worker"), "-c", "ray-worker", "--", "pkill", "-9", "-f", "ray::.*RayTrainWo"
    )


def delete_worker(place: Place) -> None:
    place.kubectl("delete", pod(place, "worker"), "--wait=false")


def delete_head(place: Place) -> None:
    place.kubectl("delete", pod(place, "head"), "--wait=false")


def kill_operator(place: Place) -> None:
    kill_server(place, "ray-operator")


def kill_api_server(place: Place) -> None:
    kill_server(place, "kube-apiserver")


def kill_server(place: Place, name: str) -> None:
    """Send SIGKILL to a server of the node. The node restarts it."""
    pid = node.pid_of(place.cluster.state.control_plane)
    assert pid is not None
    number = json.loads(place.cluster.state.file("running.json").read_text())[name]["pid"]
    node.enter(pid, ["kill", "-9", str(number)])


def stop_store(place: Place) -> None:
    """Let the store accept connections and answer nothing for some seconds."""
    os.kill(place.store.pid, signal.SIGSTOP)
    _wait(AWAY_S)
    os.kill(place.store.pid, signal.SIGCONT)


def cut_workers_off(place: Place) -> None:
    """Drop the traffic between the two workers for some seconds."""
    one, other = (
        address(place.cluster, place.namespace, name.partition("/")[2])
        for name in place.names("pod", "ray.io/node-type=worker")
    )
    asked = f"timeout 2 bash -c ': < /dev/tcp/{other}/8080' && echo open || echo cut"
    with cut(place.cluster, one, other):
        assert place.kubectl(
            "exec", pod(place, "worker"), "-c", "ray-worker", "--", "bash", "-c", asked
        ).split() == ["cut"]
        _wait(AWAY_S)


def _wait(seconds: float) -> None:
    over = time.monotonic() + seconds
    until(lambda: time.monotonic() > over, "the time is up", seconds + 5)


def prestarted(place: Place) -> bool:
    """Whether each pod with ranks has a prestarted process that has finished its imports.

    This takes some seconds after a start.
    """
    ready = '[ "$a" = "$(ticks $p)" ] && grep -q libtorch_cpu /proc/$p/maps && echo ready'
    waiting = f"for p in $(pgrep -f '[r]ay::IDLE'); do a=$(ticks $p); sleep 1; {ready}; done"
    ranks = "pgrep -f '[r]ay::.*RayTrainWo' | sed 's/.*/rank/'"
    asked = f"ticks() {{ cut -d' ' -f14 /proc/$1/stat; }}; {waiting}; {ranks}"
    workers = [name.partition("/")[2] for name in place.names("pod", "ray.io/node-type=worker")]
    found = [
        place.kubectl("exec", name, "-c", "ray-worker", "--", "bash", "-c", asked, check=False).split()
        for name in workers
    ]
    return any("rank" in each for each in found) and all("ready" in each for each in found if "rank" in each)


def saved_steps(place: Place, run: str = RUN) -> list[int]:
    """The steps of the complete checkpoints in the store."""
    folder = place.store.folder / "runs" / "runs" / run / "checkpoints"
    return sorted(int(file.parent.name.partition("-")[2]) for file in folder.glob(f"step-*/{MARKER}"))


def show(note: Note, what: str, **seconds: float) -> None:
    for name, value in seconds.items():
        note(name, round(value, 1))
    load = os.getloadavg()[0]
    values = ", ".join(f"{name} {value:.1f} s" for name, value in seconds.items())
    sys.stdout.write(f"\n{what}: {values} (load {load:.0f})\n")


@pytest.mark.parametrize("fault", [kill_process, delete_worker, delete_head], ids=["process", "pod", "head"])
def test_a_run_resumes_from_its_newest_checkpoint_after_losing_a_process(
    fault: Callable[[Place], None], place: Place, run: Launch, record_property: Note
) -> None:
    until(lambda: prestarted(place), "processes wait for a restart", 120)
    resumed = run.output.count("resumed:")
    saved, before = saved_steps(place)[-1], run.step()
    began = time.monotonic()
    fault(place)
    until(lambda: run.ended or run.output.count("resumed:") > resumed, "the run has resumed", 400)
    back = time.monotonic() - began
    # The run is back at a checkpoint: only a step after `before` is new.
    run.reach(before + 1)
    show(record_property, fault.__name__, resumed=back, next_step=time.monotonic() - began)
    line = [each for each in run.output.splitlines() if each.startswith("resumed:")][-1]
    assert int(line.partition(", step ")[2].partition("/")[0]) >= saved, f"{line}; step {saved} was saved"


@pytest.mark.parametrize(
    "fault",
    [kill_operator, kill_api_server, stop_store, cut_workers_off],
    ids=["operator", "api-server", "store", "network"],
)
def test_a_run_continues_without_a_restart_when_a_service_is_lost(
    fault: Callable[[Place], None], place: Place, run: Launch, record_property: Note
) -> None:
    resumed, before = run.output.count("resumed:"), run.step()
    began = time.monotonic()
    fault(place)
    run.reach(max(before, run.step()) + 200)
    show(record_property, fault.__name__, next_200_steps=time.monotonic() - began)
    assert run.output.count("resumed:") == resumed
    until(lambda: place.cluster.status()["ready"], "the cluster is ready again")


@pytest.mark.slow
def test_the_run_with_faults_has_the_losses_of_an_undisturbed_run(place: Place, run: Launch) -> None:
    assert run.interrupt() == 130, run.output
    assert "which is saved" in run.output
    assert not [line for line in run.output.splitlines() if line.startswith(("quarantined", "fallback"))], (
        run.output
    )
    place.clean()
    faulted = losses(place.store.folder / "runs" / "runs" / RUN)
    alone = place.begin(
        "alone",
        "launch",
        "lm-tiny",
        "--on",
        "torchrun",
        "--run",
        "alone",
        "--storage",
        str(place.folder / "alone"),
        *LONG,
        place.data,
    )
    try:
        alone.reach(max(faulted))
        assert alone.interrupt() == 130, alone.output
    finally:
        alone.kill()
    undisturbed = losses(place.folder / "alone" / "alone")
    assert len(faulted) == max(faulted) // 5, "an interval is missing or was logged twice"
    assert faulted == {step: loss for step, loss in undisturbed.items() if step <= max(faulted)}


def losses(run_dir: Path) -> dict[int, float]:
    return {row["step"]: row["loss"] for row in read_rows(run_dir).of("train")}
