"""Several runs on one long-lived Ray cluster: none of them changes what the others use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.training.launch.fake_api import JOBS, MAPS, NAMESPACE, FakeApi
from tests.training.launch.kuberay_follower import PLACE, RecordedEvents, cluster_of
from tests.training.launch.kuberay_launches import launch
from trainfleet.errors import InputError
from trainfleet.training.launch.kuberay.checks import ready_for
from trainfleet.training.launch.kuberay.follow import Follower
from trainfleet.training.launch.kuberay.launcher import KubeRay
from trainfleet.training.launch.kuberay.run_spec import resolve

NAME = "shared-ray"
CLUSTER = f"/apis/ray.io/v1/namespaces/training/rayclusters/{NAME}"
BUDGETS = f"{NAMESPACE.replace('/api/v1', '/apis/policy/v1')}/poddisruptionbudgets"
ENDPOINT = {"TRAINFLEET_S3_ENDPOINT": "https://10.0.0.5:9000"}


@pytest.fixture
def certificate(tmp_path: Path) -> dict[str, str]:
    return trusting(tmp_path, "YQ==")


def trusting(folder: Path, content: str) -> dict[str, str]:
    """The variable of a launch that trusts a CA."""
    file = folder / f"{content}.crt"
    file.write_text(f"-----BEGIN CERTIFICATE-----\n{content}\n-----END CERTIFICATE-----\n")
    return {"AWS_CA_BUNDLE": str(file)}


def start(api: FakeApi, name: str, env: dict[str, str], *overrides: str, **options: Any) -> None:
    """Check and create a run on the long-lived cluster, as `trainfleet launch` does."""
    recipe, target = launch(f"name={name}", *overrides, cluster=NAME, **(PLACE | options))
    launcher, cluster = KubeRay(), cluster_of(api)
    run = resolve(recipe, target, launcher.options(target), env)
    ready_for(cluster, run)
    Follower(launcher.follower_spec(run, target), cluster, RecordedEvents())._create()  # type: ignore[arg-type]


def budgets(api: FakeApi) -> list[dict[str, Any]]:
    return [each for path, each in api.objects.items() if path.startswith(BUDGETS)]


def test_all_runs_on_a_cluster_have_one_disruption_budget_with_its_counts(api: FakeApi) -> None:
    start(api, "one", {})
    start(api, "two", {}, "scaling.workers=4")
    assert {f"{JOBS}/tf-one", f"{JOBS}/tf-two"} <= api.objects.keys()
    (budget,) = budgets(api)
    assert budget["metadata"]["name"] == NAME
    assert budget["spec"]["minAvailable"] == 2, "of three pods, whatever later runs ask for"
    (owner,) = budget["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("RayCluster", api.objects[CLUSTER]["metadata"]["uid"])


def test_a_cluster_of_an_earlier_release_gets_its_budget_with_the_next_run(api: FakeApi) -> None:
    start(api, "one", {})
    del api.objects[f"{BUDGETS}/{NAME}"]
    start(api, "two", {})
    assert [each["metadata"]["name"] for each in budgets(api)] == [NAME]


def test_a_later_run_keeps_the_certificates_of_the_cluster(api: FakeApi, certificate: dict[str, str]) -> None:
    start(api, "one", ENDPOINT | certificate)
    files = api.objects[f"{MAPS}/{NAME}"]
    start(api, "two", ENDPOINT)
    start(api, "three", ENDPOINT | certificate)
    assert api.objects[f"{MAPS}/{NAME}"] == files


def test_a_cluster_that_is_created_again_has_the_certificates_of_its_first_run(
    api: FakeApi, certificate: dict[str, str]
) -> None:
    start(api, "one", ENDPOINT | certificate)
    del api.objects[CLUSTER]
    start(api, "two", {})
    assert api.objects[f"{MAPS}/{NAME}"]["data"] == {}


@pytest.mark.parametrize(
    ("env", "where", "what", "fix"),
    [
        (
            {"TRAINFLEET_S3_ENDPOINT": "https://10.0.0.6:9000"},
            "TRAINFLEET_S3_ENDPOINT",
            "is https://10.0.0.6:9000, and the pods of shared-ray have https://10.0.0.5:9000",
            "TRAINFLEET_S3_ENDPOINT=https://10.0.0.5:9000, or name another --cluster",
        ),
        (
            {},
            "TRAINFLEET_S3_ENDPOINT",
            "is not set, and the pods of shared-ray have https://10.0.0.5:9000",
            "TRAINFLEET_S3_ENDPOINT=https://10.0.0.5:9000, or name another --cluster",
        ),
        (
            ENDPOINT | {"AZURE_STORAGE_ACCOUNT_NAME": "mine"},
            "AZURE_STORAGE_ACCOUNT_NAME",
            "is mine, and the pods of shared-ray do not have it",
            "unset AZURE_STORAGE_ACCOUNT_NAME, or name another --cluster",
        ),
    ],
)
def test_a_launch_with_another_store_than_the_cluster_is_rejected(
    api: FakeApi, env: dict[str, str], where: str, what: str, fix: str
) -> None:
    start(api, "one", ENDPOINT)
    before = dict(api.objects)
    with pytest.raises(InputError, match="the launch cannot change this Ray cluster") as caught:
        start(api, "two", env)
    (problem,) = caught.value.problems
    assert (problem.where, problem.what, problem.fix) == (where, what, fix)
    assert api.objects == before


@pytest.mark.parametrize("first", ["", "YQ=="])
def test_a_launch_with_certificates_that_the_cluster_lacks_is_rejected(
    api: FakeApi, tmp_path: Path, first: str
) -> None:
    start(api, "one", ENDPOINT | (trusting(tmp_path, first) if first else {}))
    with pytest.raises(InputError, match="certificates that the pods of shared-ray do not trust"):
        start(api, "two", ENDPOINT | trusting(tmp_path, "Yg=="))


def test_a_region_of_its_own_does_not_keep_a_launch_from_the_cluster(api: FakeApi) -> None:
    start(api, "one", ENDPOINT)
    start(api, "two", ENDPOINT | {"AWS_REGION": "elsewhere"})
    assert f"{JOBS}/tf-two" in api.objects


def test_a_launch_without_gcs_fault_tolerance_is_rejected_by_a_cluster_that_has_it(api: FakeApi) -> None:
    start(api, "one", {}, redis="redis://10.0.0.7")
    with pytest.raises(InputError, match="exists already with GCS fault tolerance"):
        start(api, "two", {})


def test_a_launch_with_another_image_than_the_cluster_is_rejected(api: FakeApi) -> None:
    start(api, "one", {})
    with pytest.raises(InputError, match="the launch cannot change this Ray cluster") as caught:
        start(api, "two", {}, image="me/trainfleet:2")
    (problem,) = caught.value.problems
    assert problem.where == "--image"
    assert problem.what == "is me/trainfleet:2, and the pods of shared-ray have me/trainfleet:1"
    assert problem.fix == "--image me/trainfleet:1, or name another --cluster"


def test_a_launch_with_secrets_that_the_cluster_lacks_is_rejected(api: FakeApi) -> None:
    for name in ("keys", "more", "token"):
        api.objects[f"{NAMESPACE}/secrets/{name}"] = {"metadata": {"name": name}}
    start(api, "one", {}, from_secrets=("keys",))
    start(api, "two", {}, from_secrets=("keys",))
    start(api, "three", {})
    assert f"{JOBS}/tf-three" in api.objects, "it uses the cluster as it is"
    with pytest.raises(InputError, match="the launch cannot change this Ray cluster") as caught:
        start(api, "four", {}, from_secrets=("more", "keys", "token"))
    what, fix = "the pods of shared-ray do not have its variables", "leave it out, or name another --cluster"
    found = [(each.where, each.what, each.fix) for each in caught.value.problems]
    assert found == [(f"--from-secret {name}", what, fix) for name in ("more", "token")]


def test_the_image_of_a_cluster_does_not_keep_a_launcher_from_following_a_run(api: FakeApi) -> None:
    start(api, "one", {})
    recipe, target = launch("name=one", cluster=NAME, **(PLACE | {"image": "as-launched"}), attach=True)
    KubeRay().check(recipe, target)
