"""A login that ends while a run is followed, and before a command: it is renewed through the kubeconfig's login
command, or the message says which login to run. The run is never touched. The cluster is a loopback server.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import urllib3
import yaml

from tests.training.launch.fake_api import JOB, FakeApi
from tests.training.launch.kuberay_follower import LOG, follower, running, status
from trainfleet.errors import TrainfleetError
from trainfleet.kubernetes_login import renewal
from trainfleet.training.launch.kuberay import follow
from trainfleet.training.launch.remote import kubernetes
from trainfleet.training.launch.remote.follower import exit_code
from trainfleet.training.launch.remote.kubernetes import connect

Trainfleet = Callable[..., subprocess.CompletedProcess[str]]
SCRIPT = """#!/bin/sh
test -s "$(dirname "$0")/token" || { echo "the SSO session has expired" >&2; exit 1; }
cat "$(dirname "$0")/token"
"""


class Login:
    """The user's kubeconfig with a login command `aws`, and what that answers."""

    def __init__(self, api: FakeApi, folder: Path) -> None:
        self.api, self.folder, self.file = api, folder, folder / "kubeconfig"
        (folder / "aws").write_text(SCRIPT)
        (folder / "aws").chmod(0o755)
        self.user({"exec": self.command()})
        self.grants("first")

    def command(self) -> dict[str, Any]:
        kind = "client.authentication.k8s.io/v1"
        return {"apiVersion": kind, "command": str(self.folder / "aws"), "interactiveMode": "Never"}

    def user(self, user: dict[str, Any]) -> None:
        """Write the user of the kubeconfig."""
        document = yaml.safe_load(self.api.kubeconfig(self.file).read_text())
        document["users"][0]["user"] = user
        self.file.write_text(yaml.safe_dump(document))

    def grants(self, token: str | None, until: datetime | None = None) -> None:
        """What the command answers from now on; None: it fails."""
        end = {} if until is None else {"expirationTimestamp": f"{until:%Y-%m-%dT%H:%M:%SZ}"}
        kind = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential"}
        answer = "" if token is None else json.dumps({**kind, "status": {"token": token, **end}})
        (self.folder / "token").write_text(answer)


@pytest.fixture
def login(api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Login:
    found = Login(api, tmp_path)
    api.tokens = {"first"}
    monkeypatch.setattr(kubernetes, "RETRY_FOR_S", 0.3)
    monkeypatch.setattr(kubernetes.retry_unreachable, "__kwdefaults__", {"retry_for_s": 0.3, "wait_s": 0.05})
    return found


def ends_after(api: FakeApi, polls: int, then: Callable[[], Any]) -> None:
    """The run is executed. After some polls of it, the token ends; it ends itself some polls later."""
    seen = []

    def act(server: FakeApi) -> None:
        if JOB not in server.objects:
            return
        if server.asked[-1] == ("GET", JOB):
            seen.append(1)
        if len(seen) == polls:
            then()
        if len(seen) < polls + 3:
            status(server, jobDeploymentStatus="Running", rayClusterName="rc")
        else:
            running(server, LOG)

    api.on_request = act


@pytest.mark.parametrize("expired", [False, True], ids=["revoked", "at its end"])
def test_a_token_that_ends_midway_is_renewed_by_the_login_command(
    expired: bool, api: FakeApi, login: Login, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In the past: the client then asks the command before each call, as at the end of a real token.
    login.grants("first", datetime.now(UTC) - timedelta(hours=1) if expired else None)

    def end() -> None:
        api.tokens = {"second"}
        login.grants("second")

    ends_after(api, 2, end)
    found, output = follower(monkeypatch)
    assert exit_code(found.run, output) == 0
    assert output.of("result")
    assert "login" not in output.notes()


def test_a_kubeconfig_that_is_written_again_is_read_again(
    api: FakeApi, login: Login, monkeypatch: pytest.MonkeyPatch
) -> None:
    login.user({"token": "first"})

    def end() -> None:
        api.tokens = {"second"}
        login.user({"token": "second"})

    ends_after(api, 2, end)
    found, output = follower(monkeypatch)
    assert exit_code(found.run, output) == 0


def test_a_user_who_logs_in_again_in_time_continues_to_follow(
    api: FakeApi, login: Login, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The note that the login has ended is the sign: the user then logs in."""

    def end() -> None:
        api.tokens = {"second"}
        login.grants(None)

    ends_after(api, 2, end)
    found, output = follower(monkeypatch)
    send = output.send

    def see(kind: str, **fields: Any) -> None:
        send(kind, **fields)
        if "aws sso login" in str(fields.get("text")):
            login.grants("second")

    monkeypatch.setattr(output, "send", see)
    monkeypatch.setattr(kubernetes.retry_unreachable, "__kwdefaults__", {"retry_for_s": 60.0, "wait_s": 0.05})
    assert exit_code(found.run, output) == 0
    assert "the SSO session has expired" in output.notes()
    assert "the cluster answers again" in output.notes()


@pytest.mark.parametrize("static", [False, True])
def test_a_login_that_cannot_be_renewed_ends_the_follower_and_not_the_run(
    static: bool, api: FakeApi, login: Login, monkeypatch: pytest.MonkeyPatch
) -> None:
    if static:
        login.user({"token": "first"})

    def end() -> None:
        api.tokens = set()
        login.grants(None)

    ends_after(api, 2, end)
    found, _ = follower(monkeypatch)
    with pytest.raises(TrainfleetError, match="your login to the cluster has ended") as raised:
        found.run()
    text = str(raised.value)
    assert ("log in to the cluster again" if static else "aws sso login") in text
    assert static or "the SSO session has expired" in text
    assert "`trainfleet runs attach` follows it again" in text
    assert JOB in api.objects
    assert not [path for method, path in api.asked if method == "DELETE"]


def test_a_stop_without_a_login_says_that_the_run_is_still_there(
    api: FakeApi, login: Login, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRAINFLEET_STOP_FILE", str(tmp_path / "stop"))

    def end() -> None:
        api.tokens = set()
        login.grants(None)
        (tmp_path / "stop").touch()

    ends_after(api, 2, end)
    found, output = follower(monkeypatch)
    with pytest.raises((follow.Stopped, TrainfleetError)):
        found.run()
    assert JOB in api.objects
    shown = [*(each["text"] for each in output.of("warning")), output.notes()]
    assert any("aws sso login" in each for each in shown)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "command",
    [
        ("runs", "list"),
        ("runs", "logs", "lm-tiny"),
        ("runs", "stop", "lm-tiny"),
        ("runs", "attach", "lm-tiny"),
    ],
    ids=lambda command: command[1],
)
def test_commands_name_the_login_to_run_and_touch_nothing(
    command: tuple[str, ...], api: FakeApi, login: Login, trainfleet: Trainfleet, tmp_path: Path
) -> None:
    api.objects[JOB] = {
        "metadata": {"name": "tf-lm-tiny", "labels": {"trainfleet.io/run": "lm-tiny"}},
        "status": {"jobDeploymentStatus": "Running"},
    }
    api.tokens = {"second"}  # of the command's token
    done = trainfleet(*command, "--context", "fake", KUBECONFIG=str(login.file))
    assert done.returncode == 2, done.stdout
    message = " ".join(done.stderr.split())
    assert "the cluster rejects your login" in message
    assert "aws sso login" in message
    assert JOB in api.objects
    assert not [path for method, path in api.asked if method == "DELETE"]


@pytest.mark.parametrize(
    ("user", "command", "expected"),
    [
        ("me", "/usr/bin/aws", "aws sso login"),
        ("me", "gke-gcloud-auth-plugin", "gcloud auth login"),
        ("me", "kubelogin", "az login"),
        ("me", "corporate-login", "log in to the cluster again"),
        ("another", "aws", "log in to the cluster again"),
        ("trainfleet-launcher", "aws", "write its kubeconfig again with trainfleet kubeconfig"),
    ],
)
def test_the_login_to_run_is_that_of_the_users_entry(
    user: str, command: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [tmp_path / "one", tmp_path / "two"]
    files[0].write_text("users: []")
    files[1].write_text(yaml.safe_dump({"users": [{"name": "me", "user": {"exec": {"command": command}}}]}))
    monkeypatch.setenv("KUBECONFIG", ":".join(map(str, files)))
    assert renewal(user) == expected


def test_a_new_login_that_is_rejected_too_is_not_asked_for_ever(api: FakeApi, login: Login) -> None:
    cluster = connect("fake", "", "", "training")
    api.tokens = set()
    login.grants("wrong")
    with pytest.raises(kubernetes.ApiError, match="has ended or is not valid: aws sso login"):
        cluster.get("RayJob", "tf-lm-tiny")


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_cluster_that_cannot_be_reached_is_named_once(scheme: str) -> None:
    with pytest.raises(urllib3.exceptions.NewConnectionError) as raised:
        urllib3.PoolManager().request("GET", f"{scheme}://127.0.0.1:9", retries=False)
    assert kubernetes._short(raised.value) == (
        "Failed to establish a new connection: [Errno 111] Connection refused"
    )
