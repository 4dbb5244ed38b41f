"""SkyPilot's own parser, schema, optimizer and pod merging accept what is written for the six cloud stacks.

SkyPilot runs in its own process and home (`inspect_sky`), twice in total: with one node per pool, and with
pools scaled to zero.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.training.launch.saved_platforms import PROD, STACKS, made, nodes, outputs, platforms, saved
from trainfleet.training.launch.sky.config import context_config, context_name, merged
from trainfleet.training.launch.sky.kubeconfig import with_context
from trainfleet.training.launch.sky.plan import make_plan
from trainfleet.training.launch.sky.task import STORAGE_ANNOTATION, TaskOptions, task_document
from trainfleet.training.recipe.load import load_recipe

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("sky") is None, reason="needs SkyPilot: pip install 'trainfleet[sky]'"
    ),
    pytest.mark.timeout(1200),
]
CATALOGUE = "AcceleratorName,Clouds\n" + "".join(
    f"{gpu},Kubernetes\n" for gpu in ("A10", "A100-80GB", "A10G", "H100", "H200", "L4", "T4")
)
"""Names from SkyPilot's own list of accelerators. Without a checksum file, SkyPilot does not download the
list.
"""


def recipe_for(stack: str) -> Any:
    """A recipe that a pool of the stack can run."""
    pool = outputs(stack).pools[0]
    small = ["precision=fp32", "batch.micro_batch=1", "scaling.cpus_per_worker=2"]
    return load_recipe("lm-124m", [f"scaling.workers={pool.per_node}", *small, "storage=s3://runs"])


@cache
def answers(*, gpus: bool, folder: Path) -> dict[str, Any]:
    """SkyPilot's answers for a task on each stack, and for one on all three production stacks."""
    config = merged({}, {context_name(outputs(stack)): context_config(outputs(stack)) for stack in STACKS})
    access: dict[str, Any] = {}
    for stack in STACKS:
        access = with_context(access, outputs(stack), "header.payload.signature", file=folder / "config")
    tasks = {stack: task(stack) for stack in STACKS} | {"all": task(*PROD)}
    order = {
        "files": {
            ".sky/config.yaml": yaml.safe_dump(config),
            ".kube/config": yaml.safe_dump(access),
            ".sky/catalogs/v8/common/accelerators.csv": CATALOGUE,
        },
        "nodes": {context_name(outputs(stack)): nodes(stack, gpus=gpus) for stack in STACKS},
        "tasks": tasks,
    }
    hidden = ("KUBECONFIG", "SKYPILOT_GLOBAL_CONFIG", "SKYPILOT_API_SERVER_ENDPOINT")
    env = {key: value for key, value in os.environ.items() if key not in hidden}
    home = {"HOME": str(folder), "SKY_RUNTIME_DIR": str(folder), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
    program = Path(__file__).with_name("inspect_sky.py")
    done = subprocess.run(
        [sys.executable, str(program)],
        input=json.dumps(order),
        env=env | home,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


def task(*stacks: str) -> dict[str, Any]:
    recipe = recipe_for(stacks[0]) if len(stacks) == 1 else load_recipe("lm-1b", ["storage=s3://runs"])
    plan = make_plan(recipe, platforms(*stacks))
    return task_document(
        recipe, plan.possible, dict(platforms(*stacks)), TaskOptions(recipe.name, True, "token")
    )


def alternatives(document: dict[str, Any]) -> list[dict[str, Any]]:
    return list(document["resources"].get("ordered", [document["resources"]]))


@pytest.fixture(
    scope="module",
    params=[pytest.param(True, id="with nodes"), pytest.param(False, id="from zero", marks=pytest.mark.deep)],
)
def answer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return answers(gpus=request.param, folder=tmp_path_factory.mktemp("sky"))


@pytest.mark.parametrize("stack", [*STACKS, "all"])
def test_skypilot_tries_every_alternative_in_the_plan_s_order(answer: dict[str, Any], stack: str) -> None:
    expected = alternatives(task(*(PROD if stack == "all" else (stack,))))
    tried = answer[stack]["tried"]
    assert [(each["context"], each["gpus"]) for each in tried] == [
        (
            each["infra"].removeprefix("k8s/"),
            {each["accelerators"].partition(":")[0]: int(each["accelerators"].partition(":")[2])},
        )
        for each in expected
    ]
    assert all(each["cost"] > 0 for each in tried if not each["context"].endswith("eastus")), (
        "prices come from the configuration"
    )


@pytest.mark.parametrize("stack", STACKS)
def test_the_pod_of_skypilot_fits_the_nodes_of_its_pool(answer: dict[str, Any], stack: str) -> None:
    expected, platform = alternatives(task(stack)), outputs(stack)
    for each, asked in zip(answer[stack]["tried"], expected, strict=True):
        values, pod = each["pod"]["values"], each["pod"]["pod"]["spec"]
        name = pod["nodeSelector"]["trainfleet.io/pool"]
        node = next(node for node in nodes(stack) if node["metadata"]["name"] == name)
        labels = node["metadata"]["labels"]
        assert pod["nodeSelector"].items() <= labels.items()
        assert labels[values["k8s_acc_label_key"]] in values["k8s_acc_label_values"], (
            "SkyPilot's own selector finds the same nodes"
        )
        tolerated = {toleration["key"] for toleration in pod["tolerations"]}
        assert {taint["key"] for taint in node["spec"]["taints"]} <= tolerated
        assert values["k8s_service_account_name"] == "trainer"
        assert values["k8s_namespace"] == "training"
        assert (values["k8s_kueue_local_queue_name"] or "") == platform.queue
        assert int(values["timeout"]) == context_config(platform)["provision_timeout"]
        assert values["image_id"] == platform.image
        assert float(values["cpus"]) == asked["cpus"]
        assert values["k8s_cpu_limit"] is None, (
            "a CPU limit throttles the start of SkyPilot and the data loaders"
        )


@pytest.mark.parametrize("stack", STACKS)
def test_the_pod_has_the_settings_of_all_pods_and_those_of_its_pool(
    answer: dict[str, Any], stack: str
) -> None:
    platform, many = outputs(stack), task(stack)["num_nodes"] > 1
    for each in answer[stack]["tried"]:
        pod = each["pod"]["pod"]
        pool = next(
            pool for pool in platform.pools if pool.name == pod["spec"]["nodeSelector"]["trainfleet.io/pool"]
        )
        (container,) = pod["spec"]["containers"]
        names = {variable["name"] for variable in container["env"]}
        assert names >= {
            *(pool.environment if many else ()),
            *(secret.upper().replace("-", "_") for secret in platform.secrets),
        }
        assert container["imagePullPolicy"] == "IfNotPresent"
        assert pod["spec"]["priorityClassName"] == "trainfleet-normal"
        assert pod["metadata"].get("labels", {}).items() >= platform.pod_labels.items()
        annotations = {STORAGE_ANNOTATION: "s3://runs/lm-124m"} | (pool.pod_annotations if many else {})
        assert pod["metadata"].get("annotations", {}) == annotations
        limits = container["resources"]["limits"]
        assert limits.pop("memory").endswith("G")
        assert limits == ({pool.rdma_resource: pool.rdma_nics} if pool.rdma_resource and many else {})


def test_secrets_and_script_are_unchanged_after_skypilot_writes_them(answer: dict[str, Any]) -> None:
    written, mine = answer["all"]["yaml"], task(*PROD)
    assert written["num_nodes"] == mine["num_nodes"]
    assert written["run"] == mine["run"]
    assert written["envs"]["RAY_AUTH_MODE"] == "token"


@pytest.mark.deep
@pytest.mark.parametrize("stack", STACKS)
def test_the_saved_contracts_equal_those_of_the_stacks(stack: str) -> None:
    kept, now = saved(stack), made(stack)
    assert kept["nodes"] == now["nodes"]
    assert kept["platform"]["pools"] == now["platform"]["pools"]
    given = ("bucket_url", "registry", "image", "kubeconfig", "training_identity", "pools")
    assert {key: value for key, value in kept["platform"].items() if key not in given} == {
        key: value for key, value in now["platform"].items() if key not in given
    }
