"""The real server on loopback: slow clients, long requests, many connections, its port, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from tests.ui.conftest import MakeRun
from trainfleet.errors import InputError
from trainfleet.ui import server as serving
from trainfleet.ui.access import Access
from trainfleet.ui.app import Console
from trainfleet.ui.guard import Guard
from trainfleet.ui.run_store import RunStore
from trainfleet.ui.server import listen, server


class Running:
    """A server in a thread."""

    def __init__(self, console: Console | SlowPage) -> None:
        self.socket = listen(0)
        self.port = self.socket.getsockname()[1]
        self.access = Access()
        self.server = server(Guard(console.app, self.access, self.port))
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.socket]})
        self.thread.start()

    def end(self) -> None:
        """End the server, which must close all connections."""
        self.server.should_exit = True
        self.thread.join(20)
        self.socket.close()
        assert not self.thread.is_alive()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)

    def ask(self, target: str = "/static/icon.svg", headers: str = "") -> bytes:
        with self.connect() as client:
            cookie = f"Cookie: trainfleet_ui_{self.port}={self.access.session}\r\n"
            client.sendall(
                f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n{cookie}{headers}Connection: close\r\n\r\n".encode()
            )
            return received(client)


def received(client: socket.socket) -> bytes:
    """Everything until the connection ends."""
    found = b""
    with contextlib.suppress(ConnectionError):
        while data := client.recv(1 << 16):
            found += data
    return found


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short limits."""
    monkeypatch.setattr(serving, "HEAD_S", 0.5)
    monkeypatch.setattr(serving, "RESPONSE_S", 1.0)
    monkeypatch.setattr(serving, "MOST_CONNECTIONS", 8)


@pytest.fixture
def running(runs: Path, limits: None) -> Iterator[Running]:
    found = Running(Console(RunStore([str(runs)])))
    yield found
    found.end()


def test_only_this_machine_reaches_it(running: Running) -> None:
    assert running.socket.getsockname()[0] == "127.0.0.1"
    assert running.ask().startswith(b"HTTP/1.1 200")


def test_a_request_that_arrives_slowly_is_cut_off(running: Running) -> None:
    began = time.monotonic()
    with running.connect() as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        with contextlib.suppress(ConnectionError):
            while time.monotonic() - began < 15:
                client.sendall(b"X")  # a byte at a time, for as long as the server lets it
                time.sleep(0.05)
    assert 0.4 < time.monotonic() - began < 10


def test_a_connection_without_a_request_is_cut_off(running: Running) -> None:
    with running.connect() as client:
        assert received(client) == b""


def test_a_second_request_that_never_ends_is_cut_off(running: Running) -> None:
    with running.connect() as client:
        client.sendall(f"HEAD / HTTP/1.1\r\nHost: 127.0.0.1:{running.port}\r\n\r\nGET / HTT".encode())
        assert received(client).startswith(b"HTTP/1.1 401")


def test_a_client_that_does_not_read_is_cut_off(running: Running, runs: Path) -> None:
    with running.connect() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        request = f"GET /static/ui.css HTTP/1.1\r\nHost: 127.0.0.1:{running.port}\r\nCookie: trainfleet_ui_{running.port}={running.access.session}\r\n\r\n"
        with contextlib.suppress(ConnectionError):
            client.sendall(request.encode() * 500)
        deadline = time.monotonic() + 15
        while running.server.server_state.connections and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not running.server.server_state.connections


def test_many_waiting_connections_keep_nobody_out(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "HEAD_S", 60.0)
    waiting = [running.connect() for _ in range(50)]
    try:
        for each in waiting:
            each.sendall(b"GET / HTTP/1.1\r\n")
        assert running.ask().startswith(b"HTTP/1.1 200")
        assert len(running.server.server_state.connections) <= 9
        closed = 0
        for each in waiting[:30]:
            each.settimeout(5)
            closed += received(each) == b""
        assert closed == 30, "the oldest are closed, not only forgotten"
    finally:
        for each in waiting:
            each.close()


class SlowPage:
    """An application whose page takes a time."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(self.seconds)
        await PlainTextResponse("done")(scope, receive, send)


@pytest.mark.parametrize(("seconds", "answered"), [(1.2, True), (20.0, False)])
def test_a_page_may_take_longer_than_a_request_but_not_for_ever(
    limits: None, monkeypatch: pytest.MonkeyPatch, seconds: float, answered: bool
) -> None:
    monkeypatch.setattr(serving, "RESPONSE_S", 4.0)
    running = Running(SlowPage(seconds))
    try:
        assert running.ask().endswith(b"done") == answered
    finally:
        running.end()


@pytest.mark.parametrize(
    ("target", "headers"),
    [
        ("/?" + "x" * 40_000, ""),
        ("/", "X-Long: " + "x" * 40_000 + "\r\n"),
        ("/", "".join(f"X-{n}: {'x' * 60}\r\n" for n in range(800))),
    ],
    ids=["target", "header", "headers"],
)
def test_a_long_request_is_refused(running: Running, target: str, headers: str) -> None:
    answer = running.ask(target, headers)
    assert not answer.startswith(b"HTTP/1.1 2")
    assert running.ask().startswith(b"HTTP/1.1 200"), "others are still served"


def test_a_large_body_is_not_read(running: Running) -> None:
    with running.connect() as client:
        head = f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{running.port}\r\nContent-Length: 10000000000\r\n\r\n"
        client.sendall(head.encode())
        assert received(client).startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET http://evil.example/ HTTP/1.1\r\n\r\n",
        b"\r\n\r\n\0",
    ],
)
def test_a_malformed_request_ends_the_connection(running: Running, garbage: bytes) -> None:
    with running.connect() as client:
        client.sendall(garbage)
        assert b" 200 " not in received(client)
    assert running.ask().startswith(b"HTTP/1.1 200")


def test_a_port_in_use_is_an_error_or_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    with listen(0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"--port {port}: another program listens on it.*--port 0"):
            listen(port)
        monkeypatch.setattr(serving, "DEFAULT_PORT", port)
        with listen(None) as other:
            assert port < other.getsockname()[1] < port + serving.PORTS_TRIED
        monkeypatch.setattr(serving, "PORTS_TRIED", 1)
        with pytest.raises(InputError, match="no free port"):
            listen(None)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_cleanly(a_run: MakeRun, runs: Path, number: signal.Signals) -> None:
    a_run("night")
    command = [
        str(Path(sys.executable).with_name("trainfleet")),
        "ui",
        "--runs",
        str(runs),
        "--port",
        "0",
        "--json",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        document = json.loads("".join(iter(process.stdout.readline, "}\n")) + "}")
        assert document["pid"] == process.pid
        assert re.fullmatch(rf"http://127\.0\.0\.1:{document['port']}/\?token=[\w-]{{43}}", document["url"])
        with socket.create_connection(("127.0.0.1", document["port"]), timeout=20) as client:
            os.kill(process.pid, number)
            received(client)
        _, stderr = process.communicate(timeout=20)
        assert (process.returncode, stderr) == (130, "")
    finally:
        process.kill()
        process.wait()


def test_a_wrong_folder_is_an_error(tmp_path: Path) -> None:
    from trainfleet.ui.start import Shown

    with pytest.raises(InputError, match="is not a folder"):
        Shown([str(tmp_path / "none")]).places()
    with pytest.raises(InputError):
        Shown(["s3://"]).places()
    assert Shown([]).places() == ["runs"]


def test_without_the_extra_the_command_names_it() -> None:
    missing = "sys.modules |= dict.fromkeys(('jinja2', 'starlette', 'uvicorn'))"
    script = (
        f"import sys; {missing}; sys.argv = ['trainfleet', 'ui']; from trainfleet.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 3
    assert "trainfleet[ui]" in done.stderr.replace("\n", "")
