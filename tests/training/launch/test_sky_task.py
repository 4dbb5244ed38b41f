"""The SkyPilot task of a recipe: its content, the secrets that are never printed, and what its script does on
each pod.
"""

from __future__ import annotations

import os
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.training.launch.saved_platforms import FOLDER, outputs, platforms
from tests.training.launch.sky_tasks import TOKEN, document, recipe, resolved
from trainfleet.errors import InputError, MissingToolError
from trainfleet.training.launch.platform_outputs import NamedPlatform
from trainfleet.training.launch.remote import storage_env
from trainfleet.training.launch.request import Request, Target
from trainfleet.training.launch.sky.launcher import Sky
from trainfleet.training.launch.sky.options import SkyOptions
from trainfleet.training.launch.sky.plan import PlanOptions, make_plan
from trainfleet.training.launch.sky.probe import check_task
from trainfleet.training.launch.sky.skypilot import require_skypilot
from trainfleet.training.launch.sky.task import (
    MAX_NAME_LENGTH,
    TaskOptions,
    cluster_name,
    left_out,
    redacted,
    task_document,
)
from trainfleet.training.recipe.load import load_recipe
from trainfleet.training.runtime.events import USD_PER_HOUR


def alternatives(found: dict[str, Any]) -> list[dict[str, Any]]:
    resources = found["resources"]
    return list(resources.get("ordered", [resources]))


def container(found: dict[str, Any]) -> dict[str, Any]:
    """The container of the first alternative."""
    made: dict[str, Any] = alternatives(found)[0]["_cluster_config_overrides"]["kubernetes"]["pod_config"][
        "spec"
    ]["containers"][0]
    return made


def without_fabric(container: dict[str, Any]) -> bool:
    """Whether a container has the price of its pool and a memory limit, and nothing of a fabric."""
    variables = [each["name"] for each in container["env"]]
    resources = {kind: list(amounts) for kind, amounts in container["resources"].items()}
    return container.keys() == {"resources", "env"} and (variables, resources) == (
        [USD_PER_HOUR],
        {"limits": ["memory"]},
    )


def test_every_pool_is_an_alternative_in_the_order_of_the_plan() -> None:
    found = alternatives(document(recipe(), "aws-prod", "gcp-prod", "azure-prod"))
    assert [each["accelerators"] for each in found][:2] == ["H100:8", "H200:8"]
    assert len({each["infra"] for each in found}) == 3
    for each in found:
        pod = each["_cluster_config_overrides"]["kubernetes"]["pod_config"]["spec"]
        assert list(pod["nodeSelector"]) == ["trainfleet.io/pool"]
        keys = [toleration["key"] for toleration in pod["tolerations"]]
        assert keys[:2] == ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"]
        assert len(keys) > 2, "those of the pool"
        assert each["image_id"].startswith("docker:")
        assert each["labels"] == {"trainfleet.io/run": "lm-1b"}


def test_a_fabric_is_requested_only_with_a_whole_node() -> None:
    many = "scaling.workers=16"
    whole = container(document(recipe(many), "aws-prod"))
    assert whole["resources"]["limits"].items() >= {"vpc.amazonaws.com/efa": 32}.items()
    assert {"name": "FI_PROVIDER", "value": "efa"} in whole["env"]
    infiniband = container(document(recipe(many), "azure-prod", gpus=("H100",)))
    assert infiniband["resources"]["requests"] == {"rdma/ib": 8}
    assert "securityContext" not in infiniband, "the nodes let pods lock memory"
    part = container(document(recipe("scaling.workers=4"), "aws-prod", gpus=("H100",)))
    assert without_fabric(part), "half a node must not take the adapters of the other half"
    alone = container(document(recipe(), "gcp-prod", gpus=("H200",)))
    assert without_fabric(alone), "a single pod has no peers, and NCCL does not find the plug-in"


def test_a_pod_has_only_a_memory_limit() -> None:
    for each in alternatives(document(recipe(), "aws-prod", "azure-prod")):
        (made,) = each["_cluster_config_overrides"]["kubernetes"]["pod_config"]["spec"]["containers"]
        assert made["resources"] == {"limits": {"memory": f"{each['memory']}G"}}


def test_a_fabric_that_needs_a_privileged_daemon_is_left_out() -> None:
    many = make_plan(recipe("scaling.workers=16"), platforms("gcp-prod"))
    (why,) = next(each.refusals for each in many.refused if each.pool == "h100")
    assert why.startswith("gpudirect-tcpx of pool h100 needs a daemon with access to the node in every pod")
    alone = make_plan(recipe(), platforms("gcp-prod"))
    assert "h100" in {each.pool for each in alone.possible}, "a single pod has no peers"
    found = alternatives(document(recipe("scaling.workers=16"), "gcp-prod"))
    assert [each for each in found if "network_tier" in each] == []


def test_a_queued_pool_is_requested_as_a_whole() -> None:
    found = {
        each["accelerators"]: each["_cluster_config_overrides"]["kubernetes"]
        for each in alternatives(document(recipe(), "gcp-prod"))
    }
    assert found["A100-80GB:8"]["dws"] == {"enabled": True}
    assert "dws" not in found["H200:8"]


def test_two_pools_with_the_same_gpus_in_one_context_have_different_sizes() -> None:
    pool = outputs("aws-dev").pools[0]
    both = outputs("aws-dev").model_copy(
        update={"pools": [pool, pool.model_copy(update={"name": "sure", "spot": False})]}
    )
    found = recipe("scaling.workers=4")
    plan = make_plan(found, [("here", both)])
    first, second = alternatives(
        task_document(found, plan.possible, {"here": both}, TaskOptions("x", False, TOKEN))
    )
    assert second["memory"] == first["memory"] + 1


def test_pools_that_need_another_number_of_pods_are_left_out_and_reported() -> None:
    plan = make_plan(recipe("scaling.cpus_per_worker=2"), platforms("aws-prod"))
    assert left_out(plan) == [
        "aws-prod/l4: it needs another number of pods",
        "aws-prod/a10g: it needs another number of pods",
    ]
    assert document(recipe(), "aws-prod")["num_nodes"] == 1


@pytest.mark.parametrize(
    ("storage", "open_on"),
    [
        ("s3://runs", {"aws-prod"}),
        ("gs://runs", {"gcp-prod"}),
        ("az://runs", {"azure-prod"}),
        (None, {"aws-prod", "gcp-prod", "azure-prod"}),
        ("file:///mnt/runs", {"aws-prod", "gcp-prod", "azure-prod"}),
    ],
)
def test_pods_without_keys_run_where_their_identity_can_read_the_storage(
    storage: str | None, open_on: set[str]
) -> None:
    places = platforms("aws-prod", "gcp-prod", "azure-prod")
    plan = make_plan(recipe(), places, PlanOptions(storage=storage, gpus=("H100",)))
    assert {each.platform for each in plan.possible} == open_on
    reported = [each for each in left_out(plan) if "its pods' identity opens" in each]
    assert {each.partition("/")[0] for each in reported} == {name for name, _ in places} - open_on
    assert all(f"and not {storage}: --from-secret NAME" in each for each in reported)


@pytest.mark.parametrize(
    ("options", "tried"), [({}, {"trainfleet-prod-us-east-2"}), ({"from_secrets": ("keys",)}, None)]
)
def test_a_launch_on_two_clouds_without_keys_stays_in_the_cloud_of_its_storage(
    options: dict[str, Any], tried: set[str] | None, tmp_path: Path
) -> None:
    request = Request("lm-1b", on="sky", options=SkyOptions(**options))
    found = load_recipe("lm-1b", ["storage=s3://runs"])
    places = tuple(
        NamedPlatform(each, tmp_path / f"{name}.json") for name, each in platforms("aws-prod", "gcp-prod")
    )
    made = resolved(found, Target(request, places, tmp_path)).task
    assert tried is None or {each["infra"].removeprefix("k8s/") for each in alternatives(made)} == tried
    assert tried is not None or len({each["infra"] for each in alternatives(made)}) == 2


def test_no_secret_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "planted-key")
    request = Request("lm-1b", on="sky", options=SkyOptions(secrets=("AWS_SECRET_ACCESS_KEY",)))
    target = Target(request, (NamedPlatform(outputs("aws-prod"), FOLDER / "aws-prod.json"),), tmp_path)
    made = resolved(recipe(), target, os.environ).task
    assert made["secrets"]["AWS_SECRET_ACCESS_KEY"] == "planted-key"
    shown = yaml.safe_dump(redacted(made))
    assert "planted" not in shown
    assert made["secrets"]["RAY_AUTH_TOKEN"] not in shown
    assert "planted" not in made["run"]


def test_a_missing_secret_is_reported(tmp_path: Path) -> None:
    target = Target(
        Request("lm-1b", options=SkyOptions(secrets=("NOT_SET_HERE",))),
        (NamedPlatform(outputs("aws-prod"), FOLDER / "aws-prod.json"),),
        tmp_path,
    )
    with pytest.raises(InputError, match="NOT_SET_HERE"):
        resolved(recipe(), target)


def test_cluster_names_are_valid_for_skypilot() -> None:
    longest = "x" * 63
    assert cluster_name(longest) == cluster_name(longest)
    assert cluster_name(longest) != cluster_name(f"{longest[:-1]}y"), "one would end the other"
    assert cluster_name("night-1") == "tf-night-1"
    assert len(cluster_name("a-" * 30)) <= MAX_NAME_LENGTH
    assert not cluster_name(f"{'x' * 36}-y").endswith("-")


def test_a_run_folder_on_the_disks_of_pods_is_rejected(tmp_path: Path) -> None:
    target = Target(
        Request("lm-1b"), (NamedPlatform(outputs("aws-prod"), FOLDER / "aws-prod.json"),), tmp_path
    )
    with pytest.raises(InputError, match="the run would be lost"):
        Sky().check(load_recipe("lm-1b"), target)


@pytest.mark.parametrize(
    "text",
    [None, "-----BEGIN CERTIFICATE-----\n" + "x" * 70_000 + "\n-----END CERTIFICATE-----"],
    ids=["missing", "too large"],
)
def test_an_invalid_certificate_authority_is_rejected(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "ca").write_text(text)
    with pytest.raises(InputError, match="the store's CA"):
        storage_env.authority(
            {"AWS_CA_BUNDLE": str(tmp_path / "ca"), "TRAINFLEET_S3_ENDPOINT": "https://10.0.0.1"}
        )
    assert storage_env.authority({"AWS_CA_BUNDLE": str(tmp_path / "ca")}) == "", (
        "public certificate authorities sign the stores of clouds"
    )


def test_a_launch_without_a_platform_reports_both_options(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--context NAME"):
        resolved(recipe(), Target(Request("lm-1b"), (), tmp_path))
    request = Request("lm-1b", options=SkyOptions(context="kind"))
    with pytest.raises(InputError, match="--image"):
        resolved(recipe(), Target(request, (), tmp_path))


def test_an_external_cluster_needs_no_stack(tmp_path: Path) -> None:
    request = Request(
        "lm-small",
        options=SkyOptions(context="kind-kind", namespace="mine", image="my/image:1", nodes=2),
    )
    run = resolved(recipe(name="lm-small"), Target(request, (), tmp_path))
    made, plan, found = run.task, run.plan, run.platforms
    assert made["num_nodes"] == 2
    assert made["resources"]["infra"] == "k8s/kind-kind"
    assert made["resources"]["image_id"] == "docker:my/image:1"
    assert found["kind-kind"].namespace == "mine"
    assert plan.possible[0].usd is None


@pytest.mark.parametrize(
    ("version", "says"),
    [
        (None, "is not installed"),
        ("0.12.0", "unsupported SkyPilot version"),
        ("1.0.0", "unsupported SkyPilot version"),
    ],
)
def test_a_missing_or_unsupported_skypilot_is_reported_in_one_line(
    monkeypatch: pytest.MonkeyPatch, version: str | None, says: str
) -> None:
    def found(_: str) -> str:
        if version is None:
            raise metadata.PackageNotFoundError
        return version

    monkeypatch.setattr(metadata, "version", found)
    with pytest.raises(MissingToolError, match=says):
        require_skypilot()


def test_the_task_of_a_check_has_the_platform_s_changes_of_pods() -> None:
    env = {"name": "trainer", "env": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}]}
    changes = {
        "metadata": {"annotations": {"example.com/team": "a"}},
        "spec": {"imagePullSecrets": [{"name": "registry"}], "containers": [env, {"name": "proxy"}]},
    }
    platform = outputs("aws-prod", pod_template={"workers": changes})
    made = check_task("tf-check", platform, "here")["resources"]["_cluster_config_overrides"]
    pod = made["kubernetes"]["pod_config"]
    assert pod["metadata"] == changes["metadata"]
    assert pod["spec"]["imagePullSecrets"] == [{"name": "registry"}]
    assert pod["spec"]["containers"] == [{"env": env["env"]}, {"name": "proxy"}], (
        "SkyPilot merges the container without a name into its own"
    )
    assert set(check_task("tf-check", outputs("aws-prod"), "here")["resources"]) == {
        "infra",
        "cpus",
        "memory",
        "image_id",
    }
