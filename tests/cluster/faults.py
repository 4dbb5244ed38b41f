"""Faults to inject into a run on a cluster, each a function of the place where it runs.

Seconds from a fault to the next new step depend on the machine. `show` prints them, and appends them to the file
of the variable TRAINFLEET_FAULT_ROWS, from which `python -m tools.fault_table` makes the table of
docs/reliability.md. They are not asserted.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.cluster.conftest import until
from tests.cluster.cut import address, cut
from tests.cluster.launches import Place
from trainfleet.local_cluster import node
from trainfleet.training.runs.reader import MARKER, read_rows

Note = Callable[[str, object], None]
AWAY_S = 8.0
"""How long the store or the network is unavailable: longer than one attempt of a call, but not all."""
OUTAGE_S = 60.0
"""How long a node is cut off, or a store rejects every request."""
HOGS = "import os, time\nif not any(os.fork() == 0 for _ in range(40)): time.sleep(8); raise SystemExit\n"
HOGS += "held = bytearray(120 << 20)\nfor page in range(0, len(held), 4096): held[page] = 1\ntime.sleep(8)"
"""A program whose processes are each smaller than a rank, and together larger than its pod."""


def pod(place: Place, role: str) -> str:
    """A pod of the run, as `pod/NAME`."""
    return place.names("pod", f"ray.io/node-type={role}")[0]


def node_of(place: Place, *avoid: str) -> str:
    """A node with a worker of the run that is not one of `avoid`."""
    asked = ("get", "pod", "-l", "ray.io/node-type=worker", "-o", "jsonpath={.items[*].spec.nodeName}")
    return sorted(set(place.kubectl(*asked).split()) - {*avoid, place.cluster.state.control_plane.name})[0]


def spread_out(place: Place) -> None:
    """Have one worker on each node. After a node was stopped, another has two, and stopping that one would
    take two workers at once.
    """
    shown = "{range .items[?(@.spec.nodeName)]}{.spec.nodeName} {.metadata.name}{'\\n'}{end}"
    asked = ("get", "pod", "-l", "ray.io/node-type=worker", "-o", f"jsonpath={shown}")

    def homes() -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for line in place.kubectl(*asked).splitlines():
            home, _, name = line.partition(" ")
            found.setdefault(home, []).append(name)
        return found

    nodes = len(place.cluster.state.nodes)
    while len(before := homes()) < nodes:
        place.kubectl("delete", "pod", max(before.values(), key=len)[0])
        until(lambda: sum(map(len, homes().values())) == nodes, "each worker has a node", 300)


def kill_process(place: Place) -> None:
    """Send SIGKILL to a rank."""
    worker = ("exec", pod(place, "worker"), "-c", "ray-worker", "--")
    place.kubectl(*worker, "pkill", "-9", "-f", "ray::.*RayTrainWo")


def delete_worker(place: Place) -> None:
    place.kubectl("delete", pod(place, "worker"), "--wait=false")


def delete_head(place: Place) -> None:
    place.kubectl("delete", pod(place, "head"), "--wait=false")


def kill_operator(place: Place) -> None:
    kill_server(place, "ray-operator")


def kill_api_server(place: Place) -> None:
    kill_server(place, "kube-apiserver")


def kill_api_server_and_etcd(place: Place) -> None:
    kill_server(place, "etcd")
    kill_server(place, "kube-apiserver")


def kill_server(place: Place, name: str) -> None:
    """Send SIGKILL to a server of the node. The node restarts it."""
    pid = node.pid_of(place.cluster.state.control_plane)
    assert pid is not None
    number = json.loads(place.cluster.state.file("running.json").read_text())[name]["pid"]
    node.enter(pid, ["kill", "-9", str(number)])


def stop_store(place: Place) -> None:
    """Let the store accept connections and answer nothing for some seconds."""
    os.kill(place.store.pid, signal.SIGSTOP)
    wait(AWAY_S)
    os.kill(place.store.pid, signal.SIGCONT)


def cut_workers_off(place: Place) -> None:
    """Drop the traffic between the two workers for some seconds."""
    one, other = (
        address(place.cluster, place.namespace, name.partition("/")[2])
        for name in place.names("pod", "ray.io/node-type=worker")
    )
    asked = f"timeout 2 bash -c ': < /dev/tcp/{other}/8080' && echo open || echo cut"
    with cut(place.cluster, one, other):
        assert place.kubectl(
            "exec", pod(place, "worker"), "-c", "ray-worker", "--", "bash", "-c", asked
        ).split() == ["cut"]
        wait(AWAY_S)


def use_up_memory(place: Place) -> None:
    """Let many small processes use up a worker's memory, until the kernel or Ray kills the largest one."""
    inside = ("exec", pod(place, "worker"), "-c", "ray-worker", "--")
    place.kubectl(*inside, "timeout", "-k", "1", "10", "python", "-c", HOGS, check=False)


def command(place: Place, *arguments: str) -> None:
    """Call `trainfleet cluster node`."""
    done = place.cluster.call("cluster", "node", *arguments, "--name", place.cluster.name)
    assert done.returncode == 0, done.stderr


@contextlib.contextmanager
def drained_node(place: Place) -> Iterator[None]:
    """A node that accepts no pods and evicts its own, as for an upgrade."""
    name = node_of(place)
    options = ("--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=600s")
    place.cluster.kubectl("cordon", name)
    drain = [str(place.cluster.state.file("bin", "kubectl")), "drain", name, *options]
    process = subprocess.Popen(drain, env=place.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
        assert process.wait(600) == 0
    finally:
        process.kill()
        process.wait()
        place.cluster.kubectl("uncordon", name)


@contextlib.contextmanager
def stopped_node(place: Place) -> Iterator[None]:
    """A node that loses its power, until the end of the block."""
    name = node_of(place)
    command(place, "stop", name)
    try:
        yield
    finally:
        command(place, "start", name)
        until(lambda: place.cluster.status()["ready"], "all nodes are ready")


@contextlib.contextmanager
def cut_off_node(place: Place) -> Iterator[None]:
    """A node without a network for a minute; it keeps running."""
    name = node_of(place)
    command(place, "cut", name, "--seconds", str(round(OUTAGE_S)))
    yield
    until(lambda: place.cluster.status()["ready"], "all nodes are ready", OUTAGE_S + 60)


class _Unavailable(http.server.BaseHTTPRequestHandler):
    """A server that answers every request with 503, as an overloaded store does."""

    BODY = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(503)
        self.send_header("Content-Length", str(len(self.BODY)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(self.BODY)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = answer  # noqa: N815 - the names that http.server calls

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


def _server(address_of: tuple[str, int]) -> http.server.ThreadingHTTPServer | None:
    """The server, or None while its port is taken."""
    try:
        return http.server.ThreadingHTTPServer(address_of, _Unavailable)
    except OSError:
        return None


class StoreSwitch:
    """The store's server, which can be replaced with one that answers 503."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.argv = Path(f"/proc/{place.store.pid}/cmdline").read_bytes().split(b"\0")[:-1]
        self.folder = place.store.authority.parent
        self.own: subprocess.Popen[bytes] | None = None

    @contextlib.contextmanager
    def rejecting(self) -> Iterator[None]:
        """Answer 503 to every request until the end of the block."""
        self._end()
        where = urlsplit(self.place.store.address)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.folder / "tls.crt", self.folder / "tls.key")
        address_of = (str(where.hostname), where.port or 443)
        with until(lambda: _server(address_of), "the port is free", 20) as server:
            server.socket = context.wrap_socket(
                server.socket, server_side=True, do_handshake_on_connect=False
            )
            threading.Thread(target=server.serve_forever, daemon=True).start()
            try:
                yield
            finally:
                server.shutdown()
        self.own = subprocess.Popen(
            self.argv, cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def _end(self) -> None:
        if self.own is None:
            os.kill(self.place.store.pid, signal.SIGKILL)
        else:
            self.close()

    def close(self) -> None:
        """End the server that this object started."""
        if self.own is not None:
            self.own.kill()
            self.own.wait()


def wait(seconds: float) -> None:
    over = time.monotonic() + seconds
    until(lambda: time.monotonic() > over, "the time is up", seconds + 5)


def prestarted(place: Place) -> bool:
    """Whether each worker's pod has a rank, and a prestarted process that has finished its imports: it uses
    less than 5 % of a CPU.

    This takes some seconds after a start.
    """
    ready = "[ $(($(ticks $p) - a)) -lt 5 ] && grep -q libtorch_cpu /proc/$p/maps && echo ready"
    waiting = f"for p in $(pgrep -f '[r]ay::IDLE'); do a=$(ticks $p); sleep 1; {ready}; done"
    ranks = "pgrep -f '[r]ay::.*RayTrainWo' | sed 's/.*/rank/'"
    asked = f"ticks() {{ cut -d' ' -f14 /proc/$1/stat; }}; {waiting}; {ranks}"
    workers = [name.partition("/")[2] for name in place.names("pod", "ray.io/group=workers")]
    found = [
        place.kubectl("exec", name, "-c", "ray-worker", "--", "bash", "-c", asked, check=False).split()
        for name in workers
    ]
    return bool(found) and all(each.count("rank") == 1 and "ready" in each for each in found)


def saved_steps(place: Place, run: str) -> list[int]:
    """The steps of the complete checkpoints in the store."""
    folder = place.store.folder / "runs" / "runs" / run / "checkpoints"
    return sorted(int(file.parent.name.partition("-")[2]) for file in folder.glob(f"step-*/{MARKER}"))


def losses(run_dir: Path) -> dict[int, float]:
    """The logged losses of a run, by step."""
    return {row["step"]: row["loss"] for row in read_rows(run_dir).of("train")}


def show(note: Note, what: str, **seconds: float) -> None:
    """Print the seconds of a fault, and record them."""
    for name, value in seconds.items():
        note(name, round(value, 1))
    load = os.getloadavg()[0]
    values = ", ".join(f"{name} {value:.1f} s" for name, value in seconds.items())
    sys.stdout.write(f"\n{what}: {values} (load {load:.0f})\n")
    if file := os.environ.get("TRAINFLEET_FAULT_ROWS"):
        row = {
            "date": time.strftime("%Y-%m-%d"),
            "fault": what,
            "load": round(load, 1),
            **{name: round(each, 1) for name, each in seconds.items()},
        }
        with Path(file).open("a") as rows:
            rows.write(json.dumps(row) + "\n")
