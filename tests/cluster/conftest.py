"""Start one real cluster for the tests marked `cluster`. Skip them with one line where it cannot run.

The cluster has its own name, so a cluster that a developer runs is not touched. TRAINFLEET_TEST_CLUSTER names
a running cluster to reuse and keep. Tests that break a cluster start their own, without the image.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.install import why_not
from trainfleet.local_cluster import state

NAME = "tests"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    asked = "cluster" in (config.option.markexpr or "")
    reason = why_not() if asked else "a cluster is started by `make test-cluster` (pytest -m cluster)"
    for item in items:
        if reason and item.get_closest_marker("cluster") is not None:
            item.add_marker(pytest.mark.skip(reason=reason))


@dataclass(frozen=True)
class Cluster:
    """A running cluster, as a user sees it: the command line and kubectl."""

    name: str
    call: Callable[..., subprocess.CompletedProcess[str]]

    @property
    def state(self) -> state.State:
        found = state.load(self.name)
        assert found is not None
        return found

    def kubectl(self, *arguments: str, given: str | None = None, check: bool = True) -> str:
        """Run kubectl as the administrator and return its stdout."""
        from trainfleet.local_cluster.kubectl import kubectl

        done = kubectl(self.state, *arguments, stdin=given, check=False)
        assert not check or done.returncode == 0, done.stderr
        return done.stdout

    def apply(self, *objects: dict[str, Any]) -> None:
        self.kubectl(
            "apply", "-f", "-", given=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        )

    def status(self) -> dict[str, Any]:
        seen: dict[str, Any] = parsed(self.call("cluster", "status", "--name", self.name, "--json"), (0, 1))
        return seen


def parsed(done: subprocess.CompletedProcess[str], codes: tuple[int, ...] = (0,)) -> Any:
    """The JSON document that a command printed. If there is none, fail with the command's output."""
    try:
        document = json.loads(done.stdout)
    except ValueError as error:
        what = f"not JSON: {error}"
    else:
        if done.returncode in codes:
            return document
        what = f"JSON, but not one of the exit codes {codes}"
    streams = f"--- stderr\n{done.stderr}\n--- stdout\n{done.stdout}"
    raise AssertionError(f"{' '.join(done.args)}\nexit code {done.returncode}, {what}\n{streams}")


def trainfleet(
    *arguments: str, timeout: float = 1800, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Call the command line in a new process."""
    command = [str(Path(sys.executable).with_name("trainfleet")), *arguments]
    settings = os.environ | {"NO_COLOR": "1", "COLUMNS": "160"} | environment
    return subprocess.run(command, env=settings, capture_output=True, text=True, timeout=timeout, check=False)


def until(done: Callable[[], Any], what: str, limit: float = 120.0) -> Any:
    """Wait for a condition and return its first true value."""
    deadline = time.monotonic() + limit
    while not (found := done()):
        assert time.monotonic() < deadline, f"{what}: not within {limit:.0f} s"
        time.sleep(0.2)
    return found


def with_kubectl(here: Cluster) -> Cluster:
    """Append the cluster's kubectl to PATH: tests and SkyPilot call it."""
    os.environ["PATH"] += f":{here.state.file('bin')}"
    return here


@contextlib.contextmanager
def cluster_with_queue(default: str) -> Iterator[Cluster]:
    """A cluster with Kueue, or the one that TRAINFLEET_TEST_CLUSTER names."""
    name = os.environ.get("TRAINFLEET_TEST_CLUSTER", default)
    here = Cluster(name, trainfleet)
    if name == default:
        done = trainfleet("cluster", "up", "--name", name, "--queue", timeout=2700)
        assert done.returncode == 0, done.stderr
    assert here.state.queue, f"{name} has no queue: trainfleet cluster up --queue --name {name}"
    yield with_kubectl(here)
    if name == default:
        assert trainfleet("cluster", "down", "--name", name).returncode == 0


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The cluster that all tests share, with the training image and the current project."""
    if given := os.environ.get("TRAINFLEET_TEST_CLUSTER"):
        here = Cluster(given, trainfleet)
        assert here.status()["ready"], f"{given} is not up: trainfleet cluster up --name {given}"
        yield with_kubectl(here)
        return
    trainfleet("cluster", "down", "--name", NAME)
    done = trainfleet("cluster", "up", "--name", NAME, timeout=2700)
    assert done.returncode == 0, done.stderr
    yield with_kubectl(Cluster(NAME, trainfleet))
    assert trainfleet("cluster", "down", "--name", NAME).returncode == 0


# A session fixture that test modules share. The import is last because the module imports this one.
from tests.cluster.observed_run import observed_run  # noqa: E402, F401
