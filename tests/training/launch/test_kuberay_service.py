"""A service on KubeRay (`trainfleet serve --on kuberay`) and the training of its model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml

from tests.training.launch.kuberay_launches import run_spec
from trainfleet.training.launch.kuberay import service
from trainfleet.training.launch.kuberay.manifest import disruption_budget, ray_service
from trainfleet.training.launch.kuberay.options import KubeRayOptions
from trainfleet.training.launch.kuberay.pods import head_pod, worker_pod
from trainfleet.training.launch.remote.ray_job import SERVE_PORT
from trainfleet.training.recipe.load import dump, load_recipe


def test_a_worker_of_a_service_is_ready_when_its_proxy_answers() -> None:
    run = replace(run_spec(), serving=True)
    probe = worker_pod(run)["spec"]["containers"][0]["readinessProbe"]
    assert probe["httpGet"] == {"path": "/-/healthz", "port": SERVE_PORT}
    for other in (head_pod(run), worker_pod(run_spec())):
        assert other["spec"]["containers"][0]["readinessProbe"]["httpGet"]["path"] == "/api/healthz"


def test_the_budget_and_the_spread_of_a_run_do_not_count_a_service_of_its_model() -> None:
    run, served = run_spec(), replace(run_spec(), serving=True)
    selected = disruption_budget(run)["spec"]["selector"]["matchLabels"]
    spread = worker_pod(run)["spec"]["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"]
    cluster = ray_service(served, "model", source="s3://a/b", which="best", limits={})["spec"][
        "rayClusterConfig"
    ]
    for template in (cluster["headGroupSpec"]["template"], cluster["workerGroupSpecs"][0]["template"]):
        labels = template["metadata"]["labels"] | {"ray.io/node-type": "worker"}
        assert not selected.items() <= labels.items()
        assert not spread.items() <= labels.items()
    assert selected.items() <= worker_pod(run)["metadata"]["labels"].items()


class Stored:
    """A store with the recipe of a run."""

    def __init__(self, text: str) -> None:
        self.text = text

    def read(self, name: str) -> str:
        assert name == "recipe.yaml"
        return self.text


def test_a_service_needs_nothing_that_only_the_training_needed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = (
        "limits.max_usd=5",
        "notifications.webhook=RUN_HOOK",
        "data_loading.engine=ray",
        "data_loading.workers=4",
    )
    requests = []
    for overrides in ((), changes):
        text = dump(load_recipe("lm-tiny", overrides))
        monkeypatch.setattr(service, "open_store", lambda _, text=text: Stored(text))
        cluster = KubeRayOptions(context="fake", namespace="training", image="me/it:1")
        options: dict[str, Any] = {"which": "best", "limits": {}, "precision": None, "name": "model"}
        service.serve_on_kuberay(
            service.ServiceOptions("s3://a/lm-tiny", replicas=1, stack=None, cluster=cluster, **options),
            show=True,
            as_json=False,
        )
        (found,) = [
            each for each in yaml.safe_load_all(capsys.readouterr().out) if each["kind"] == "RayService"
        ]
        (group,) = found["spec"]["rayClusterConfig"]["workerGroupSpecs"]
        requests.append(group["template"]["spec"]["containers"][0]["resources"])
    assert requests[0] == requests[1]
