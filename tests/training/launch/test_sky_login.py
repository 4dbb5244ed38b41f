"""SkyPilot's contexts log in by `trainfleet sky token`: kubectl and Python's client call it, a token is kept
until shortly before its end, and a login that ends is reported with the command that renews it.
"""

from __future__ import annotations

import json
import resource
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.infra.kubernetes.api_server import ApiServer, api_server
from tests.training.launch.saved_platforms import outputs
from trainfleet.errors import TrainfleetError
from trainfleet.training.launch.remote.kubernetes import ApiError, connect
from trainfleet.training.launch.sky.credential_plugin import PREFIX, _keep
from trainfleet.training.launch.sky.kubeconfig import read_kubeconfig
from trainfleet.training.launch.sky.login import credential
from trainfleet.training.launch.sky.pods import context_problem

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not on the path"),
]
Trainfleet = Callable[..., subprocess.CompletedProcess[str]]
CONTEXT = "trainfleet-dev-us-east-2"
PODS = "/api/v1/namespaces/training/pods"
REVIEW = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


@dataclass(frozen=True)
class Place:
    """A platform whose contract logs in with the token of `server`, as a cloud's login command would."""

    server: ApiServer
    folder: Path
    trainfleet: Trainfleet

    @property
    def kubeconfig(self) -> Path:
        return self.folder / ".kube" / "config"

    @property
    def env(self) -> dict[str, str]:
        return {"HOME": str(self.folder), "KUBECONFIG": str(self.kubeconfig), "SKYPILOT_GLOBAL_CONFIG": ""}

    def setup(self, *flags: str) -> subprocess.CompletedProcess[str]:
        stack = str(self.folder / "dev.json")
        return self.trainfleet("sky", "setup", "--stack", stack, "--yes", *flags, **self.env)

    def log_in(self, token: str) -> None:
        """Change what the cloud's login command answers."""
        status = {"token": token}
        version = "client.authentication.k8s.io/v1"
        answer = json.dumps({"apiVersion": version, "kind": "ExecCredential", "status": status})
        (self.folder / "answer.json").write_text(answer)

    def pods(self) -> subprocess.CompletedProcess[str]:
        import os

        call = ["kubectl", "--context", CONTEXT, "get", "--raw", PODS]
        env = {**os.environ, **self.env}
        return subprocess.run(call, capture_output=True, text=True, check=False, env=env)

    def token(self, hours: float = 8, *, fresh: bool = False) -> str:
        document = read_kubeconfig(self.kubeconfig)
        return credential(document, CONTEXT, "launcher", hours, self.env, fresh=fresh).value


@pytest.fixture
def place(tmp_path: Path, trainfleet: Trainfleet, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    with api_server(tmp_path, "cloud-login") as server:
        server.objects[PODS] = {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": []}
        cluster = {"server": server.url, "certificate-authority": str(server.certificate)}
        login: dict[str, Any] = {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": "cat",
            "args": [str(tmp_path / "answer.json")],
            "interactiveMode": "Never",
        }
        access = {
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"exec": login}}],
        }
        document = outputs("aws-dev", kubeconfig=json.dumps(access)).model_dump()
        (tmp_path / "dev.json").write_text(json.dumps({"platform": document}))
        found = Place(server, tmp_path, trainfleet)
        found.log_in("cloud-login")
        for name, value in found.env.items():
            monkeypatch.setenv(name, value)
        # The package reads KUBECONFIG when it is imported.
        default = "kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION"
        monkeypatch.setattr(default, str(found.kubeconfig))
        yield found


def test_kubectl_and_the_python_client_get_a_token_by_themselves(place: Place) -> None:
    done = place.setup()
    assert done.returncode == 0, done.stderr
    assert f"{CONTEXT}: a token that ends at " in done.stdout
    assert place.server.granted[0] not in place.kubeconfig.read_text()
    assert '"items":[]' in place.pods().stdout.replace(" ", ""), place.pods().stderr
    assert connect(CONTEXT, "", "", "training").items("Pod") == []
    assert len(place.server.granted) == 1, "the token of the setup is used again"
    kept = list((place.folder / ".kube" / "cache" / "trainfleet").iterdir())
    assert {stat.S_IMODE(each.stat().st_mode) for each in kept} == {0o600}


def test_kubectl_uses_a_kept_token_without_the_command_and_only_for_this_kubeconfig(place: Place) -> None:
    assert place.setup().returncode == 0
    assert place.pods().returncode == 0
    folder = place.folder / ".kube" / "cache" / "trainfleet"
    (kept,) = folder.glob(f"{PREFIX}*")
    for each in set(folder.iterdir()) - {kept}:
        each.unlink()  # what the command would use
    place.log_in("ended")
    assert place.pods().returncode == 0
    place.kubeconfig.write_text(place.kubeconfig.read_text() + "# another file\n")
    assert "log in to the cloud" in place.pods().stderr
    place.log_in("cloud-login")
    document = json.loads(kept.read_text())
    for each in set(folder.iterdir()):
        each.write_text(json.dumps({**document, "until": "2026-01-01T00:00:00+00:00"}))
    assert place.pods().returncode == 0
    assert len(place.server.granted) == 2, "a token that is about to end is not used"


def test_a_token_that_cannot_be_kept_leaves_no_file(tmp_path: Path) -> None:
    end = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    credential = json.dumps({"status": {"token": "granted", "expirationTimestamp": end}})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))  # a full disk
    try:
        _keep(tmp_path / "cache" / "kept.json", credential)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_setup_without_a_valid_cloud_login_writes_nothing(place: Place) -> None:
    place.log_in("ended")
    done = place.setup()
    assert done.returncode == 1
    assert "nothing was written" in done.stderr
    assert "log in to the cloud" in done.stderr
    assert not place.kubeconfig.exists()


def test_a_token_is_renewed_shortly_before_its_end_and_at_half_of_a_short_one(place: Place) -> None:
    assert place.setup().returncode == 0
    assert place.token() == place.token() == "granted.0.token"
    place.server.lasts = timedelta(minutes=12)
    first = place.token(fresh=True)
    assert place.token() == first, "twelve minutes are left, of twelve"
    (kept,) = (place.folder / ".kube" / "cache" / "trainfleet").iterdir()
    document = json.loads(kept.read_text())
    kept.write_text(json.dumps({**document, "since": "2026-01-01T00:00:00+00:00"}))
    assert place.token() != first, "twelve minutes are left, of months"


@pytest.mark.deep
def test_a_token_that_is_revoked_is_reported_with_the_command_that_renews_it(place: Place) -> None:
    assert place.setup().returncode == 0
    place.server.granted.clear()
    assert "`trainfleet sky setup` gets a new one" in str(context_problem(CONTEXT, "training"))
    with pytest.raises(ApiError, match=r"has ended or is not valid.*trainfleet sky setup"):
        connect(CONTEXT, "", "", "training").items("Pod")
    done = place.setup()
    assert done.returncode == 0, done.stderr
    assert place.pods().returncode == 0


def test_a_cloud_login_that_has_ended_is_named_once_the_token_has(place: Place) -> None:
    assert place.setup().returncode == 0
    shutil.rmtree(place.folder / ".kube" / "cache")
    place.log_in("ended")
    problem = str(context_problem(CONTEXT, "training"))
    assert "its login grants no token" in problem
    assert "log in to the cloud" in problem


def test_an_undone_setup_leaves_no_token(place: Place) -> None:
    assert place.setup().returncode == 0
    done = place.trainfleet("sky", "setup", "--undo", "--yes", **place.env)
    assert done.returncode == 0, done.stderr
    assert not (place.folder / ".kube" / "cache" / "trainfleet").exists()


def test_hours_without_a_token_to_request_are_rejected(place: Place) -> None:
    (place.folder / "token").write_text("a.b.c")
    done = place.setup("--hours", "2", "--token-file", f"dev={place.folder / 'token'}")
    assert done.returncode == 2
    assert "--hours: has no effect" in done.stderr


def test_a_context_without_its_login_says_how_to_write_it(place: Place) -> None:
    assert place.setup().returncode == 0
    document = yaml.safe_load(place.kubeconfig.read_text())
    document["users"] = [each for each in document["users"] if "login" not in each["name"]]
    place.kubeconfig.write_text(yaml.safe_dump(document))
    with pytest.raises(TrainfleetError, match="trainfleet sky setup"):
        place.token()
