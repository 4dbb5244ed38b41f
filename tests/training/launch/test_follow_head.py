"""A worker's container ends Ray as soon as its head's name belongs to another pod that answers."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.training.launch.kuberay_launches import run_spec
from trainfleet.training.launch.kuberay.pods import FOLLOW_HEAD, worker_pod

HEAD, NEXT = "127.0.0.1", "127.0.0.2"
GETENT = """#!/bin/sh
echo "asked $*" >> "$FOLDER/asked"
cat "$FOLDER/address" 2>/dev/null
"""
PKILL = """#!/bin/sh
echo "$*" >> "$FOLDER/killed"
"""


class Worker:
    """The loop in a shell, with a name service that a test changes."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        for name, text in (("getent", GETENT), ("pkill", PKILL)):
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)
        self.points_to(HEAD)
        script = f"true; {FOLLOW_HEAD.format(seconds=0.05, port=port)} && sleep 60"
        env = os.environ | {"FOLDER": str(folder), "PATH": f"{folder}:{os.environ['PATH']}"}
        env["FQ_RAY_IP"] = "head-svc.training.svc.cluster.local"
        self.process = subprocess.Popen(["bash", "-c", script], env=env, start_new_session=True)

    def points_to(self, address: str) -> None:
        (self.folder / "address").write_text(f"{address}  head-svc\n" if address else "")

    def look(self, times: int = 3) -> None:
        """Wait until the loop has asked a few more times."""
        before, until = self._asked(), time.monotonic() + 20
        while self._asked() < before + times:
            assert time.monotonic() < until, "the loop asks no longer"
            time.sleep(0.02)

    def _asked(self) -> int:
        asked = self.folder / "asked"
        return len(asked.read_text().splitlines()) if asked.exists() else 0

    def killed(self, wait_s: float = 0.0) -> str:
        until = time.monotonic() + wait_s
        while not (self.folder / "killed").exists() and time.monotonic() < until:
            time.sleep(0.02)
        return (self.folder / "killed").read_text().strip() if (self.folder / "killed").exists() else ""


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A head at NEXT, which does not listen yet."""
    with socket.socket() as made:
        made.bind((NEXT, 0))
        yield made


@pytest.fixture
def worker(tmp_path: Path, listener: socket.socket) -> Iterator[Worker]:
    made = Worker(tmp_path, listener.getsockname()[1])
    yield made
    os.killpg(made.process.pid, 9)
    made.process.wait()


def test_ray_ends_once_another_head_answers(worker: Worker, listener: socket.socket) -> None:
    worker.look()
    worker.points_to("")
    worker.look()
    worker.points_to(NEXT)
    worker.look()
    assert worker.killed() == "", "it does not listen yet"
    listener.listen()
    assert worker.killed(wait_s=20) == "-KILL -x raylet"
    assert (worker.folder / "asked").read_text().splitlines()[0] == (
        "asked hosts head-svc.training.svc.cluster.local"
    )


def test_the_first_head_may_stay(worker: Worker, listener: socket.socket) -> None:
    listener.listen()
    for address in (HEAD, "", HEAD):
        worker.points_to(address)
        worker.look()
    assert worker.killed() == ""
    assert worker.process.poll() is None, "the rest of the command runs meanwhile"


def test_only_workers_that_end_with_their_head_follow_it() -> None:
    (alone,) = worker_pod(run_spec())["spec"]["containers"][0]["args"]
    assert "pkill -KILL -x raylet" in alone
    assert "sleep 2;" in alone
    assert alone.endswith(" & }"), "KubeRay appends `&& ray start ...`"
