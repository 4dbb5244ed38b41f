"""The node: a set of namespaces whose first process is init.py. Started, found, entered and ended from here.

A token in the command line, written down before the start, finds it again whoever started it and however that
ended.
Easy to get wrong: `unshare` stays as the parent of init, so two processes carry the token and only one of
them is the node.
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
from trainfleet.local_cluster.state import State

INIT = Path(__file__).with_name("node_init.py")
LIMIT_S = 30.0
TIED = ("setpriv", "--pdeathsig", "KILL")
"""Before a command: it is killed when the process that started it ends, also by SIGKILL."""
GUARD = (
    *TIED,
    "unshare",
    "--mount",
    "--propagation",
    "private",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
    "--",
)
"""Before a command: so is all that it starts, and what it mounts goes with it."""
_NAMESPACES = ("--mount", "--net", "--pid", "--uts", "--ipc")


def bearers(token: str) -> list[int]:
    """The processes that carry a token in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if token.encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def pid_of(state: State) -> int | None:
    """The node's first process as this machine numbers it, or None when the node does not run."""
    for pid in bearers(state.token):
        with contextlib.suppress(OSError):
            numbers = next(
                line.split()[1:]
                for line in Path(f"/proc/{pid}/status").read_text().splitlines()
                if line.startswith("NSpid:")
            )
            if len(numbers) > 1 and numbers[-1] == "1":
                return pid
    return None


def start(state: State, *, tied: bool = False) -> int:
    """Return the node's first process, started when it does not run; `tied`, it ends with this process.

    Raises:
        TrainfleetError: it does not come up; with its last words.
    """
    if (pid := pid_of(state)) is not None and state.file("ready").exists():
        return pid
    stop(state)
    state.note("node", state.token)
    state.file("ready").unlink(missing_ok=True)
    state.file("processes.json").unlink(missing_ok=True)
    state.file("logs").mkdir(exist_ok=True)
    command = [
        *(TIED if tied else ()),
        "unshare",
        *_NAMESPACES,
        "--fork",
        "--kill-child",
        "--mount-proc",
        sys.executable,
        "-I",
        "-S",
    ]
    environment = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/root",
        "LANG": "C.UTF-8",
    }
    with state.file("logs", "init.log").open("ab") as log:
        parent = subprocess.Popen(
            [*command, str(INIT), str(state.folder), state.token, state.node],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd="/",
            start_new_session=True,
        )
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline and parent.poll() is None:
        if state.file("ready").exists() and (pid := pid_of(state)) is not None:
            return pid
        time.sleep(0.05)
    said = state.file("logs", "init.log").read_text(errors="replace").strip().splitlines()[-2:]
    raise TrainfleetError(
        "the node does not start",
        [Problem(str(state.file("logs", "init.log")), " / ".join(said) or "no word from it")],
    )


def enter(
    pid: int, command: Sequence[str], given: IO[bytes] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command inside the node, with a file as its input.

    Raises:
        TrainfleetError: it failed; with its last words.
    """
    done = subprocess.run(
        ["nsenter", "-t", str(pid), "-m", "-n", "-p", "-u", "--", *command],
        stdin=given or subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()[-2:]
        raise TrainfleetError(
            "a command in the node failed",
            [Problem(" ".join(command[:3]), " / ".join(said) or f"exit code {done.returncode}")],
        )
    return done


def stop(state: State) -> None:
    """End the node and with it everything that runs in it; waits until it is gone."""
    deadline = time.monotonic() + LIMIT_S
    while found := bearers(state.token):
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):  # it is ours when this process started it
                os.waitpid(pid, os.WNOHANG)
        if time.monotonic() > deadline:
            raise TrainfleetError(
                "the node does not end",
                [Problem(f"process {found[0]}", "is still there after SIGKILL", "see `ps`; a disk may hang")],
            )
        time.sleep(0.05)
