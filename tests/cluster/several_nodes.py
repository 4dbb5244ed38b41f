"""A cluster with three nodes, for the test modules that import one of these fixtures.

`three` has no training image. `cluster` has it, and replaces the shared cluster of conftest.py in a module, so
that the fixtures of launches.py launch on three nodes.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.conftest import Cluster, trainfleet, with_kubectl

NAME = "three"
DEVICES = ("--devices", "node2:nvidia.com/gpu=8,vpc.amazonaws.com/efa=4", "--devices", "node3:rdma/ib=2")
TAINT = ("--node-taint", "node3:spot=true:NoSchedule")


def start(*options: str) -> Cluster:
    trainfleet("cluster", "down", "--name", NAME)
    done = trainfleet("cluster", "up", "--name", NAME, "--nodes", "3", *options, timeout=2700)
    assert done.returncode == 0, done.stderr
    return with_kubectl(Cluster(NAME, trainfleet))


@pytest.fixture(scope="module")
def three() -> Iterator[Cluster]:
    """Three nodes: devices on the second, a taint on the third."""
    yield start("--no-image", *DEVICES, *TAINT)
    assert trainfleet("cluster", "down", "--name", NAME).returncode == 0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Three equal nodes with the training image."""
    yield start()
    assert trainfleet("cluster", "down", "--name", NAME).returncode == 0
