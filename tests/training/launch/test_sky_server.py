"""SkyPilot's server is started before a launch so that it outlives it; it may start late; a remote server is
not started.
"""

from __future__ import annotations

import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.training.launch.saved_platforms import outputs
from trainfleet.errors import MissingToolError, TrainfleetError
from trainfleet.training.launch.sky import server
from trainfleet.training.launch.sky.probe import probe


class Healthy(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/api/health" else 404)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@pytest.fixture
def port() -> Iterator[int]:
    """The port of a server that reports that it is healthy."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Healthy) as web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        yield web.server_port
        web.shutdown()


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the programs that SkyPilot calls, the only one on the path. None of them does anything."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in server.TOOLS:
        (folder / tool).write_text("#!/bin/sh\n")
        (folder / tool).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    return folder


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that start a server. None of them is run."""
    calls: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        return subprocess.CompletedProcess(
            command, 1, "", "RuntimeError: Failed to start SkyPilot API server"
        )

    monkeypatch.setattr(subprocess, "run", run)
    return calls


def test_a_server_that_answers_is_not_started_again(
    port: int, started: list[list[str]], tmp_path: Path
) -> None:
    server.ensure_server({"SKYPILOT_API_SERVER_LOCAL_PORT": str(port)}, tmp_path / "config.yaml")
    assert started == []


def test_programs_that_the_machine_lacks_are_named_before_the_server_starts(
    installed: Path, started: list[list[str]], tmp_path: Path
) -> None:
    for tool in ("socat", "nc"):
        (installed / tool).unlink()
    with pytest.raises(MissingToolError) as raised:
        server.ensure_server({}, tmp_path / "config.yaml")
    text = str(raised.value)
    assert "`socat` is not on the path (install socat)" in text
    assert "`nc` is not on the path (install netcat-openbsd)" in text
    assert "rsync" not in text
    assert started == []


def test_sky_check_names_the_programs_that_the_machine_lacks(installed: Path, tmp_path: Path) -> None:
    (installed / "rsync").unlink()
    env = {"SKYPILOT_GLOBAL_CONFIG": str(tmp_path / "config.yaml")}
    report = probe("prod", outputs("aws-prod"), env, quick=True, progress=lambda text: None)
    assert "`rsync` is not on the path" in [each.what for each in report.problems]


def test_a_remote_server_is_not_started(started: list[list[str]], tmp_path: Path) -> None:
    server.ensure_server({"SKYPILOT_API_SERVER_ENDPOINT": "https://sky.example"}, tmp_path / "config.yaml")
    (tmp_path / "config.yaml").write_text("api_server:\n  endpoint: https://sky.example\n")
    server.ensure_server({}, tmp_path / "config.yaml")
    assert started == []


def test_a_launch_waits_for_a_server_that_starts_late(
    port: int, started: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []
    monkeypatch.setattr(server, "answers", lambda _: len(started) >= 3)
    monkeypatch.setattr(server, "end_leftovers", ended.append)
    server.ensure_server({}, tmp_path / "config.yaml")
    assert len(started) == 3
    assert ended == 3 * ["46580"], "what a killed server left would keep a port"
    assert started[0][0] == sys.executable


def test_a_server_that_does_not_start_is_reported_with_the_path_of_its_log(
    started: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "answers", lambda _: False)
    with pytest.raises(TrainfleetError, match="server does not start") as raised:
        server.ensure_server({}, tmp_path / "config.yaml")
    assert "server.log" in str(raised.value)
    assert len(started) == server.TRIES


def test_a_closed_port_does_not_count_as_a_server() -> None:
    assert not server.answers({"SKYPILOT_API_SERVER_LOCAL_PORT": "1"})
