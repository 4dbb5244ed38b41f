"""`cluster down` restores the machine, also after pods have run and after `up` was killed at any point."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import Cluster, trainfleet, until
from tests.cluster.machine import namespaces, processes_in, seen
from tests.cluster.pods import pod
from trainfleet.local_cluster import (
    builds,
    cgroups,
    images,
    network,
    node,
    node_init,
    pins,
    servers,
    state,
)

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]
NAME = "gone"


@pytest.fixture
def before() -> Iterator[dict[str, Any]]:
    """The state of the machine before the test. The test's cluster is removed afterwards."""
    trainfleet("cluster", "down", "--name", NAME)
    yield seen(NAME)
    trainfleet("cluster", "down", "--name", NAME)


def assert_gone(before: dict[str, Any], inside: set[str]) -> None:
    assert seen(NAME) == before
    assert processes_in(inside) == []
    assert not state.folder_of(NAME).exists()


@pytest.mark.slow
def test_down_leaves_nothing_after_pods_have_run(before: dict[str, Any]) -> None:
    assert trainfleet("cluster", "up", "--name", NAME, "--no-image").returncode == 0
    here = Cluster(NAME, trainfleet)
    pid = node.pid_of(here.state.control_plane)
    assert pid is not None
    inside = namespaces(pid)
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data", "namespace": "default"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    volumes = [
        {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "memory", "emptyDir": {"medium": "Memory"}},
    ]
    mounts = [{"name": "data", "mountPath": "/data"}, {"name": "memory", "mountPath": "/memory"}]
    lives = pod("lives", "exec /busybox sleep 3600", volumes=volumes, container={"volumeMounts": mounts})
    until(lambda: here.kubectl("get", "serviceaccount", "default", check=False), "the default account")
    here.apply(claim, {**lives, "metadata": {**lives["metadata"], "namespace": "default"}})
    here.kubectl("wait", "--for=condition=Ready", "pod/lives", "--timeout=120s")
    assert len(processes_in(inside)) > 10
    done = trainfleet("cluster", "down", "--name", NAME)
    assert (done.returncode, done.stdout) == (0, "removed\n")
    assert_gone(before, inside)


def test_a_node_covers_the_kernel_settings_that_the_kubelet_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    first = state.create(NAME, IPv4Network("10.213.0.0/16")).control_plane
    servers.write_configuration(first.cluster)
    before = seen(NAME)
    pid = node.start(first, die_with_parent=True)
    try:
        for name, value in node_init.TUNABLES.items():
            file = f"/proc/sys/{name}"
            assert node.enter(pid, ["cat", file]).stdout == f"{value}\n"
            node.enter(pid, ["test", "!", "-w", file])
    finally:
        node.stop(first.token)
    assert seen(NAME) == before


def begun() -> bool:
    return state.load(NAME) is not None


def noted(kind: str) -> Callable[[], bool]:
    return lambda: (
        (it := state.load(NAME)) is not None and any(resource.kind == kind for resource in it.resources)
    )


def linked() -> bool:
    return network.exists(f"tf-{NAME}")


def grouped() -> bool:
    return bool(cgroups.existing(f"trainfleet-{NAME}"))


def alive() -> bool:
    return (it := state.load(NAME)) is not None and node.pid_of(it.control_plane) is not None


def serving() -> bool:
    return (it := state.load(NAME)) is not None and it.file("logs", "kube-apiserver.log").exists()


def working() -> bool:
    return (it := state.load(NAME)) is not None and it.file("logs", "kubelet.log").exists()


MOMENTS: list[Callable[[], bool]] = [begun, grouped, alive, linked, serving, working]


def joined() -> bool:
    """Whether the kubelet of a second node has started."""
    it = state.load(NAME)
    return it is not None and len(it.nodes) > 1 and it.nodes[1].file("logs", "kubelet.log").exists()


def killed_when(moment: Callable[[], bool], *options: str) -> set[str]:
    """Start `up` and send SIGKILL when a condition holds. Returns the namespaces of the first node, if any."""
    command = [
        str(Path(sys.executable).with_name("trainfleet")),
        "cluster",
        "up",
        "--name",
        NAME,
        "--no-image",
        *options,
    ]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as starting:
        try:
            until(lambda: moment() or starting.poll() is not None, moment.__name__, 600)
        finally:
            os.killpg(starting.pid, signal.SIGKILL)
    it = state.load(NAME)
    pid = node.pid_of(it.control_plane) if it else None
    return namespaces(pid) if pid else set()


@pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: moment.__name__)
def test_down_leaves_nothing_after_up_was_killed(before: dict[str, Any], moment: Callable[[], bool]) -> None:
    inside = killed_when(moment)
    done = trainfleet("cluster", "down", "--name", NAME)
    assert done.returncode == 0, done.stderr
    assert_gone(before, inside)


@pytest.mark.slow
def test_a_killed_build_of_the_images_leaves_no_process_and_the_next_up_builds_them(
    before: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "trainfleet"
    cache.mkdir()
    for program in pins.PROGRAMS:  # everything is built except the images
        (cache / builds.folder_of(program).name).symlink_to(builds.folder_of(program))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    store, carried = images.store_folder(image=False), str(tmp_path).encode()

    def importing() -> bool:
        return bool(list(cache.glob(f".{store.name}.*/node/ready")))

    def servers() -> list[str]:
        return [entry.name for entry in Path("/proc").glob("[0-9]*") if carried in read(entry / "cmdline")]

    killed_when(importing)
    until(lambda: not servers(), "the end of all that it started", 30)
    assert_gone(before, set())
    assert not store.exists()
    assert trainfleet("cluster", "up", "--name", NAME, "--no-image").returncode == 0
    assert [path.name for path in cache.glob(f".{store.name}.*")] == []


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize(
    "moment",
    [pytest.param(grouped, marks=pytest.mark.deep), pytest.param(serving, marks=pytest.mark.slow)],
    ids=lambda moment: moment.__name__,
)
def test_a_second_up_continues_after_up_was_killed(
    before: dict[str, Any], moment: Callable[[], bool]
) -> None:
    killed_when(moment)
    done = trainfleet("cluster", "up", "--name", NAME, "--no-image")
    assert done.returncode == 0, done.stderr
    assert Cluster(NAME, trainfleet).status()["ready"]


@pytest.mark.slow
def test_a_killed_node_restarts_with_its_objects(before: dict[str, Any]) -> None:
    assert trainfleet("cluster", "up", "--name", NAME, "--no-image").returncode == 0
    here = Cluster(NAME, trainfleet)
    here.kubectl("create", "namespace", "kept")
    pid = node.pid_of(here.state.control_plane)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    until(lambda: node.pid_of(here.state.control_plane) is None, "the node's end")
    assert not here.status()["ready"]
    assert trainfleet("cluster", "up", "--name", NAME, "--no-image").returncode == 0
    assert here.kubectl("get", "namespace", "kept", "-o", "name") == "namespace/kept\n"


@pytest.mark.slow
def test_a_killed_start_of_several_nodes_resumes_gains_a_node_and_leaves_nothing(
    before: dict[str, Any],
) -> None:
    killed_when(joined, "--nodes", "2")
    here = Cluster(NAME, trainfleet)
    for number, options in ((2, ()), (3, ("--nodes", "3"))):
        done = trainfleet("cluster", "up", "--name", NAME, "--no-image", *options)
        assert done.returncode == 0, done.stderr
        assert here.status()["ready"]
        assert [row["ready"] for row in here.status()["nodes"]] == [True] * number
    pids = [node.pid_of(each) for each in here.state.nodes]
    inside = {name for pid in pids if pid is not None for name in namespaces(pid)}
    assert len(inside) == 9, "no namespace is shared"
    assert trainfleet("cluster", "down", "--name", NAME).returncode == 0
    assert_gone(before, inside)


def test_down_without_a_cluster_reports_it(before: dict[str, Any]) -> None:
    done = trainfleet("cluster", "down", "--name", NAME)
    assert (done.returncode, done.stdout) == (0, f"there is no cluster {NAME}\n")


def test_an_existing_link_of_the_same_name_is_refused_and_kept(before: dict[str, Any]) -> None:
    link = f"tf-{NAME}"
    subprocess.run(["ip", "link", "add", link, "type", "veth", "peer", "name", f"{link}-peer"], check=True)
    try:
        done = trainfleet("cluster", "up", "--name", NAME, "--no-image")
        assert done.returncode == 2
        assert "was not created by this cluster" in done.stderr
        assert trainfleet("cluster", "down", "--name", NAME).returncode == 0
        assert network.exists(link)
    finally:
        subprocess.run(["ip", "link", "delete", link], check=True)
