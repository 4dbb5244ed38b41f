"""What a killed SkyPilot server leaves keeps a port that the next one needs, and is ended."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import psutil
import pytest

from trainfleet.process import every_process
from trainfleet.training.launch.sky import job_state
from trainfleet.training.launch.sky.server_leftovers import OF_SERVER, end_leftovers, queue_port

SERVER = """
import os, socket, subprocess, sys, time
from setproctitle import setproctitle
other = subprocess.Popen(["/bin/sleep", "600"], env={})
titled, told = os.pipe()
if not (executor := os.fork()):
    setproctitle("SkyPilot:executor:short:1")
    os.close(told)
    time.sleep(600)
os.close(told)
os.read(titled, 1)
if not os.fork():
    held = socket.create_server(("127.0.0.1", int(sys.argv[1])))
    print(os.getpid(), executor, other.pid, flush=True)
time.sleep(600)
"""
"""A stand-in for SkyPilot's server: one child holds the port of the queue, and one has a title instead of an
environment. The other one is in its group, as for a server in a script, and lacks the server's variable.
"""
pytest.importorskip("setproctitle")

Start = Callable[..., tuple[subprocess.Popen[str], int, int, int]]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def one(port: int, **variables: str) -> tuple[subprocess.Popen[str], int, int, int]:
        server = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(port), "sky.server.server"],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=os.environ | (variables or {OF_SERVER: "true"}),
        )
        started.append(server)
        assert server.stdout is not None
        child, executor, other = map(int, server.stdout.readline().split())
        return server, child, executor, other

    yield one
    for each in started:
        for process in every_process():
            if _group_of(process) == each.pid:
                process.kill()
        each.wait(30)
        if each.stdout is not None:
            each.stdout.close()


def _group_of(process: psutil.Process) -> int:
    try:
        return os.getpgid(process.pid)
    except OSError:
        return 0


def _ports() -> tuple[str, int]:
    """A server's port whose queue's port is free, and that port."""
    for port in range(47000, 48000):
        try:
            socket.create_server(("127.0.0.1", queue_port(str(port)))).close()
        except OSError:
            continue
        return str(port), queue_port(str(port))
    raise AssertionError("no port is free")


def test_the_ports_are_skypilots_own(monkeypatch: pytest.MonkeyPatch) -> None:
    mp_queue = pytest.importorskip("sky.server.requests.queues.mp_queue")
    for port in ("46580", "46581", "51250", "65000"):
        monkeypatch.setenv("SKYPILOT_API_SERVER_LOCAL_PORT", port)
        assert queue_port(port) == mp_queue.get_queue_manager_port()


def test_what_a_killed_server_left_is_ended_and_the_port_is_free(start: Start) -> None:
    port, queue = _ports()
    server, child, executor, other = start(queue)
    assert OF_SERVER not in psutil.Process(executor).environ()
    assert not end_leftovers(port), "the server runs"
    server.send_signal(signal.SIGKILL)
    server.wait(30)
    assert end_leftovers(port)
    assert psutil.pid_exists(other), "the dead server's variable is not set"
    for each in (child, executor):
        assert not psutil.pid_exists(each) or psutil.Process(each).status() == psutil.STATUS_ZOMBIE
    socket.create_server(("127.0.0.1", queue)).close()


def test_a_follower_that_gets_no_answer_ends_them(monkeypatch: pytest.MonkeyPatch) -> None:
    answers, ended = iter([ConnectionError("refused"), [["a job"]]]), list[str]()

    def get(_: object) -> object:
        found = next(answers)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setenv("SKYPILOT_API_SERVER_LOCAL_PORT", "47001")
    monkeypatch.setattr(job_state, "end_leftovers", ended.append)
    monkeypatch.setattr(job_state.JobState, "now", lambda self, _: self.sky.get(None)[0][0])
    state = job_state.JobState(SimpleNamespace(get=get), lambda _: None, lambda _: None, lambda _: None)
    assert state.record(1) == "a job"
    assert ended == ["47001"]


def test_other_programs_on_that_port_are_left_alone(start: Start) -> None:
    port, queue = _ports()
    server, child, _, _ = start(queue, SOMETHING_ELSE="yes")
    server.send_signal(signal.SIGKILL)
    server.wait(30)
    assert not end_leftovers(port)
    assert psutil.pid_exists(child)
