"""Whether a context can be used, and what the pods of a run wait for, from a server that answers as
Kubernetes does.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from tests.training.launch.fake_api import NAMESPACE, PODS, FakeApi
from tests.training.launch.saved_platforms import outputs
from trainfleet.errors import MissingToolError, TrainfleetError
from trainfleet.training.launch.remote.platform_objects import PlatformObject
from trainfleet.training.launch.sky.kubeconfig import fetch_token
from trainfleet.training.launch.sky.pods import ask_to_stop, context_problem, live_pods

REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
SECRET = PlatformObject("secrets", "s3-keys", "create it")


def test_a_context_that_answers_and_has_what_the_pods_need_can_be_used(api: FakeApi) -> None:
    api.objects[f"{NAMESPACE}/secrets/s3-keys"] = {}
    assert context_problem("fake", "training", [SECRET]) is None


@pytest.mark.parametrize(
    ("refusal", "why"),
    [
        ((401, "Unauthorized"), "its token is not valid or expired: `trainfleet sky setup` writes a new one"),
        ((503, "etcd is down"), "the cluster does not answer (etcd is down)"),
    ],
)
def test_the_error_of_a_context_is_explained(api: FakeApi, refusal: tuple[int, str], why: str) -> None:
    api.refusals["POST", REVIEWS] = refusal
    assert context_problem("fake", "training") == why


def test_missing_rights_contexts_and_objects_are_named(api: FakeApi) -> None:
    assert context_problem("fake", "training", [SECRET]) == (
        "secrets/s3-keys is not in namespace training (create it)"
    )
    assert "there is no context `gone` in the kubeconfig" in (context_problem("gone", "training") or "")
    api.allowed = False
    assert context_problem("fake", "training") == "its user may not create pods in training"


def test_only_pods_that_live_are_listed_and_a_context_that_is_gone_is_passed_over(api: FakeApi) -> None:
    for name, phase in (("a", "Running"), ("b", "Succeeded")):
        api.objects[f"{PODS}/{name}"] = {"metadata": {"name": name}, "status": {"phase": phase}}
    found = live_pods({"gone": "training", "fake": "training"}, "trainfleet.io/run=night")
    assert [(context, pod["metadata"]["name"]) for context, pod in found or []] == [("fake", "a")]
    assert live_pods({"gone": "training"}, "trainfleet.io/run=night") is None


def test_a_pod_that_cannot_be_asked_to_stop_does_not_count(api: FakeApi) -> None:
    api.objects[f"{PODS}/a"] = {"metadata": {"name": "a"}, "status": {"phase": "Running"}}
    assert ask_to_stop({"fake": "training"}, "trainfleet.io/run=night") == 0


def platform(api: FakeApi, tmp_path: Path, **user: Any) -> Any:
    """A platform whose contract logs in to the server."""
    import yaml

    document = yaml.safe_load(api.kubeconfig(tmp_path / "contract").read_text())
    document["users"][0]["user"].update(user)
    return outputs("aws-prod", kubeconfig=json.dumps(document))


def test_the_launchers_token_is_read_with_the_login_of_the_contract(
    api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # without kubectl
    token = base64.b64encode(b"header.payload.signature").decode()
    where = f"{NAMESPACE}/secrets/launcher-token"
    with pytest.raises(TrainfleetError, match="does not exist"):
        fetch_token(platform(api, tmp_path))
    api.objects[where] = {"data": {}}
    with pytest.raises(TrainfleetError, match="is still empty"):
        fetch_token(platform(api, tmp_path))
    api.objects[where] = {"data": {"token": token}}
    assert fetch_token(platform(api, tmp_path)) == "header.payload.signature"
    api.refusals["GET", where] = (403, "secrets is forbidden")
    with pytest.raises(TrainfleetError, match="secrets is forbidden"):
        fetch_token(platform(api, tmp_path))


def test_a_login_program_that_is_missing_is_named(api: FakeApi, tmp_path: Path) -> None:
    login = {"apiVersion": "client.authentication.k8s.io/v1", "command": "no-such-cloud-tool", "args": []}
    with pytest.raises(MissingToolError, match="its login needs `no-such-cloud-tool`"):
        fetch_token(platform(api, tmp_path, exec=login))
