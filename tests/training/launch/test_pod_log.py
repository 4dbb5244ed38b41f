"""The log of a run whose submitter is replaced, or whose container's log is gone."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.training.launch.fake_api import FakeApi
from tests.training.launch.kuberay_follower import cluster_of
from trainfleet.training.launch.kuberay import pod_log
from trainfleet.training.launch.kuberay.pod_log import PodLog

ATTEMPT = {"kind": "attempt", "started": "1"}
RESUMED = {"kind": "event", "what": "resumed", "text": "from step 2"}


def step(number: int) -> dict[str, Any]:
    return {"kind": "step", "step": number, "total": 9}


def submitter(name: str, created: int, phase: str = "Running") -> dict[str, Any]:
    when = f"2026-01-01T00:00:{created:02}Z"
    return {"metadata": {"name": name, "creationTimestamp": when}, "status": {"phase": phase}}


def lines(*texts: Any) -> str:
    """A log as the API server returns it, a line per second."""
    return "".join(
        text if isinstance(text, str) else f"2026-01-01T00:00:{number:02}.5Z {json.dumps(text)}\n"
        for number, text in enumerate(texts)
    )


@pytest.fixture
def log(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> Iterator[PodLog]:
    monkeypatch.setattr(pod_log, "RETRY_S", 0.01)
    found = PodLog(cluster_of(api))
    yield found
    found.close()


def until(done: Callable[[], bool], limit: float = 20.0) -> None:
    deadline = time.monotonic() + limit
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def read(log: PodLog, count: int) -> list[Any]:
    """At least this many lines."""
    found: list[Any] = []

    def enough() -> bool:
        found.extend(log.drain())
        return len(found) >= count

    until(enough)
    return found


def test_the_lines_of_a_replaced_submitter_are_passed_once(api: FakeApi, log: PodLog) -> None:
    api.logs["old"] = lines(ATTEMPT, step(1), step(2))
    log.watch([submitter("old", 1)])
    assert read(log, 3) == [ATTEMPT, step(1), step(2)]
    # The old pod is being evicted: it still prints, while the new one prints all lines again.
    api.logs["new"] = lines(ATTEMPT, step(1), step(2), RESUMED, step(3), step(4))
    log.watch([submitter("new", 9), submitter("old", 1)])
    api.logs["old"] = lines(ATTEMPT, step(1), step(2), RESUMED, {"kind": "note", "text": "only here"})
    assert read(log, 3) == [RESUMED, step(3), step(4)]
    log.watch([submitter("new", 9, "Succeeded")])
    until(lambda: log.ended)
    assert list(log.drain()) == []


def test_a_message_of_the_kubelet_is_neither_shown_nor_stops_the_log(api: FakeApi, log: PodLog) -> None:
    gone = "unable to retrieve container logs for containerd://4711\n"
    api.logs["one"] = lines(ATTEMPT, step(1), gone)
    log.watch([submitter("one", 1)])
    assert read(log, 2) == [ATTEMPT, step(1)]
    api.logs["one"] = lines(ATTEMPT, step(1), gone, step(2))
    assert read(log, 1) == [step(2)]


def test_the_end_of_an_older_submitters_log_is_not_the_end(api: FakeApi, log: PodLog) -> None:
    api.logs |= {"old": lines(ATTEMPT, step(1)), "new": lines(ATTEMPT, step(1))}
    log.watch([submitter("old", 1)])
    read(log, 2)
    log.watch([submitter("new", 9), submitter("old", 1, "Failed")])
    api.logs["new"] = lines(ATTEMPT, step(1), step(2))
    assert read(log, 1) == [step(2)]
    assert not log.ended
