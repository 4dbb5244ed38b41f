"""A server that a launch starts and that others use outlives the launch, however that ends."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

WAIT = "import time; time.sleep(600)"
SERVER = f"""
import subprocess, sys, time
worker = subprocess.Popen([sys.executable, "-c", {WAIT!r}])
print(worker.pid, flush=True)
time.sleep(600)
"""
"""Stands in for SkyPilot's server, with a worker."""
CHILD = f"""
import pathlib, subprocess, sys, time
def start(*argv):
    return subprocess.Popen([sys.executable, "-c", *argv], start_new_session=True, stdout=subprocess.PIPE)
server = start({SERVER!r}, "-m", "sky.server.server")
other = start({WAIT!r})
file = pathlib.Path(sys.argv[1], "pids")
file.with_suffix(".new").write_text(f"{{server.pid}} {{server.stdout.readline().decode().strip()}} {{other.pid}}")
file.with_suffix(".new").replace(file)
time.sleep(float(sys.argv[2]))
"""
SUPERVISOR = """
import sys
from trainfleet import process
with open(sys.argv[1] + "/log", "wb") as log:
    command = [sys.executable, "-c", sys.argv[2], sys.argv[1], sys.argv[3]]
    process.supervise(command, {}, log, tick=lambda: None, on_signal=lambda _: process.Reaction.END_NOW)
"""


@pytest.fixture
def pids(tmp_path: Path) -> Iterator[Path]:
    """The file with the ids of the server, its worker and another process. They end with the test."""
    yield tmp_path / "pids"
    for pid in map(int, (tmp_path / "pids").read_text().split()):
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(pid).kill()


def ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.skipif(sys.platform != "linux", reason="orphans of a process are known on Linux only")
@pytest.mark.parametrize("killed", [False, True])
def test_a_server_outlives_the_launch_that_started_it(killed: bool, tmp_path: Path, pids: Path) -> None:
    seconds = "600" if killed else "0"
    launch = subprocess.Popen([sys.executable, "-c", SUPERVISOR, str(tmp_path), CHILD, seconds])
    deadline = time.monotonic() + 60
    while not pids.exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    server, worker, other = map(int, pids.read_text().split())
    if killed:
        recorded = time.monotonic() + 3  # the reaper looks every second
        while time.monotonic() < recorded:
            time.sleep(0.1)
        launch.kill()
    launch.wait(60)
    while not ended(other):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert not ended(server)
    assert not ended(worker)
