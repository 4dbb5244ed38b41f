"""The first process of the node: makes its mounts and starts, watches and restarts the cluster's servers.
Standard library only.

Run by node.py as `unshare ... python -I -S init.py FOLDER TOKEN`; when it ends, the kernel ends every process
of the node and
drops its mounts and its network, so nothing can be left behind. What to run stands in FOLDER/processes.json,
which is read
again when it changes. Easy to get wrong: a mount made here is seen here only, because the mount namespace is
private.
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

LOOK_EVERY = 0.2
PATIENCE = (0.2, 10.0)
"""Seconds before a server that ended is started again: at first, and at most."""
STEADY = 30.0
"""Seconds after which a server counts as running well, and its patience starts anew."""
LOG_LIMIT = 64 << 20


def make_mounts(folder: Path, hostname: str) -> None:
    """Give the node a /run, /var/lib, /var/log and resolv.conf of its own; what it writes there lies in the
    state folder or nowhere.
    """
    resolver = Path("/etc/resolv.conf").resolve()
    run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    (Path("/run") / "lock").mkdir()
    for name in ("lib", "log"):
        ours = folder / "var" / name
        ours.mkdir(parents=True, exist_ok=True)
        run("mount", "--bind", str(ours), f"/var/{name}")
    if not resolver.exists():  # it was a link into the /run that is hidden now
        resolver.parent.mkdir(parents=True, exist_ok=True)
        resolver.touch()
    run("mount", "--bind", str(folder / "config" / "resolv.conf"), str(resolver))
    run("mount", "--make-rshared", "/")
    socket.sethostname(hostname)
    run("ip", "link", "set", "lo", "up")
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


def run(*command: str) -> None:
    subprocess.run(command, check=True)


class Server:
    """One program that has to run."""

    def __init__(self, name: str, wanted: dict[str, Any], folder: Path) -> None:
        self.name, self.wanted, self.folder = name, wanted, folder
        self.child: subprocess.Popen[bytes] | None = None
        self.starts, self.started, self.next, self.patience = 0, 0.0, 0.0, PATIENCE[0]

    def look(self) -> bool:
        """Start it when it is due; returns whether anything changed."""
        now = time.monotonic()
        if self.child is not None and self.child.poll() is not None:
            if now - self.started > STEADY:
                self.patience = PATIENCE[0]
            self.child, self.next = None, now + self.patience
            self.patience = min(self.patience * 2, PATIENCE[1])
            return True
        if self.child is not None or now < self.next:
            return False
        with (self.folder / "logs" / f"{self.name}.log").open("ab") as log:
            try:
                self.child = subprocess.Popen(
                    self.wanted["command"],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd="/",
                    env=os.environ | self.wanted.get("environment", {}),
                    start_new_session=True,
                )
            except OSError as error:
                log.write(f"cannot be started: {error}\n".encode())
                self.next = now + PATIENCE[1]
                return True
        self.starts, self.started = self.starts + 1, now
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
        log = self.folder / "logs" / f"{self.name}.log"
        with contextlib.suppress(OSError):
            if log.stat().st_size > LOG_LIMIT:
                os.truncate(log, 0)


def servers_wanted(path: Path) -> tuple[float, dict[str, Any]]:
    try:
        return path.stat().st_mtime, json.loads(path.read_text())
    except FileNotFoundError:
        return 0.0, {}


def write(path: Path, document: Any) -> None:
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps(document, indent=1) + "\n")
    os.replace(temporary, path)


def reap(known: set[int]) -> None:
    """Wait for orphans (a first process inherits them); the servers themselves are waited for by their
    owners.
    """
    with contextlib.suppress(ChildProcessError, OSError):
        while True:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None or found.si_pid in known:
                return
            os.waitpid(found.si_pid, os.WNOHANG)


def watch(folder: Path) -> None:
    """Run what is wanted, for ever."""
    servers: dict[str, Server] = {}
    seen = -1.0
    turns = 0
    while True:
        changed = False
        stamp, wanted = servers_wanted(folder / "processes.json") if turns % 2 == 0 else (seen, {})
        if stamp != seen:
            seen, changed = stamp, True
            for name in [name for name, server in servers.items() if wanted.get(name) != server.wanted]:
                servers.pop(name).stop()
            for name, what in wanted.items():
                servers.setdefault(name, Server(name, what, folder))
        for server in servers.values():
            changed = server.look() or changed
        reap({server.child.pid for server in servers.values() if server.child is not None})
        if changed:
            write(
                folder / "running.json",
                {
                    s.name: {"pid": s.child.pid if s.child else None, "starts": s.starts}
                    for s in servers.values()
                },
            )
        if turns % 300 == 0:
            for server in servers.values():
                server.limit_log()
        turns += 1
        time.sleep(LOOK_EVERY)


def main() -> None:
    folder = Path(sys.argv[1])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    (folder / "logs").mkdir(exist_ok=True)
    make_mounts(folder, sys.argv[3])
    write(folder / "running.json", {})
    (folder / "ready").touch()
    watch(folder)


if __name__ == "__main__":
    main()
