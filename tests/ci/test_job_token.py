"""`trainfleet ci token`: the token of a GitHub job in a file, requested again until the end."""

from __future__ import annotations

import functools
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ci.loopback import listening
from trainfleet.ci.job_token import renew_token, write_token
from trainfleet.errors import InputError, TrainfleetError

AUDIENCE = "api://AzureADTokenExchange"


class GitHub:
    """Gives tokens with a number; `answers` come first."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers: list[bytes] = []


class Handler(http.server.BaseHTTPRequestHandler):
    def __init__(self, github: GitHub, *arguments: Any) -> None:
        self.github = github
        super().__init__(*arguments)

    def do_GET(self) -> None:
        self.github.asked.append(f"{self.headers['Authorization']} {self.path}")
        token = json.dumps({"value": f"token-{len(self.github.asked)}"}).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.github.answers.pop(0) if self.github.answers else token)

    def log_message(self, *_arguments: Any) -> None:
        """Write nothing."""


@pytest.fixture
def github(monkeypatch: pytest.MonkeyPatch) -> Iterator[GitHub]:
    found = GitHub()
    with listening(functools.partial(Handler, found)) as port:
        monkeypatch.setenv("ACTIONS_ID_TOKEN_REQUEST_URL", f"http://127.0.0.1:{port}/token?api-version=2.0")
        monkeypatch.setenv("ACTIONS_ID_TOKEN_REQUEST_TOKEN", "of-the-job")
        yield found


def test_the_token_of_the_job_is_readable_for_its_user_alone(github: GitHub, tmp_path: Path) -> None:
    file = tmp_path / "token"
    write_token(file, AUDIENCE)
    assert file.read_text() == "token-1"
    assert file.stat().st_mode & 0o777 == 0o600
    assert github.asked == [
        "Bearer of-the-job /token?api-version=2.0&audience=api%3A%2F%2FAzureADTokenExchange"
    ]


def test_it_is_written_again_after_a_failure_and_kept_during_one(
    github: GitHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, seen = tmp_path / "token", list[tuple[float | None, str]]()
    write_token(file, AUDIENCE)
    github.answers = [b"not JSON", b"{}"]

    class Passing(threading.Event):
        """Passes at once, and ends after four waits."""

        def wait(self, timeout: float | None = None) -> bool:
            seen.append((timeout, file.read_text()))
            return len(seen) > 4

    renew_token(file, AUDIENCE, 120.0, Passing())
    assert seen == [
        (120.0, "token-1"),
        (5.0, "token-1"),
        (5.0, "token-1"),
        (120.0, "token-4"),
        (120.0, "token-5"),
    ]
    assert capsys.readouterr().err.count("GitHub gives the job no token") == 2


def test_elsewhere_it_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ACTIONS_ID_TOKEN_REQUEST_URL", raising=False)
    with pytest.raises(InputError, match="id-token: write"):
        write_token(tmp_path / "token", AUDIENCE)


def test_a_service_that_does_not_answer_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACTIONS_ID_TOKEN_REQUEST_URL", "http://127.0.0.1:9/token?api-version=2.0")
    monkeypatch.setenv("ACTIONS_ID_TOKEN_REQUEST_TOKEN", "of-the-job")
    with pytest.raises(TrainfleetError, match="refused"):
        write_token(tmp_path / "token", AUDIENCE)
