"""A service on KubeRay (`trainfleet serve --on kuberay`) and the training of its model."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.training.launch.kuberay_launches import run_spec
from tests.training.user_code import clean_imports, write_workload
from trainfleet.errors import InputError
from trainfleet.training.launch.code import packed
from trainfleet.training.launch.kuberay import service
from trainfleet.training.launch.kuberay.manifest import disruption_budget, ray_service
from trainfleet.training.launch.kuberay.options import KubeRayOptions
from trainfleet.training.launch.kuberay.pods import head_pod, worker_pod
from trainfleet.training.launch.remote.ray_job import SERVE_PORT
from trainfleet.training.recipe.load import dump, load_recipe
from trainfleet.training.runtime import code_archive
from trainfleet.training.stores import Store, open_store

__all__ = ["clean_imports"]


def test_a_worker_of_a_service_is_ready_when_its_proxy_answers() -> None:
    run = replace(run_spec(), serving=True)
    probe = worker_pod(run)["spec"]["containers"][0]["readinessProbe"]
    assert probe["httpGet"] == {"path": "/-/healthz", "port": SERVE_PORT}
    for other in (head_pod(run), worker_pod(run_spec())):
        assert other["spec"]["containers"][0]["readinessProbe"]["httpGet"]["path"] == "/api/healthz"


def test_the_budget_and_the_spread_of_a_run_do_not_count_a_service_of_its_model() -> None:
    run, of_service = run_spec(), replace(run_spec(), serving=True)
    selected = disruption_budget(run)["spec"]["selector"]["matchLabels"]
    spread = worker_pod(run)["spec"]["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"]
    cluster = ray_service(of_service, "model", source="s3://a/b", which="best", limits={})["spec"][
        "rayClusterConfig"
    ]
    for template in (cluster["headGroupSpec"]["template"], cluster["workerGroupSpecs"][0]["template"]):
        labels = template["metadata"]["labels"] | {"ray.io/node-type": "worker"}
        assert not selected.items() <= labels.items()
        assert not spread.items() <= labels.items()
    assert selected.items() <= worker_pod(run)["metadata"]["labels"].items()


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with the objects of s3://a."""

    def opened(url: str) -> Store:
        return open_store(url.replace("s3://a", str(tmp_path / "bucket")))

    monkeypatch.setattr(service, "open_store", opened)
    monkeypatch.setattr(code_archive, "open_store", opened)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / "bucket"


def served(run: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The RayService for a run in the bucket."""
    cluster = KubeRayOptions(context="fake", namespace="training", image="me/it:1")
    options: dict[str, Any] = {"which": "best", "limits": {}, "precision": None, "name": "model"}
    service.serve_on_kuberay(
        service.ServiceOptions(f"s3://a/{run}", replicas=1, stack=None, cluster=cluster, **options),
        show=True,
        as_json=False,
    )
    (found,) = [each for each in yaml.safe_load_all(capsys.readouterr().out) if each["kind"] == "RayService"]
    return dict(found)


def test_a_service_needs_nothing_that_only_the_training_needed(
    bucket: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (bucket / "lm-tiny").mkdir(parents=True)
    changes = (
        "limits.max_usd=5",
        "notifications.webhook=RUN_HOOK",
        "data_loading.engine=ray",
        "data_loading.workers=4",
    )
    requests = []
    for overrides in ((), changes):
        (bucket / "lm-tiny" / "recipe.yaml").write_text(dump(load_recipe("lm-tiny", overrides)))
        (group,) = served("lm-tiny", capsys)["spec"]["rayClusterConfig"]["workerGroupSpecs"]
        requests.append(group["template"]["spec"]["containers"][0]["resources"])
    assert requests[0] == requests[1]


@pytest.mark.usefixtures("clean_imports")
def test_a_service_gets_the_code_that_the_run_used_last(
    bucket: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = bucket / "spirals"
    recipe = write_workload(tmp_path / "exp")
    code = packed(recipe.parent, str(run))
    code.upload()
    (run / "recipe.yaml").write_text(recipe.read_text())
    (run / "run.json").write_text(json.dumps({"starts": [{"code": "0" * 64}, {"code": code.digest}]}))
    (application,) = yaml.safe_load(served("spirals", capsys)["spec"]["serveConfigV2"])["applications"]
    assert application["args"]["code"] == f"s3://a/spirals/code/{code.digest}.tar.gz"


@pytest.mark.usefixtures("clean_imports")
def test_a_service_of_a_workload_that_is_not_found_is_rejected(
    bucket: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = write_workload(tmp_path / "exp")
    (bucket / "spirals").mkdir(parents=True)
    (bucket / "spirals" / "recipe.yaml").write_text(recipe.read_text())
    with pytest.raises(InputError, match="the run's workload is not found") as caught:
        served("spirals", capsys)
    assert "workload.name: `spirals:Spirals` cannot be imported" in str(caught.value)


def test_the_address_is_reported_with_the_namespace_that_reaches_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    service._report("model", "training", 2, as_json=False)
    first, address, forward, *_ = capsys.readouterr().out.splitlines()
    assert first == "serving training/model with 2 replicas"
    assert address == "from pods of the namespace training  http://model-serve-svc.training:8000"
    assert forward == "from here  kubectl -n training port-forward svc/model-serve-svc 8000"
