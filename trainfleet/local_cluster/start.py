"""Brings a cluster up, or goes on where an earlier attempt stopped: each step looks first whether it is done.

Used by the command line and the tests. Easy to get wrong: the order. What is outside the state folder is
written down before it
is made (state.py), the API server answers before its clients start, and definitions are there before
KubeRay's operator looks.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from trainfleet.errors import Problem, TrainfleetError
from trainfleet.files import write_whole
from trainfleet.local_cluster import builds, cgroups, checks, images, network, node, pki, servers, state
from trainfleet.local_cluster.kubectl import kubectl, write_shim
from trainfleet.local_cluster.objects import objects
from trainfleet.local_cluster.state import State
from trainfleet.toolchain import cache_folder

Progress = Callable[[str], None]
LIMIT_S = 180.0
_LOOK_EVERY = 0.1


@contextmanager
def one_at_a_time(name: str, progress: Progress) -> Iterator[None]:
    """Hold the cluster's lock while the block runs: `up` and `down` wait for each other."""
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


def up(name: str, progress: Progress, *, image: bool = True, fake_nodes: bool = False) -> State:
    """Return the state of a cluster that is ready, having made what was missing.

    Raises:
        MissingToolError: this machine cannot run it; says what is missing.
        TrainfleetError: a server does not come up; with the last words of its log.
    """
    checks.machine()
    there = state.load(name)
    simulated = fake_nodes or (there is not None and "kwok" in _wanted(there))
    checks.resources(state.folder_of(name), image=image, simulated=simulated)
    store = _prepare(progress, image, simulated)
    with one_at_a_time(name, progress):
        it = state.load(name) or _created(name)
        images.clone(it, store)
        it.note("cgroup", it.cgroup)
        cgroups.make(it.cgroup)
        pki.make(it)
        servers.write_configuration(it)
        write_shim(it)
        pid = node.start(it)
        network.connect(it, pid)
        _start(it, progress, simulated=simulated)
        if image:
            images.load_project(it, pid, store, progress)
    return it


def _created(name: str) -> State:
    """A new cluster's state. Two that begin at once do not choose one range: a range is taken from when it is
    written down.
    """
    with FileLock(str(cache_folder() / "cluster-networks.lock")):
        taken = [other.network for other in map(state.load, state.names()) if other is not None]
        return state.create(name, network.choose(taken))


def _prepare(progress: Progress, image: bool, simulated: bool) -> Path:
    """Programs and images, made side by side: one waits for the processors, the other for the disk and the
    index. Returns the images' store.
    """
    with ThreadPoolExecutor(2) as pool:
        built, store = (
            pool.submit(builds.build_all, progress, simulated),
            pool.submit(images.prepare, progress, image),
        )
        try:
            built.result()
            return store.result()
        except KeyboardInterrupt:  # the threads end when what they wait for does
            for child in psutil.Process().children(recursive=True):
                child.kill()
            raise


def _start(it: State, progress: Progress, *, simulated: bool) -> None:
    wanted = servers.control_plane(it)
    want(it, _wanted(it) | {name: server.wanted() for name, server in wanted.items()})
    progress("starting the API server")
    wait(
        it,
        "the API server",
        "kube-apiserver",
        lambda: kubectl(it, "get", "--raw", "/readyz", check=False).returncode == 0,
    )
    wait(it, "the cluster's objects", "kube-apiserver", lambda: _applied(it))
    wanted |= servers.workers(it)
    if simulated:
        wanted |= servers.simulated(it)
    want(it, {name: server.wanted() for name, server in wanted.items()})
    progress("starting the node")
    wait(it, "the node", "kubelet", lambda: node_ready(it))
    wait(it, "the cluster's DNS", "coredns", lambda: dns_answers(it))
    wait(it, "KubeRay's operator", "ray-operator", lambda: answers(f"http://{it.inside}:8082/readyz"))


def want(it: State, wanted: dict[str, object]) -> None:
    """Tell the node's first process what to run."""
    if wanted != _wanted(it):
        write_whole(it.file("processes.json"), json.dumps(wanted, indent=1) + "\n", 0o600)


def _wanted(it: State) -> dict[str, object]:
    try:
        wanted: dict[str, object] = json.loads(it.file("processes.json").read_text())
    except FileNotFoundError:
        return {}
    return wanted


def wait(it: State, what: str, server: str, done: Callable[[], bool], limit: float = LIMIT_S) -> None:
    """Wait for a condition.

    Raises:
        TrainfleetError: it did not come true in time; with the last words of the server's log.
    """
    deadline = time.monotonic() + limit
    while not done():
        if time.monotonic() > deadline:
            log = it.file("logs", f"{server}.log")
            said = log.read_text(errors="replace").strip().splitlines()[-3:] if log.exists() else []
            raise TrainfleetError(
                f"{what} did not become ready in {limit:.0f} s",
                [Problem(str(log), " / ".join(said) or "is empty")],
            )
        time.sleep(_LOOK_EVERY)


def _applied(it: State) -> bool:
    document = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects(it)})
    done = kubectl(
        it,
        "apply",
        "--server-side",
        "--force-conflicts",
        "--field-manager=trainfleet-cluster",
        "-f",
        "-",
        check=False,
        given=document,
    )
    it.file("logs", "objects.log").write_text(done.stdout + done.stderr)
    return done.returncode == 0


def node_ready(it: State) -> bool:
    """Whether the kubelet says that pods may come."""
    path = "{.status.conditions[?(@.type=='Ready')].status}"
    return kubectl(it, "get", "node", it.node, "-o", f"jsonpath={path}", check=False).stdout == "True"


def dns_answers(it: State) -> bool:
    """Whether the cluster's DNS, asked at its service address from this machine, knows the API server."""
    import socket

    question = b"\x07\x07\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00"
    question += (
        b"".join(
            bytes([len(part)]) + part.encode()
            for part in ("kubernetes", "default", "svc", "cluster", "local")
        )
        + b"\x00\x00\x01\x00\x01"
    )
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        asked.settimeout(2)
        try:
            asked.sendto(question, (str(it.dns), 53))
            answer = asked.recv(512)
        except OSError:
            return False
    return answer[:2] == question[:2] and answer[3] & 0x0F == 0 and answer.endswith(it.services[1].packed)


def answers(url: str) -> bool:
    """Whether a server answers with 200."""
    from urllib.request import ProxyHandler, build_opener

    try:
        with build_opener(ProxyHandler({})).open(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def down(name: str, progress: Progress) -> bool:
    """Remove a cluster and everything that it made; returns whether there was one."""
    checks.machine()
    with one_at_a_time(name, progress):
        it = state.load(name)
        if it is None:  # killed before its first line was written: at most an empty folder
            shutil.rmtree(state.folder_of(name), ignore_errors=True)
            return False
        progress("ending the node")
        if any(made.kind == "node" for made in it.made):
            node.stop(it)
        for made in it.made:
            if made.kind == "link":
                network.remove(made.name)
            elif made.kind == "cgroup":
                cgroups.remove(made.name)
        it.remove()
    return True
