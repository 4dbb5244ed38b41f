"""The first process of the node: creates its mounts, then starts and restarts the cluster's servers.

node.py runs it as `unshare ... python -I -S node_init.py FOLDER TOKEN HOSTNAME VOLUMES`, with the standard
library only. When it ends, the kernel kills every process of the node and drops its mounts and network.
The servers to run are in FOLDER/processes.json, which is read again when it changes.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

POLL_INTERVAL_S = 0.2
RESTART_DELAY_S = (0.2, 10.0)
"""Delay before a server that ended is started again: first and longest; it doubles each time."""
STABLE_AFTER_S = 30.0
"""A server that ran this long starts with the first delay again."""
LOG_LIMIT = 64 << 20
TUNABLES = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1000000,
    "kernel/keys/root_maxbytes": 25000000,
}
"""The kernel settings of the whole machine, below /proc/sys, that the kubelet sets, and the values that it
expects (setupKernelTunables in pkg/kubelet/cm/container_manager_linux.go).
"""


def make_mounts(folder: Path, hostname: str, volumes: Path) -> None:
    """Mount a /run, /var/lib, /var/log and resolv.conf of the node's own, backed by its folder, and the
    folder of the volumes, which all nodes share.
    """
    resolver = Path("/etc/resolv.conf").resolve()
    run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    (Path("/run") / "lock").mkdir()
    for name in ("lib", "log"):
        own = folder / "var" / name
        own.mkdir(parents=True, exist_ok=True)
        run("mount", "--bind", str(own), f"/var/{name}")
    Path("/var/lib/volumes").mkdir(exist_ok=True)
    volumes.mkdir(parents=True, exist_ok=True)
    run("mount", "--bind", str(volumes), "/var/lib/volumes")
    if not resolver.exists():  # it was a link into the /run that is hidden now
        resolver.parent.mkdir(parents=True, exist_ok=True)
        resolver.touch()
    run("mount", "--bind", str(folder / "config" / "resolv.conf"), str(resolver))
    mount_tunables(folder)
    run("mount", "--make-rshared", "/")
    socket.sethostname(hostname)
    run("ip", "link", "set", "lo", "up")
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


def mount_tunables(folder: Path) -> None:
    """Mount a read-only file over each setting of TUNABLES: the kubelet reads what it expects, and changes
    nothing outside the node.
    """
    for name, value in TUNABLES.items():
        own = folder / "tunables" / name
        own.parent.mkdir(parents=True, exist_ok=True)
        own.write_text(f"{value}\n")
        run("mount", "--bind", "-o", "ro", str(own), f"/proc/sys/{name}")


def run(*command: str) -> None:
    subprocess.run(command, check=True)


class Server:
    """One server: its process specification, its process and its restart delay."""

    def __init__(self, name: str, spec: dict[str, Any], folder: Path) -> None:
        self.name, self.spec, self.folder = name, spec, folder
        self.child: subprocess.Popen[bytes] | None = None
        self.starts = 0
        self.started_at = 0.0
        self.next_start = 0.0
        self.delay = RESTART_DELAY_S[0]

    @property
    def log(self) -> Path:
        return self.folder / "logs" / f"{self.name}.log"

    def poll(self) -> bool:
        """Notice that the process ended, or start it when that is due; returns whether anything changed."""
        now = time.monotonic()
        if self.child is not None and self.child.poll() is not None:
            if now - self.started_at > STABLE_AFTER_S:
                self.delay = RESTART_DELAY_S[0]
            self.child, self.next_start = None, now + self.delay
            self.delay = min(self.delay * 2, RESTART_DELAY_S[1])
            return True
        if self.child is not None or now < self.next_start:
            return False
        with self.log.open("ab") as log:
            try:
                self.child = subprocess.Popen(
                    self.spec["command"],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd="/",
                    env=os.environ | self.spec.get("environment", {}),
                    start_new_session=True,
                )
            except OSError as error:
                log.write(f"cannot be started: {error}\n".encode())
                self.next_start = now + RESTART_DELAY_S[1]
                return True
        self.starts, self.started_at = self.starts + 1, now
        return True

    def stop(self) -> None:
        if self.child is None:
            return
        self.child.terminate()
        try:
            self.child.wait(10)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()

    def limit_log(self) -> None:
        with contextlib.suppress(OSError):
            if self.log.stat().st_size > LOG_LIMIT:
                os.truncate(self.log, 0)


def read_specs(path: Path) -> tuple[float, dict[str, Any]]:
    """The file's modification time and the servers that it lists."""
    try:
        return path.stat().st_mtime, json.loads(path.read_text())
    except FileNotFoundError:
        return 0.0, {}


def write(path: Path, document: Any) -> None:
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(document, indent=1) + "\n")
    os.replace(temporary, path)


def reap_orphans(servers: set[int]) -> None:
    """Wait for the orphans that a first process inherits; a server is waited for by its `Server`."""
    with contextlib.suppress(ChildProcessError, OSError):
        while True:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None or found.si_pid in servers:
                return
            os.waitpid(found.si_pid, os.WNOHANG)


def supervise(folder: Path) -> None:
    """Run the listed servers; never returns."""
    servers: dict[str, Server] = {}
    seen = -1.0
    turns = 0
    while True:
        changed = False
        modified, specs = read_specs(folder / "processes.json") if turns % 2 == 0 else (seen, {})
        if modified != seen:
            seen, changed = modified, True
            for name in [name for name, server in servers.items() if specs.get(name) != server.spec]:
                servers.pop(name).stop()
            for name, spec in specs.items():
                servers.setdefault(name, Server(name, spec, folder))
        for server in servers.values():
            changed = server.poll() or changed
        reap_orphans({server.child.pid for server in servers.values() if server.child is not None})
        if changed:
            rows = {
                s.name: {"pid": s.child.pid if s.child else None, "starts": s.starts}
                for s in servers.values()
            }
            write(folder / "running.json", rows)
        if turns % 300 == 0:
            for server in servers.values():
                server.limit_log()
        turns += 1
        time.sleep(POLL_INTERVAL_S)


def main() -> None:
    folder = Path(sys.argv[1])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    (folder / "logs").mkdir(exist_ok=True)
    make_mounts(folder, sys.argv[3], Path(sys.argv[4]))
    write(folder / "running.json", {})
    (folder / "ready").touch()
    supervise(folder)


if __name__ == "__main__":
    main()
