"""One run on a real cluster, struck again and again: it goes on by itself, with the loss curve of a run that
nobody struck.

The seconds from a blow to the next new step are recorded (`--junitxml`) and shown by `-s`, never asserted:
they are the machine's. Easy to
get wrong: after a blow the run goes back to a checkpoint, so only a step beyond the last that was told counts
as the next one.
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
RUN = "struck"
AWAY_S = 8.0
"""How long the store or the network is away: longer than one try of a call, shorter than all of them."""
Note = Callable[[str, object], None]


@pytest.fixture(scope="module")
def run(place: Place) -> Iterator[Launch]:
    """A run that goes on for as long as the tests of this module strike it."""
    with launched(place, RUN, *LONG, "scaling.restarts=20") as launch:
        launch.reach(60)
        yield launch


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
    """SIGKILL for a server of the node; the node starts it again."""
    pid = node.pid_of(place.cluster.state)
    assert pid is not None
    number = json.loads(place.cluster.state.file("running.json").read_text())[name]["pid"]
    node.enter(pid, ["kill", "-9", str(number)])


def stop_store(place: Place) -> None:
    """Have the store take connections and answer nothing for some seconds."""
    os.kill(place.store.pid, signal.SIGSTOP)
    _wait(AWAY_S)
    os.kill(place.store.pid, signal.SIGCONT)


def cut_workers_off(place: Place) -> None:
    """Let nothing pass between the two workers for some seconds."""
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


def stand_by(place: Place) -> bool:
    """Whether in each pod that has ranks a process waits whose imports are over: some seconds after a start.
    Losses seldom come sooner.
    """
    ready = '[ "$a" = "$(ticks $p)" ] && grep -q libtorch_cpu /proc/$p/maps && echo ready'
    waiting = f"for p in $(pgrep -f '[r]ay::IDLE'); do a=$(ticks $p); sleep 1; {ready}; done"
    asked = f"ticks() {{ cut -d' ' -f14 /proc/$1/stat; }}; {waiting}; pgrep -f '[r]ay::.*RayTrainWo' | sed 's/.*/rank/'"
    workers = [name.partition("/")[2] for name in place.names("pod", "ray.io/node-type=worker")]
    found = [
        place.kubectl("exec", name, "-c", "ray-worker", "--", "bash", "-c", asked, check=False).split()
        for name in workers
    ]
    return any("rank" in each for each in found) and all("ready" in each for each in found if "rank" in each)


def whole(place: Place) -> list[int]:
    """The steps of the checkpoints that the store holds whole."""
    folder = place.store.folder / "runs" / "runs" / RUN / "checkpoints"
    return sorted(int(file.parent.name.partition("-")[2]) for file in folder.glob(f"step-*/{MARKER}"))


def show(note: Note, what: str, **seconds: float) -> None:
    for name, value in seconds.items():
        note(name, round(value, 1))
    load = os.getloadavg()[0]
    sys.stdout.write(
        f"\n{what}: {', '.join(f'{name} {value:.1f} s' for name, value in seconds.items())} (load {load:.0f})\n"
    )


@pytest.mark.parametrize("blow", [kill_process, delete_worker, delete_head], ids=["process", "pod", "head"])
def test_a_run_goes_on_from_its_newest_checkpoint_when_a_part_of_it_is_lost(
    blow: Callable[[Place], None], place: Place, run: Launch, record_property: Note
) -> None:
    until(lambda: stand_by(place), "processes wait for a restart", 120)
    resumed = run.said.count("resumed:")
    saved, before = whole(place)[-1], run.step()
    began = time.monotonic()
    blow(place)
    until(lambda: run.over or run.said.count("resumed:") > resumed, "the run has resumed", 400)
    back = time.monotonic() - began
    run.reach(before + 1)
    show(record_property, blow.__name__, resumed=back, next_step=time.monotonic() - began)
    line = [each for each in run.said.splitlines() if each.startswith("resumed:")][-1]
    assert int(line.partition(", step ")[2].partition("/")[0]) >= saved, f"{line}; step {saved} was whole"


@pytest.mark.parametrize(
    "blow",
    [kill_operator, kill_api_server, stop_store, cut_workers_off],
    ids=["operator", "api-server", "store", "network"],
)
def test_a_run_goes_on_where_it_is_when_what_is_around_it_is_lost(
    blow: Callable[[Place], None], place: Place, run: Launch, record_property: Note
) -> None:
    resumed, before = run.said.count("resumed:"), run.step()
    began = time.monotonic()
    blow(place)
    run.reach(max(before, run.step()) + 200)
    show(record_property, blow.__name__, next_200_steps=time.monotonic() - began)
    assert run.said.count("resumed:") == resumed
    until(lambda: place.cluster.status()["ready"], "the cluster is ready again")


def test_the_struck_run_has_the_losses_of_one_that_was_left_alone(place: Place, run: Launch) -> None:
    assert run.interrupt() == 130, run.said
    assert "which is saved" in run.said
    assert not [line for line in run.said.splitlines() if line.startswith(("quarantined", "fallback"))], (
        run.said
    )
    place.clean()
    struck = losses(place.store.folder / "runs" / "runs" / RUN)
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
        alone.reach(max(struck))
        assert alone.interrupt() == 130, alone.said
    finally:
        alone.kill()
    left = losses(place.folder / "alone" / "alone")
    assert len(struck) == max(struck) // 5, "each interval is there, once"
    assert struck == {step: loss for step, loss in left.items() if step <= max(struck)}


def losses(run_dir: Path) -> dict[int, float]:
    return {row["step"]: row["loss"] for row in read_rows(run_dir).of("train")}
