"""A node whose disk is full: the cluster says so, what waits for room is told why, and all goes on by itself
once there is room.

The cluster is one of its own on a disk of its own, which is a file with holes: filling it takes nothing from
this machine's disk.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.conftest import Cluster, trainfleet, until
from tests.cluster.launches import Place, place
from tests.cluster.pods import pod

__all__ = ["place"]
pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(1800)]
NAME = "full"
SIZE = 40 << 30
LEFT = 64 << 20


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file system of 40 GiB in a file."""
    folder = tmp_path_factory.mktemp("disk")
    image, mounted = folder / "image", folder / "mounted"
    mounted.mkdir()
    with image.open("wb") as file:
        file.truncate(SIZE)
    subprocess.run(
        ["mkfs.ext4", "-q", "-m", "0", "-E", "lazy_itable_init=1,lazy_journal_init=1", str(image)], check=True
    )
    subprocess.run(["mount", "-o", "loop", str(image), str(mounted)], check=True)
    yield mounted
    subprocess.run(["umount", str(mounted)], check=True)
    image.unlink()


@pytest.fixture(scope="module")
def cluster(disk: Path) -> Iterator[Cluster]:
    """In place of the cluster that the other tests share: one without the image, whose state lies on that
    disk.
    """
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
    """A file that takes what is left of the disk, but for what the servers themselves need."""
    filler = disk / "filler"
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(disk).free - LEFT)
    yield filler
    filler.unlink(missing_ok=True)


def short_of_disk(cluster: Cluster) -> bool:
    """Whether status says so; then the cluster is not ready either."""
    seen = cluster.status()
    (here,) = seen["nodes"]
    assert seen["ready"] is (here["short_of"] == [])
    return bool(here["short_of"] == ["disk"])


def test_a_full_disk_is_said_holds_back_new_pods_and_is_over_when_there_is_room(
    cluster: Cluster, full: Path, place: Place
) -> None:
    until(lambda: short_of_disk(cluster), "the node says that its disk is full")
    said = cluster.call("cluster", "status", "--name", NAME)
    assert said.returncode == 1
    assert "short of disk" in said.stdout
    launched = place.launch("waits", "--within", "0.5")
    assert launched.returncode == 1
    assert f"node {cluster.state.node} is short of disk" in launched.stdout
    assert "did not get its machines in time" in launched.stderr
    place.clean()
    cluster.apply(
        {**(waiting := pod("waiting", "true")), "metadata": {**waiting["metadata"], "namespace": "default"}}
    )
    full.unlink()
    until(lambda: not short_of_disk(cluster), "the node has room again")
    cluster.kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/waiting", "--timeout=120s")


def test_up_on_a_full_disk_says_how_much_is_needed(disk: Path, cluster: Cluster, full: Path) -> None:
    done = cluster.call("cluster", "up", "--name", NAME, "--no-image")
    assert done.returncode == 3
    assert "0 GiB are free, 8 are needed" in done.stderr
    assert "set XDG_STATE_HOME to another disk" in done.stderr
