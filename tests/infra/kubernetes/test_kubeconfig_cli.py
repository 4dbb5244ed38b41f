"""`trainfleet kubeconfig`: a file with a token for its owner, from a file or fetched over TLS, and
what it refuses.
"""

from __future__ import annotations

import base64
import json
import re
import stat
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.infra.kubernetes.api_server import ApiServer, api_server
from tests.infra.test_contract import PLATFORM
from trainfleet.errors import InputError, MissingToolError, TrainfleetError
from trainfleet.infra.cli.kubeconfig import USER, with_token
from trainfleet.infra.kubernetes.names import LAUNCHER_TOKEN
from trainfleet.infra.outputs.contract import load_outputs
from trainfleet.infra.outputs.launcher_token import Login, request_token, secret_token

Trainfleet = Callable[..., subprocess.CompletedProcess[str]]
TOKEN = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJsYXVuY2hlciJ9.c2lnbmVk"
SECRET = f"/api/v1/namespaces/training/secrets/{LAUNCHER_TOKEN}"
CLUSTER = {"server": "https://prod.example.com", "certificate-authority-data": "Q0E="}


def exec_kubeconfig(cluster: dict[str, str]) -> str:
    """A kubeconfig as a cloud writes it: with a command that makes a token."""
    login = {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": "aws",
            "args": ["eks", "get-token"],
        }
    }
    return json.dumps(
        {
            "clusters": [{"name": "prod", "cluster": cluster}],
            "users": [{"name": "prod", "user": login}],
            "contexts": [],
        }
    )


@pytest.fixture
def platform(tmp_path: Path) -> Path:
    """A platform's outputs in a file."""
    path = tmp_path / "platform.json"
    path.write_text(json.dumps({"platform": {**PLATFORM, "kubeconfig": exec_kubeconfig(CLUSTER)}}))
    load_outputs(path)
    return path


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    return path


def test_the_file_has_the_token_no_command_and_one_reader(
    trainfleet: Trainfleet, platform: Path, token: Path, tmp_path: Path
) -> None:
    target = tmp_path / "out" / "launcher.kubeconfig"
    done = trainfleet(
        "kubeconfig",
        "--platform",
        str(platform),
        "--token-file",
        str(token),
        "--output",
        str(target),
        "--json",
    )
    assert done.returncode == 0, done.stderr
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    document = yaml.safe_load(target.read_text())
    assert document["current-context"] == PLATFORM["kube_context"]
    assert document["clusters"] == [{"name": "prod", "cluster": CLUSTER}]
    assert document["users"] == [{"name": USER, "user": {"token": TOKEN}}]
    assert document["contexts"] == [
        {"name": "prod", "context": {"cluster": "prod", "user": USER, "namespace": "training"}}
    ]
    assert json.loads(done.stdout) == {
        "output": str(target),
        "context": "prod",
        "namespace": "training",
        "user": USER,
        "expires": None,
    }
    assert TOKEN not in done.stdout + done.stderr


def test_it_is_written_again_but_never_over_another_kubeconfig(
    trainfleet: Trainfleet, platform: Path, token: Path, tmp_path: Path
) -> None:
    target = tmp_path / "config"
    call = ("kubeconfig", "--platform", str(platform), "--token-file", str(token), "--output", str(target))
    assert trainfleet(*call).returncode == 0
    assert trainfleet(*call).returncode == 0
    mine = exec_kubeconfig(CLUSTER)
    target.write_text(mine)
    refused = trainfleet(*call)
    assert refused.returncode == 2
    assert "was not written by this command" in refused.stderr
    assert target.read_text() == mine


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a service account's token"),
        ("not a token", "is not a service account's token"),
        (f"{TOKEN}\n{TOKEN}", "on one line"),
        ("a..b", "three parts"),
    ],
)
def test_an_invalid_token_is_refused_and_nothing_is_written(
    trainfleet: Trainfleet, platform: Path, tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "token").write_text(text)
    target = tmp_path / "launcher.kubeconfig"
    done = trainfleet(
        "kubeconfig",
        "--platform",
        str(platform),
        "--token-file",
        str(tmp_path / "token"),
        "--output",
        str(target),
    )
    assert (done.returncode, target.exists()) == (2, False)
    assert message in " ".join(done.stderr.split())


def test_one_way_to_the_token_must_be_named(
    trainfleet: Trainfleet, platform: Path, token: Path, tmp_path: Path
) -> None:
    common = ("kubeconfig", "--platform", str(platform), "--output", str(tmp_path / "x"))
    for more in ((), ("--token-file", str(token), "--from-cluster", "c")):
        done = trainfleet(*common, *more)
        assert done.returncode == 2
        assert "pass either --token-file or --from-cluster" in done.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("{}", "has no cluster address"),
        ("[]", "has no cluster address"),
        (
            json.dumps({"clusters": [{"cluster": {"server": "http://plain"}}]}),
            "a token is not sent to http://plain",
        ),
    ],
)
def test_a_platform_without_a_cluster_to_trust_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        with_token(text, "prod", "training", TOKEN)


def test_without_the_kubernetes_client_it_says_what_else_would_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    with pytest.raises(MissingToolError, match="--token-file"):
        request_token(Login("mine"), "training", "launcher", 8)


def test_a_login_that_grants_no_token_is_reported(tmp_path: Path) -> None:
    """Its command fails; the client alone would ask without a login."""
    document = json.loads(exec_kubeconfig({"server": "https://127.0.0.1:9"}))
    document["users"][0]["user"]["exec"] |= {"command": "false", "args": None, "interactiveMode": "Never"}
    document["contexts"] = [{"name": "prod", "context": {"cluster": "prod", "user": "prod"}}]
    with pytest.raises(TrainfleetError, match="its login grants no token"):
        request_token(Login("prod", document), "training", "launcher", 8)


def test_an_unknown_context_and_a_cluster_that_does_not_answer_are_named(tmp_path: Path) -> None:
    document = json.loads(exec_kubeconfig({"server": "https://127.0.0.1:9"}))
    document["users"][0]["user"] = {"token": TOKEN}
    document["contexts"] = [{"name": "prod", "context": {"cluster": "prod", "user": "prod"}}]
    for context, message in (("other", "other"), ("prod", "prod: does not answer")):
        with pytest.raises(TrainfleetError, match=message):
            request_token(Login(context, document), "training", "launcher", 8)


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An API server, and the context `mine` that reaches it as somebody who may read secrets."""
    with api_server(tmp_path, "admin-token") as server:
        cluster = {"server": server.url, "certificate-authority": str(server.certificate)}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [
                {"name": "admin", "user": {"token": "admin-token"}},
                {"name": "nobody", "user": {"token": "wrong"}},
            ],
            "contexts": [
                {"name": "mine", "context": {"cluster": "c", "user": "admin"}},
                {"name": "nobody", "context": {"cluster": "c", "user": "nobody"}},
            ],
        }
        (tmp_path / "config").write_text(json.dumps(document))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
        yield server


def secret(**data: str) -> dict[str, Any]:
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": LAUNCHER_TOKEN, "namespace": "training"},
        "data": encoded,
    }


@pytest.mark.parametrize(("flags", "most", "hours"), [((), 24, 8), (("--hours", "2"), 24, 2), ((), 1, 1)])
def test_a_token_is_requested_by_the_callers_own_login_and_says_when_it_ends(
    served: ApiServer,
    trainfleet: Trainfleet,
    platform: Path,
    tmp_path: Path,
    flags: tuple[str, ...],
    most: int,
    hours: int,
) -> None:
    served.lasts = timedelta(hours=most)
    target = tmp_path / "launcher.kubeconfig"
    call = ("kubeconfig", "--platform", str(platform), "--from-cluster", "mine", "--output", str(target))
    done = trainfleet(*call, *flags, KUBECONFIG=str(tmp_path / "config"))
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load(target.read_text())["users"][0]["user"] == {"token": served.granted[0]}
    assert "POST /api/v1/namespaces/training/serviceaccounts/launcher/token" in " ".join(served.asked)
    assert served.granted[0] not in done.stdout + done.stderr
    message = " ".join(done.stderr.split())
    assert "To renew it, run this command again" in message
    reported = re.search(r"that ends at (\S+ \S+) UTC", message)
    assert reported
    left = datetime.fromisoformat(f"{reported[1]}+00:00") - datetime.now(UTC)
    assert abs(left - timedelta(hours=hours)) < timedelta(minutes=10)


def test_the_token_that_never_ends_is_read_where_the_platform_has_one(
    served: ApiServer, trainfleet: Trainfleet, platform: Path, tmp_path: Path
) -> None:
    served.objects[SECRET] = secret(token=TOKEN, namespace="training")
    target = tmp_path / "launcher.kubeconfig"
    call = ("kubeconfig", "--platform", str(platform), "--from-cluster", "mine", "--output", str(target))
    done = trainfleet(*call, "--long-lived", KUBECONFIG=str(tmp_path / "config"))
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load(target.read_text())["users"][0]["user"] == {"token": TOKEN}
    assert "never ends" in " ".join(done.stderr.split())
    assert TOKEN not in done.stdout + done.stderr
    without = {**PLATFORM, "launcher_token_secret": "", "kubeconfig": exec_kubeconfig(CLUSTER)}
    platform.write_text(json.dumps({"platform": without}))
    refused = trainfleet(*call, "--long-lived", KUBECONFIG=str(tmp_path / "config"))
    assert refused.returncode == 2
    assert "layer.launcher_token: true" in refused.stderr


def test_options_that_exclude_each_other_are_rejected(
    trainfleet: Trainfleet, platform: Path, token: Path, tmp_path: Path
) -> None:
    call = ("kubeconfig", "--platform", str(platform), "--output", str(tmp_path / "x"))
    done = trainfleet(*call, "--token-file", str(token), "--hours", "2", "--long-lived")
    assert done.returncode == 2
    assert "--hours: has no effect with --token-file" in done.stderr
    assert "--long-lived: has no effect with --token-file" in done.stderr


@pytest.mark.parametrize(
    ("context", "message"),
    [("mine", "no such object|not found|NotFound"), ("nobody", "rejects the login")],
)
def test_a_cluster_that_gives_no_token_is_named_with_its_answer(
    served: ApiServer, context: str, message: str
) -> None:
    with pytest.raises(TrainfleetError, match=message) as raised:
        secret_token(Login(context), "training", LAUNCHER_TOKEN)
    assert raised.value.problems[0].where == context


def test_a_login_that_may_request_no_token_is_reported(
    served: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = request_token(Login("mine"), "training", "launcher", 8)
    document = json.loads((tmp_path / "config").read_text())
    document["users"][0]["user"] = {"token": first.value}
    (tmp_path / "config").write_text(json.dumps(document))
    with pytest.raises(TrainfleetError, match="once the stack is applied with this release"):
        request_token(Login("mine"), "training", "launcher", 8)


def test_a_secret_that_is_still_empty_is_reported(served: ApiServer) -> None:
    served.objects[SECRET] = secret()
    with pytest.raises(TrainfleetError, match="is still empty"):
        secret_token(Login("mine"), "training", LAUNCHER_TOKEN)
