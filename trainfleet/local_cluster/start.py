"""Starts a cluster, or resumes an interrupted start: each step first checks whether it is done already.

The order matters: what is outside the state folder is recorded before it is created (state.py), the API
server answers before its clients start, and the definitions exist before KubeRay's operator starts.
"""

from __future__ import annotations

import json
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

import psutil
from filelock import FileLock, Timeout

from trainfleet.errors import InputError, Problem, TrainfleetError
from trainfleet.files import write_whole
from trainfleet.local_cluster import (
    builds,
    cgroups,
    checks,
    dns,
    images,
    kueue,
    network,
    network_policies,
    nodes,
    pins,
    pki,
    servers,
    state,
)
from trainfleet.local_cluster import node as node_process
from trainfleet.local_cluster.kubectl import kubectl, write_shim
from trainfleet.local_cluster.node_settings import NodeOptions
from trainfleet.local_cluster.objects import objects
from trainfleet.local_cluster.pins import Program
from trainfleet.local_cluster.servers import Server
from trainfleet.local_cluster.state import Node, Resource, State
from trainfleet.toolchain import cache_folder

Progress = Callable[[str], None]
LIMIT_S = 180.0
POLL_INTERVAL_S = 0.1


@contextmanager
def cluster_lock(name: str, progress: Progress) -> Iterator[None]:
    """Hold the cluster's lock while the block runs: `up` and `down` exclude each other."""
    cache_folder().mkdir(parents=True, exist_ok=True)
    lock = FileLock(str(cache_folder() / f"cluster-{name}.lock"))
    try:
        lock.acquire(timeout=0.1)
    except Timeout:
        progress("waiting for another `trainfleet cluster` command")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def start_cluster(
    name: str,
    progress: Progress,
    *,
    image: bool = True,
    fake_nodes: bool = False,
    node_options: NodeOptions | None = None,
    enforce_policies: bool | None = None,
    queue: bool = False,
) -> State:
    """Start a cluster, unless it runs, and return its state once it is ready.

    Args:
        name: the cluster's name.
        progress: receives a line per step.
        image: build and import the training image.
        fake_nodes: run kwok, for simulated nodes.
        node_options: the options for real nodes; None: as before, at first one node.
        enforce_policies: whether network policies have an effect; None: as before, at first yes.
        queue: run Kueue, also later: a cluster that has it keeps it.

    Raises:
        InputError: fewer nodes are requested than the cluster has, or settings of a node that it lacks; or
            a cluster of another HOME has this name.
        MissingToolError: this machine cannot run it; lists what is missing.
        TrainfleetError: a server does not start; with the end of its log.
    """
    checks.require_supported()
    node_options = node_options or NodeOptions()
    planned = state.load(name) or State(name, state.folder_of(name), network.CANDIDATES[0], "")
    _apply_options(planned, node_options, enforce_policies, queue)
    optional = _optional_programs(planned, simulated=fake_nodes or _has_kwok(planned))
    count = len(planned.settings)
    checks.require_resources(planned.folder, image=image, optional=optional, nodes=count)
    store = _prepare(progress, image, optional)
    with cluster_lock(name, progress):
        # Read again: another `up` may have changed the cluster in the meantime.
        existing = state.load(name)
        cluster = existing or _create(name)
        _apply_options(cluster, node_options, enforce_policies, queue)
        simulated = fake_nodes or _has_kwok(cluster)
        builds.build_all(progress, _optional_programs(cluster, simulated=simulated))
        cluster.save()
        _write_nodes(cluster, store)
        running = _start_nodes(cluster)
        _start_servers(cluster, progress, simulated=simulated)
        if existing is not None:
            dns.remove_outdated(cluster)
        if image:
            images.load_project(running, store, progress)
    return cluster


def _apply_options(
    cluster: State, node_options: NodeOptions, enforce_policies: bool | None, queue: bool
) -> None:
    """Change the settings of a cluster to the options of `start_cluster`."""
    cluster.settings = node_options.merged(cluster.settings)
    if enforce_policies is not None:
        cluster.network_policies = enforce_policies
    cluster.queue = cluster.queue or queue


def _optional_programs(cluster: State, *, simulated: bool) -> set[Program]:
    """The optional programs that the cluster's settings need."""
    needed = {
        pins.KWOK: simulated,
        pins.DEVICE_PLUGIN: any(each.devices for each in cluster.settings),
        pins.NETWORK_POLICIES: cluster.network_policies,
        pins.KUEUE: cluster.queue,
    }
    return {program for program, used in needed.items() if used}


def _has_kwok(cluster: State) -> bool:
    return "kwok" in read_processes(cluster.control_plane)


def _write_nodes(cluster: State, store: Path) -> None:
    """The files of each node, and the settings of the servers."""
    _refuse_foreign_groups(cluster)
    for node in cluster.nodes:
        images.clone(node, store)
        cluster.record("cgroup", node.cgroup)
        cgroups.create(node.cgroup)
    pki.create(cluster)
    servers.write_configuration(cluster)
    dns.write_configuration(cluster)
    write_shim(cluster)


def _refuse_foreign_groups(cluster: State) -> None:
    """Check that no control group of the cluster's nodes belongs to a cluster of another HOME, whose pods
    `down` would then stop.

    Raises:
        InputError: one does.
    """
    for node in cluster.nodes:
        known = Resource("cgroup", node.cgroup) in cluster.resources
        if not known and (found := cgroups.existing(node.cgroup)):
            fix = "choose another --name, or use the HOME that created it"
            problem = Problem(str(found[0]), "was not created by this cluster", fix)
            raise InputError("another cluster has this name", [problem])


def _start_nodes(cluster: State) -> list[tuple[Node, int]]:
    """Start and connect all nodes; returns each with its first process."""
    first = cluster.control_plane
    router = node_process.start(first)
    network.connect(cluster, router)
    network_policies.write_rules(first, router)
    return [(first, router), *((node, start_node(node, router)) for node in cluster.nodes[1:])]


def start_node(node: Node, router: int) -> int:
    """Start a node beyond the first, and connect it; returns its first process."""
    pid = node_process.start(node)
    network.join(node, pid, router)
    network_policies.write_rules(node, pid)
    network.restore(node, router)
    return pid


def _create(name: str) -> State:
    """Create a new cluster's state. The lock keeps two new clusters from choosing the same network."""
    with FileLock(str(cache_folder() / "cluster-networks.lock")):
        taken = [other.network for other in map(state.load, state.names()) if other is not None]
        return state.create(name, network.choose(taken))


def _prepare(progress: Progress, image: bool, optional: Set[Program]) -> Path:
    """Build the programs and the images in parallel: one is bound by CPU, the other by disk and network.
    Returns the image store.
    """
    with ThreadPoolExecutor(2) as pool:
        programs = pool.submit(builds.build_all, progress, optional)
        store = pool.submit(images.prepare, progress, image)
        try:
            programs.result()
            return store.result()
        except KeyboardInterrupt:  # the threads end when their child processes do
            for child in psutil.Process().children(recursive=True):
                child.kill()
            raise


def _start_servers(cluster: State, progress: Progress, *, simulated: bool) -> None:
    first = cluster.control_plane
    running = servers.control_plane(cluster)
    set_processes(first, read_processes(first) | specs_of(running))
    progress("starting the API server")
    ready = ("get", "--raw", "/readyz")
    wait_for(
        first,
        "the API server",
        "kube-apiserver",
        lambda: kubectl(cluster, *ready, check=False).returncode == 0,
    )
    wait_for(first, "the cluster's objects", "kube-apiserver", lambda: _apply_objects(cluster))
    running |= servers.clients(cluster)
    if simulated:
        running |= servers.simulated(cluster)
    set_processes(first, specs_of(running))
    for node in cluster.nodes[1:]:
        set_processes(node, specs_of(servers.of_node(node)))
    progress("starting the node" if len(cluster.nodes) == 1 else f"starting {len(cluster.nodes)} nodes")
    operator = f"http://{cluster.node_address}:8082/readyz"
    wait_until_ready(cluster, cluster.nodes)
    wait_for(first, "the cluster's DNS", dns.NAME, lambda: dns_is_ready(cluster))
    wait_for(first, "KubeRay's operator", "ray-operator", lambda: is_healthy(operator))
    if cluster.queue:
        progress("starting Kueue")
        wait_for(first, "Kueue's objects", kueue.START_LOG, lambda: kueue.apply(cluster))
        wait_for(first, "Kueue", kueue.START_LOG, lambda: kueue.is_ready(cluster))


def wait_until_ready(cluster: State, awaited: Sequence[Node]) -> None:
    """Wait until nodes are registered, apply their labels and taints, and wait until they accept pods."""

    def registered(node: Node) -> bool:
        return node.name in nodes.read(cluster)

    def ready(node: Node) -> bool:
        return nodes.is_ready(node, nodes.read(cluster).get(node.name, {}))

    for node in awaited:
        wait_for(node, f"node {node.name}", "kubelet", partial(registered, node))
    nodes.apply_settings(cluster, awaited)
    for node in awaited:
        wait_for(node, f"node {node.name}", "kubelet", partial(ready, node))


def specs_of(running: Mapping[str, Server]) -> dict[str, object]:
    return {name: server.process_spec() for name, server in running.items()}


def set_processes(node: Node, specs: dict[str, object]) -> None:
    """Write the servers that the node runs, by name; the node restarts those whose specification changed."""
    if specs != read_processes(node):
        write_whole(node.file("processes.json"), json.dumps(specs, indent=1) + "\n", 0o600)


def read_processes(node: Node) -> dict[str, object]:
    """The specifications of the servers that the node runs, by name."""
    try:
        specs: dict[str, object] = json.loads(node.file("processes.json").read_text())
    except FileNotFoundError:
        return {}
    return specs


def wait_for(
    node: Node, what: str, server: str, condition: Callable[[], bool], limit: float = LIMIT_S
) -> None:
    """Wait until a condition is true.

    Raises:
        TrainfleetError: it is not true in time; with the end of the server's log.
    """
    deadline = time.monotonic() + limit
    while not condition():
        if time.monotonic() > deadline:
            log = node.file("logs", f"{server}.log")
            lines = log.read_text(errors="replace").strip().splitlines()[-3:] if log.exists() else []
            raise TrainfleetError(
                f"{what} did not become ready in {limit:.0f} s",
                [Problem(str(log), " / ".join(lines) or "the log is empty")],
            )
        time.sleep(POLL_INTERVAL_S)


def _apply_objects(cluster: State) -> bool:
    document = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects(cluster)})
    flags = ("--server-side", "--force-conflicts", "--field-manager=trainfleet-cluster")
    done = kubectl(cluster, "apply", *flags, "-f", "-", check=False, stdin=document)
    cluster.file("logs", "objects.log").write_text(done.stdout + done.stderr)
    return done.returncode == 0


def dns_is_ready(cluster: State) -> bool:
    """Whether the cluster's DNS resolves the API server's name, queried at its service address."""
    header = b"\x07\x07\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00"
    labels = ("kubernetes", "default", "svc", "cluster", "local")
    question = (
        header + b"".join(bytes([len(label)]) + label.encode() for label in labels) + b"\x00\x00\x01\x00\x01"
    )
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(2)
        try:
            client.sendto(question, (str(cluster.dns), 53))
            answer = client.recv(512)
        except OSError:
            return False
    same_id, no_error = answer[:2] == question[:2], answer[3] & 0x0F == 0
    return same_id and no_error and answer.endswith(cluster.services[1].packed)


def is_healthy(url: str) -> bool:
    """Whether a server answers with status 200, without a proxy."""
    try:
        with build_opener(ProxyHandler({})).open(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def remove_cluster(name: str, progress: Progress) -> bool:
    """Remove a cluster and everything that it created; returns whether it existed."""
    checks.require_supported()
    with cluster_lock(name, progress):
        cluster = state.load(name)
        if cluster is None:  # interrupted before its state was written: at most an empty folder exists
            shutil.rmtree(state.folder_of(name), ignore_errors=True)
            return False
        progress("stopping the node")
        for resource in reversed(cluster.resources):  # the first node, which links the others, last
            if resource.kind == "node":
                node_process.stop(resource.name)
        for resource in cluster.resources:
            if resource.kind == "link":
                network.remove(resource.name)
            elif resource.kind == "cgroup":
                cgroups.remove(resource.name)
        cluster.remove()
    return True
