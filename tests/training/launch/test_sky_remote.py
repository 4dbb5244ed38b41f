"""A team's SkyPilot server: this machine needs no contexts, programs or plugin, and asks the server alone."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.training.launch.fake_sky import LOG, FakeSky, driven
from tests.training.launch.saved_platforms import FOLDER, outputs
from tests.training.launch.sky_tasks import recipe
from trainfleet.errors import InputError, TrainfleetError
from trainfleet.training.launch.platform_outputs import NamedPlatform
from trainfleet.training.launch.remote.follower import Stopped
from trainfleet.training.launch.request import Request, Target
from trainfleet.training.launch.sky import contexts, follow, launcher, server
from trainfleet.training.launch.sky.config import context_name
from trainfleet.training.launch.sky.messages import SkySpec
from trainfleet.training.launch.sky.options import SkyOptions
from trainfleet.training.launch.sky.pods import Place
from trainfleet.training.launch.sky.probe import probe
from trainfleet.training.launch.sky.server_files import server_files
from trainfleet.training.launch.sky.server_pods import ServerPods

TEAM = "https://sky.example"
TASK: dict[str, Any] = {
    "name": "tf-night",
    "num_nodes": 2,
    "resources": {"infra": "k8s/near"},
    "run": "true",
}
AWS = str(FOLDER / "aws-prod.json")
Trainfleet = Callable[..., Any]


@pytest.mark.parametrize(
    ("env", "config", "endpoint"),
    [
        ({}, "", ""),
        ({"SKYPILOT_API_SERVER_ENDPOINT": f"{TEAM}/"}, "", TEAM),
        ({}, f"api_server: {{endpoint: {TEAM}}}", TEAM),
        (
            {"SKYPILOT_API_SERVER_ENDPOINT": "https://other"},
            f"api_server: {{endpoint: {TEAM}}}",
            "https://other",
        ),
        ({"SKYPILOT_API_SERVER_ENDPOINT": "http://127.0.0.1:46580"}, "", ""),
        ({"SKYPILOT_API_SERVER_ENDPOINT": "http://127.0.0.1:46581"}, "", "http://127.0.0.1:46581"),
    ],
)
def test_a_teams_server_is_where_sky_api_login_says(
    env: dict[str, str], config: str, endpoint: str, tmp_path: Path
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(config)
    assert server.remote_endpoint(env, file) == endpoint


def test_the_password_of_an_address_is_never_shown() -> None:
    assert server.shown("https://me:planted@sky.example/a") == "https://sky.example/a"
    with pytest.raises(TrainfleetError, match="cannot be reached") as raised:
        server.require_server("http://me:planted@127.0.0.1:1")
    assert "planted" not in str(raised.value)


@pytest.fixture
def team(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine that uses a team's server, and has no program, kubeconfig or configuration."""
    monkeypatch.setenv("SKYPILOT_API_SERVER_ENDPOINT", TEAM)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", "")
    for module in (launcher, contexts):
        monkeypatch.setattr(module, "context_problem", lambda *_: pytest.fail("asked the cluster itself"))
    monkeypatch.setattr(launcher, "require_server", lambda endpoint: None)


def launched(folder: Path, **options: Any) -> SkySpec:
    """What the launcher hands to the follower."""
    request = Request("lm-1b", on="sky", options=SkyOptions(**options))
    target = Target(request, (NamedPlatform(outputs("aws-prod"), Path(AWS)),), folder)
    launcher.Sky().check(recipe(), target)
    *_, spec = launcher.Sky().command(recipe(), folder / "recipe.yaml", target)
    return SkySpec.read(Path(spec))


@pytest.mark.usefixtures("team")
def test_a_launch_asks_no_cluster_and_starts_no_server(tmp_path: Path) -> None:
    spec = launched(tmp_path)
    assert spec.server == TEAM
    assert spec.checks == {}, "the check is a pod that this machine would create"
    assert contexts.usable_contexts(spec, lambda kind, **fields: None) == list(spec.contexts)


@pytest.mark.usefixtures("team")
def test_a_check_that_this_machine_cannot_make_is_rejected_by_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--workload-check always"):
        launched(tmp_path, workload_check="always")


@pytest.mark.usefixtures("team")
def test_sky_check_needs_only_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr("trainfleet.training.launch.sky.probe.require_server", asked.append)
    none = "has no Kubernetes cluster enabled"
    for clouds, expected in (({"Kubernetes": ["compute"]}, []), ({}, [none])):
        enabled = {"default": clouds}
        monkeypatch.setattr("sky.client.sdk.check", lambda infra_list, verbose: "request")
        monkeypatch.setattr("sky.client.sdk.get", lambda request, found=enabled: found)
        report = probe("prod", outputs("aws-prod"), os.environ, quick=True, progress=lambda text: None)
        assert [each.what for each in report.problems] == expected
    assert asked == [TEAM, TEAM]


class Serving(FakeSky):
    """SkyPilot whose server tells why a cluster is not up."""

    reasons: list[str | None]

    def get(self, request: str) -> Any:
        if request == "status" and self.reasons:
            return [{"init_status_reason": self.reasons.pop(0)}]
        return super().get(request)


def pods_of(sky: FakeSky, notes: list[str], **spec: Any) -> ServerPods:
    one = driven([], sky, server=TEAM, task=TASK, **spec)
    return ServerPods(sky, one.spec, notes.append, lambda document: document)


def test_what_the_pods_wait_for_is_what_the_server_says(reported: list[dict[str, Any]]) -> None:
    sky, notes = Serving(), list[str]()
    admission = "Launching (waiting for queue admission)"
    sky.reasons = [None, admission, admission, "Launching (1 pod(s) pending due to Pulling image)"]
    pods = pods_of(sky, notes)
    assert [pods.report() for _ in range(5)] == [
        Place.NOWHERE,
        Place.QUEUED,
        Place.QUEUED,
        Place.ADMITTED,
        Place.NOWHERE,
    ]
    assert notes == [
        "queued: Kueue has not admitted the run yet",
        "Launching (1 pod(s) pending due to Pulling image)",
    ]


def test_a_stop_is_a_small_task_on_every_pod_and_none_of_a_managed_job(
    reported: list[dict[str, Any]],
) -> None:
    sky = FakeSky()
    assert pods_of(sky, []).ask_to_stop() == 2
    assert sky.task == {"name": "tf-stop", "num_nodes": 2, "run": "touch /tmp/trainfleet-stop"}
    assert pods_of(FakeSky(), [], managed=True).ask_to_stop() == 0


def test_a_run_that_cannot_be_asked_is_ended(
    reported: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The server rejects the small task: SkyPilot then ends the pods, at the newest checkpoint."""
    ended = threading.Event()

    class Training(FakeSky):
        def tail_logs(self, name: str, job: int, follow: bool, output_stream: Any) -> int:
            output_stream.write(LOG[1])
            (tmp_path / "stop").touch()
            assert ended.wait(60), "the run was not ended"
            return 0

        def exec(self, task: Any, cluster_name: str) -> str:
            raise RuntimeError("ClusterNotUpError")

        def down(self, name: str) -> str:
            ended.set()
            return super().down(name)

    monkeypatch.setenv("TRAINFLEET_STOP_FILE", str(tmp_path / "stop"))
    monkeypatch.setattr(follow, "POLL_S", 0.02)
    with pytest.raises(Stopped):
        driven(reported, Training(), server=TEAM, task=TASK).run()
    assert reported[-1]["text"] == "stopped at its newest checkpoint; its pods are deleted"


def test_the_files_for_a_server_hold_the_tokens_in_one_of_them() -> None:
    platforms = [(outputs(each), "planted.token.here") for each in ("aws-prod", "gcp-prod")]
    files = server_files(platforms, managed=True)
    assert "planted" not in files["values.yaml"]
    access = yaml.safe_load(files["kubeconfig"])
    names = [context_name(each) for each, _ in platforms]
    assert [each["name"] for each in access["contexts"]] == names
    values = yaml.safe_load(files["values.yaml"])
    assert values["kubernetesCredentials"]["kubeconfigSecretName"] == "kube-credentials"
    config = yaml.safe_load(values["apiService"]["config"])
    assert config["kubernetes"]["allowed_contexts"] == names
    assert config["jobs"]["controller"]["consolidation_mode"] is True
    with pytest.raises(InputError, match="cannot log in") as raised:
        server_files([(outputs("aws-prod"), None)])
    assert len(raised.value.problems) == 1


def test_an_administrator_writes_files_and_a_user_needs_no_setup(
    trainfleet: Trainfleet, tmp_path: Path
) -> None:
    home = {"HOME": str(tmp_path), "KUBECONFIG": "", "SKYPILOT_GLOBAL_CONFIG": ""}
    (tmp_path / "token").write_text("header.payload.signature\n")
    setup = ("sky", "setup", "--stack", AWS, "--token-file", "aws-prod=token")
    shown = trainfleet(*setup, "--server", "there", "--print", cwd=tmp_path, **home)
    assert shown.returncode == 0, shown.stderr
    assert "allowed_contexts" in shown.stdout
    assert not (tmp_path / "there").exists()
    done = trainfleet(*setup, "--server", "there", "--json", cwd=tmp_path, **home)
    assert done.returncode == 0, done.stderr
    assert "sky api login" in json.loads(done.stdout)["commands"][-1]
    assert [file.stat().st_mode & 0o777 for file in (tmp_path / "there").iterdir()] == [0o600, 0o600]
    assert not (tmp_path / ".sky").exists(), "the administrator's own configuration was changed"

    user = trainfleet(*setup, "--yes", cwd=tmp_path, SKYPILOT_API_SERVER_ENDPOINT=TEAM, **home)
    assert user.returncode == 2, user.stderr
    assert f"SkyPilot uses the server at {TEAM}, which reads no file of this machine" in user.stderr
    wrong = trainfleet(*setup, "--server", "there", "--replace", "--kubeconfig", "x", cwd=tmp_path, **home)
    assert wrong.returncode == 2
    assert "--replace" in wrong.stderr
    assert "--kubeconfig" in wrong.stderr
