"""The head of a run is lost: without Redis the run resumes from its checkpoint, with Redis no step is lost.

The seconds from the fault to the next new step depend on the machine. They are recorded and printed, but not
asserted.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator

import pytest

from tests.cluster.conftest import until
from tests.cluster.cut import address, cut
from tests.cluster.faults import Note, delete_head, losses, pod, prestarted, saved_steps, show
from tests.cluster.launches import LONG, Launch, Place, launched, place
from tests.cluster.redis import PASSWORD, Redis, redis

pytestmark = [pytest.mark.cluster, pytest.mark.deep, pytest.mark.timeout(1500)]
__all__ = ["place"]
REPEATS = int(os.environ.get("TRAINFLEET_REPEATS", "1"))
CUT_S = 14.0
"""Less than 15 s, as in docs/kuberay.md: a worker counts as lost after 16 to 24 s (HEALTH_CHECKS)."""
RUN, PLAIN = "with-redis", "without-redis"


@pytest.fixture(scope="module")
def server(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    """A Redis, and the Secret with its password."""
    with redis(str(place.cluster.state.host_address), tmp_path_factory.mktemp("redis") / "data") as found:
        place.cluster.apply(
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": "redis-password", "namespace": place.namespace},
                "stringData": {"password": PASSWORD},
            }
        )
        yield found


def state_of(place: Place, role: str) -> dict[str, int]:
    """The restarts of each pod of a role, by its UID."""
    found = json.loads(place.kubectl("get", "pod", "-l", f"ray.io/node-type={role}", "-o", "json"))["items"]
    return {
        each["metadata"]["uid"]: each["status"]["containerStatuses"][0]["restartCount"]
        for each in found
        if each["status"].get("containerStatuses")
    }


def head_is_replaced(place: Place, before: dict[str, int]) -> bool:
    found = state_of(place, "head")
    return len(found) == 1 and not found.keys() & before.keys()


def test_with_redis_no_step_is_lost_with_the_head(place: Place, server: Redis, record_property: Note) -> None:
    redis_options = ("--redis", server.address, "--redis-secret", "redis-password")
    with launched(place, RUN, *LONG, "scaling.restarts=0", *redis_options) as run:
        run.reach(60)
        workers = state_of(place, "worker")
        assert len(workers) == 3, "two workers and the pod of drivers"
        for number in range(REPEATS):
            heads, before = state_of(place, "head"), run.step()
            began = time.monotonic()
            delete_head(place)
            until(lambda heads=heads: head_is_replaced(place, heads), "another head", 120)
            replaced = time.monotonic() - began
            # While there is no head, the log is interrupted: the next line comes with the new head.
            lines = run.output.count("\nstep ")
            until(
                lambda lines=lines: run.ended or run.output.count("\nstep ") > lines, "the log continues", 120
            )
            assert not run.ended, run.output
            show(record_property, f"head {number}", replaced=replaced, next_line=time.monotonic() - began)
            run.reach(before + 100)
        assert "resumed:" not in run.output
        assert state_of(place, "worker") == workers
        assert server.keys(), "Ray has stored nothing in Redis"
        assert run.interrupt() == 130, run.output
    steps = sorted(losses(place.store.folder / "runs" / "runs" / RUN))
    assert steps == list(range(5, max(steps) + 1, 5)), "an interval is missing"
    place.clean()
    assert server.keys() == [], "the keys of a deleted cluster remain"


def test_a_lost_driver_pod_costs_a_restart_from_the_checkpoint(
    place: Place, server: Redis, record_property: Note
) -> None:
    redis_options = ("--redis", server.address, "--redis-secret", "redis-password")
    with launched(place, "driver-lost", *LONG, *redis_options) as run:
        run.reach(60)
        (driver,) = place.names("pod", "ray.io/group=drivers")
        before, began = run.step(), time.monotonic()
        place.kubectl("delete", driver, "--wait=false")
        # The pod trains on for its grace period, so steps alone do not show that it was replaced.
        until(lambda: run.ended or "resumed:" in run.output, "the run has resumed", 400)
        run.reach(before + 1)
        show(record_property, "driver pod", next_step=time.monotonic() - began)
        assert run.interrupt() == 130, run.output
    place.clean()


@pytest.fixture(scope="module")
def plain(place: Place) -> Iterator[Launch]:
    """A run without Redis."""
    with launched(place, PLAIN, *LONG, "scaling.restarts=20") as run:
        run.reach(60)
        yield run
        if not run.ended:
            run.interrupt()


def test_a_short_cut_between_worker_and_head_restarts_nothing(
    place: Place, plain: Launch, record_property: Note
) -> None:
    worker, head = (
        address(place.cluster, place.namespace, pod(place, role).partition("/")[2])
        for role in ("worker", "head")
    )
    states, resumed = state_of(place, "worker"), plain.output.count("resumed:")
    with cut(place.cluster, worker, head):
        over = time.monotonic() + CUT_S
        until(lambda: time.monotonic() > over, "the time is up", CUT_S + 5)
    before, began = plain.step(), time.monotonic()
    plain.reach(before + 100)
    show(record_property, "cut", next_100_steps=time.monotonic() - began)
    assert plain.output.count("resumed:") == resumed
    assert state_of(place, "worker") == states


def test_without_redis_a_new_head_ends_the_workers_of_the_last_one(
    place: Place, plain: Launch, record_property: Note
) -> None:
    for number in range(REPEATS):
        until(lambda: prestarted(place), "processes wait for a restart", 120)
        resumed, before, saved = plain.output.count("resumed:"), plain.step(), saved_steps_of(place)
        began = time.monotonic()
        delete_head(place)
        until(lambda n=resumed: plain.ended or plain.output.count("resumed:") > n, "the run has resumed", 400)
        back = time.monotonic() - began
        plain.reach(before + 1)
        show(record_property, f"head {number}", resumed=back, next_step=time.monotonic() - began)
        line = [each for each in plain.output.splitlines() if each.startswith("resumed:")][-1]
        assert int(line.partition(", step ")[2].partition("/")[0]) >= saved, line


def saved_steps_of(place: Place) -> int:
    return saved_steps(place, PLAIN)[-1]
