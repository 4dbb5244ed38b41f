"""A node: a set of namespaces whose first process is node_init.py. Starts, finds, enters and stops it.

The command line of the first process holds a random token. The token is recorded before the start, so that
the node is found again whichever process started it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from trainfleet.errors import Problem, TrainfleetError
from trainfleet.local_cluster.state import Node

INIT = Path(__file__).with_name("node_init.py")
LIMIT_S = 30.0
DIE_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL")
"""Command prefix: the command is killed when the process that started it ends, also by SIGKILL."""
ISOLATED = (
    *DIE_WITH_PARENT,
    *("unshare", "--mount", "--propagation", "private"),
    *("--pid", "--fork", "--kill-child", "--mount-proc", "--"),
)
"""Command prefix: DIE_WITH_PARENT for the command's children too; its mounts are removed with it."""
_NAMESPACES = ("--mount", "--net", "--pid", "--uts", "--ipc")


def pids_with_token(token: str) -> list[int]:
    """The processes with the token in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if token.encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def pid_of(node: Node) -> int | None:
    """The node's first process in this machine's numbering, or None when the node does not run."""
    # `unshare` stays as the parent of the first process, so two processes have the token. Only the
    # node's own has the number 1 in its namespace.
    for pid in pids_with_token(node.token):
        with contextlib.suppress(OSError):
            rows = Path(f"/proc/{pid}/status").read_text().splitlines()
            numbers = next(row.split()[1:] for row in rows if row.startswith("NSpid:"))
            if len(numbers) > 1 and numbers[-1] == "1":
                return pid
    return None


def start(node: Node, *, die_with_parent: bool = False) -> int:
    """Start the node unless it runs; returns the process ID of its first process.

    Raises:
        TrainfleetError: it does not start; with the end of its log.
    """
    if (pid := pid_of(node)) is not None and node.file("ready").exists():
        return pid
    stop(node.token)
    node.cluster.record("node", node.token)
    node.file("ready").unlink(missing_ok=True)
    node.file("processes.json").unlink(missing_ok=True)
    node.file("logs").mkdir(exist_ok=True)
    parent = _launch(node, DIE_WITH_PARENT if die_with_parent else ())
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline and parent.poll() is None:
        if node.file("ready").exists() and (pid := pid_of(node)) is not None:
            return pid
        time.sleep(0.05)
    log = node.file("logs", "init.log")
    output = log.read_text(errors="replace").strip().splitlines()[-2:]
    raise TrainfleetError(
        "the node does not start", [Problem(str(log), " / ".join(output) or "the log is empty")]
    )


def _launch(node: Node, prefix: Sequence[str]) -> subprocess.Popen[bytes]:
    command = [*prefix, "unshare", *_NAMESPACES, "--fork", "--kill-child", "--mount-proc"]
    command += [sys.executable, "-I", "-S", str(INIT), str(node.folder), node.token, node.name]
    command += [str(node.cluster.file("var", "lib", "volumes"))]
    environment = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/root",
        "LANG": "C.UTF-8",
    }
    with node.file("logs", "init.log").open("ab") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd="/",
            start_new_session=True,
        )


def enter(
    pid: int, command: Sequence[str], stdin: IO[bytes] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command inside the node.

    Raises:
        TrainfleetError: it failed; with the end of its output.
    """
    done = subprocess.run(
        ["nsenter", "-t", str(pid), "-m", "-n", "-p", "-u", "--", *command],
        stdin=stdin or subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        output = (done.stderr or done.stdout).strip().splitlines()[-2:]
        raise TrainfleetError(
            "a command in the node failed",
            [Problem(" ".join(command[:3]), " / ".join(output) or f"exit code {done.returncode}")],
        )
    return done


def stop(token: str) -> None:
    """Kill the node of a token with everything that runs in it; returns once it is gone."""
    deadline = time.monotonic() + LIMIT_S
    while found := pids_with_token(token):
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):  # a child only if this process started the node
                os.waitpid(pid, os.WNOHANG)
        if time.monotonic() > deadline:
            raise TrainfleetError(
                "the node does not stop",
                [Problem(f"process {found[0]}", "still exists after SIGKILL", "see `ps`; a disk may hang")],
            )
        time.sleep(0.05)
