"""A node with a full disk: status reports it, waiting pods get the reason, and pods start once space is free.

The cluster has its own disk, a sparse file: filling it takes no space from the disk of this machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.conftest import Cluster, trainfleet, until
from tests.cluster.disk import disk_in_a_file, filled
from tests.cluster.launches import Place, place
from tests.cluster.pods import pod

__all__ = ["place"]
pytestmark = [pytest.mark.cluster, pytest.mark.deep, pytest.mark.timeout(1800)]
NAME = "full"
SIZE = 40 << 30


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A disk of 40 GiB."""
    with disk_in_a_file(tmp_path_factory.mktemp("disk"), SIZE) as mounted:
        yield mounted


@pytest.fixture(scope="module")
def cluster(disk: Path) -> Iterator[Cluster]:
    """A cluster without the image and with its state on that disk. Replaces the shared cluster."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(disk))
        done = trainfleet("cluster", "up", "--name", NAME, "--no-image")
        try:
            assert done.returncode == 0, done.stderr
            yield Cluster(NAME, trainfleet)
        finally:
            assert trainfleet("cluster", "down", "--name", NAME).returncode == 0


@pytest.fixture
def full(disk: Path, cluster: Cluster) -> Iterator[Path]:
    """A file that fills the disk, except for what the servers need."""
    with filled(disk) as filler:
        yield filler


def short_of_disk(cluster: Cluster) -> bool:
    """Whether status reports a full disk. The cluster must be ready exactly if it does not."""
    seen = cluster.status()
    (here,) = seen["nodes"]
    assert seen["ready"] is (here["short_of"] == [])
    assert all("is short of disk" in reason for reason in seen["not_ready"])
    return bool(here["short_of"] == ["disk"])


def test_a_full_disk_is_reported_and_blocks_new_pods_until_space_is_free(
    cluster: Cluster, full: Path, place: Place
) -> None:
    until(lambda: short_of_disk(cluster), "the node reports that its disk is full")
    status = cluster.call("cluster", "status", "--name", NAME)
    assert status.returncode == 1
    assert "short of disk" in status.stdout
    launched = place.launch("waits", "--within", "0.5")
    assert launched.returncode == 1
    assert f"node {cluster.state.control_plane.name} is short of disk" in launched.stdout
    assert "did not get its machines in time" in launched.stderr
    place.clean()
    cluster.apply(
        {**(waiting := pod("waiting", "true")), "metadata": {**waiting["metadata"], "namespace": "default"}}
    )
    full.unlink()
    until(lambda: not short_of_disk(cluster), "the node has free space again")
    cluster.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/waiting", "--timeout=120s")


def test_up_on_a_full_disk_reports_the_required_space(disk: Path, cluster: Cluster, full: Path) -> None:
    done = cluster.call("cluster", "up", "--name", NAME, "--no-image")
    assert done.returncode == 3
    assert re.search(r"0 GiB are free, \d+ are needed", done.stderr)  # depends on what is built
    assert "set XDG_STATE_HOME to another disk" in done.stderr
