"""`--pod-template`: a user's changes reach the pods of KubeRay, of SkyPilot and of the workload check, and what a
launcher sets itself is rejected by name. tests/cluster compares the merge with kubectl's.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.training.launch.fake_api import FakeApi
from tests.training.launch.kuberay_follower import PLACE, check
from tests.training.launch.kuberay_launches import outputs, run_spec
from tests.training.launch.saved_platforms import FOLDER
from tests.training.launch.saved_platforms import outputs as saved_outputs
from tests.training.launch.sky_tasks import document, platforms, recipe
from trainfleet.errors import InputError
from trainfleet.infra.outputs.contract import PodPatches
from trainfleet.training.launch.base import find
from trainfleet.training.launch.kuberay.launcher import checked_run
from trainfleet.training.launch.kuberay.manifest import ray_cluster, ray_job
from trainfleet.training.launch.kuberay.options import KubeRayOptions
from trainfleet.training.launch.kuberay.pods import head_pod, submitter_pod, worker_pod
from trainfleet.training.launch.options import KubernetesOptions
from trainfleet.training.launch.platform_outputs import NamedPlatform
from trainfleet.training.launch.remote.pod_template import load, merged
from trainfleet.training.launch.remote.workload_check import workload_check
from trainfleet.training.launch.request import Request, Target
from trainfleet.training.launch.sky.options import SkyOptions
from trainfleet.training.launch.sky.plan import PlanOptions, make_plan
from trainfleet.training.launch.sky.run_spec import run_patches
from trainfleet.training.launch.sky.task import TaskOptions, task_document
from trainfleet.training.launch.supervise import _require_pods

PAGE = """
workers:
  metadata:
    annotations: {example.com/team: vision}
  spec:
    imagePullSecrets: [{name: registry-login}]
    terminationGracePeriodSeconds: 1260
    containers:
    - name: trainer
      env: [{name: NCCL_DEBUG, value: INFO}, {name: HOME, value: /scratch}]
      volumeMounts: [{name: datasets, mountPath: /datasets, readOnly: true}]
      resources: {limits: {ephemeral-storage: 100Gi}}
    - name: watcher
      image: registry.example/watcher:2
    volumes:
    - name: datasets
      persistentVolumeClaim: {claimName: datasets}
    - name: shm
      emptyDir: {sizeLimit: 64Gi}
head:
  spec:
    containers:
    - name: trainer
      resources: {requests: {cpu: "3"}}
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "pods.yaml"
    path.write_text(PAGE)
    return str(path)


def named(items: list[dict[str, Any]], name: str) -> dict[str, Any]:
    (found,) = (each for each in items if each.get("name") == name)
    return found


def test_the_workers_of_kuberay_get_the_changes_and_keep_the_rest(file: str) -> None:
    before, after = worker_pod(run_spec()), worker_pod(run_spec(pod_template=file))
    assert after["metadata"]["annotations"]["example.com/team"] == "vision"
    assert before["metadata"]["annotations"].items() <= after["metadata"]["annotations"].items()
    assert after["metadata"]["labels"] == before["metadata"]["labels"]
    spec = after["spec"]
    assert spec["imagePullSecrets"] == [{"name": "registry-login"}]
    assert named(spec["volumes"], "shm")["emptyDir"] == {"medium": "Memory", "sizeLimit": "64Gi"}
    assert named(spec["volumes"], "datasets")
    assert named(spec["containers"], "watcher")["image"] == "registry.example/watcher:2"
    one, other = before["spec"]["containers"][0], named(spec["containers"], "ray-worker")
    assert named(other["env"], "HOME")["value"] == "/scratch"
    assert named(other["env"], "NCCL_DEBUG")["value"] == "INFO"
    assert {each["name"] for each in one["env"]} <= {each["name"] for each in other["env"]}
    assert [each for each in one["volumeMounts"] if each not in other["volumeMounts"]] == []
    assert one["resources"]["requests"].items() <= other["resources"]["requests"].items()
    assert other["resources"]["limits"]["ephemeral-storage"] == "100Gi"


def test_a_longer_grace_period_is_time_to_save(file: str) -> None:
    pod = worker_pod(run_spec(pod_template=file))["spec"]
    assert pod["terminationGracePeriodSeconds"] == 1260
    command = named(pod["containers"], "ray-worker")["lifecycle"]["preStop"]["exec"]["command"][-1]
    assert "pod_drain 1200;" in command
    assert "pod_drain 480;" in str(worker_pod(run_spec()))


@pytest.mark.parametrize(("on", "options"), [("kuberay", KubeRayOptions), ("sky", SkyOptions)])
def test_a_launcher_waits_for_the_save_for_longer_than_the_pods_may_take(
    on: str, options: type[KubernetesOptions], file: str, tmp_path: Path
) -> None:
    def grace(**given: str) -> float:
        request = Request("lm-small", on=on, options=options(**given))
        platforms = (NamedPlatform(saved_outputs("aws-prod"), FOLDER / "aws-prod.json"),)
        return find(on).grace(recipe(name="lm-small"), Target(request, platforms, tmp_path))

    assert grace() == 600
    workers = tmp_path / "workers.yaml"
    workers.write_text("workers: {spec: {terminationGracePeriodSeconds: 1260}}")
    assert grace(pod_template=str(workers)) == 1320


def test_the_head_has_changes_of_its_own(file: str) -> None:
    head = head_pod(run_spec(pod_template=file))
    assert named(head["spec"]["containers"], "ray-head")["resources"]["requests"] == {
        "cpu": "3",
        "memory": "2Gi",
    }
    assert "watcher" not in str(head)
    assert head["spec"]["terminationGracePeriodSeconds"] == 45


def test_the_changes_are_in_what_is_printed(file: str) -> None:
    cluster = ray_job(run_spec(pod_template=file))["spec"]["rayClusterSpec"]
    assert "registry-login" in str(cluster["workerGroupSpecs"])
    assert "registry-login" not in str(cluster["headGroupSpec"])


def test_the_workload_check_gets_pull_secrets_volumes_and_variables_only(file: str) -> None:
    check = workload_check(checked_run(run_spec(pod_template=file)), "always")
    assert check is not None
    pod = check.job["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    assert pod["spec"]["imagePullSecrets"] == [{"name": "registry-login"}]
    assert named(container["env"], "NCCL_DEBUG")
    assert {"/datasets", "/etc/trainfleet"} <= {each["mountPath"] for each in container["volumeMounts"]}
    assert "ephemeral-storage" not in str(container)
    assert container["command"][-1].endswith("validate")


def test_the_submitter_gets_the_pull_secrets_of_head_and_workers_only(file: str) -> None:
    of_head = PodPatches(head={"spec": {"imagePullSecrets": [{"name": "mirror-login"}]}})
    platform = outputs().model_copy(update={"pod_template": of_head})
    before, after = submitter_pod(run_spec()), submitter_pod(run_spec(platform=platform, pod_template=file))
    secrets = [{"name": "mirror-login"}, {"name": "registry-login"}]
    assert after["spec"] == {**before["spec"], "imagePullSecrets": secrets}


def test_the_pods_of_skypilot_get_the_changes(file: str) -> None:
    """SkyPilot merges the container without a name into its own, and adds the others."""
    plain, task = (
        document(recipe("scaling.workers=8"), "aws-prod", **more)
        for more in ({}, {"patches": (load(file).workers,)})
    )
    for before, after in zip(plain["resources"]["ordered"], task["resources"]["ordered"], strict=True):
        one, other = (
            each["_cluster_config_overrides"]["kubernetes"]["pod_config"]["spec"] for each in (before, after)
        )
        own, watcher = other["containers"]
        assert ("name" in own, watcher["name"]) == (False, "watcher")
        assert named(own["env"], "NCCL_DEBUG")
        assert own["resources"]["limits"]["memory"] == one["containers"][0]["resources"]["limits"]["memory"]
        assert other["nodeSelector"] == one["nodeSelector"]
        assert other["imagePullSecrets"] == [{"name": "registry-login"}]


def test_skypilot_has_no_head_to_change(file: str) -> None:
    with pytest.raises(InputError, match=r"pods.yaml: head: SkyPilot's pods are equal"):
        run_patches(recipe(), SkyOptions(pod_template=file))


@pytest.mark.parametrize(
    ("pods", "cpu", "memory"), [(1, "500m", 2), (16, "800m", 2), (100, "5000m", 13), (512, "8000m", 32)]
)
def test_the_head_grows_with_the_number_of_pods(pods: int, cpu: str, memory: int) -> None:
    resources = head_pod(run_spec(f"scaling.workers={pods}", f"batch.global_batch={4 * pods}"))["spec"][
        "containers"
    ][0]["resources"]
    assert resources == {
        "requests": {"cpu": cpu, "memory": f"{memory}Gi"},
        "limits": {"memory": f"{3 * memory}Gi"},
    }


def test_directives_and_null_delete() -> None:
    base = {"spec": {"a": 1, "volumes": [{"name": "x"}, {"name": "y"}], "securityContext": {"b": 1}}}
    patch = {
        "spec": {
            "a": None,
            "volumes": [{"name": "x", "$patch": "delete"}],
            "securityContext": {"$patch": "replace", "c": 2},
        }
    }
    assert merged(base, patch, "any") == {"spec": {"volumes": [{"name": "y"}], "securityContext": {"c": 2}}}
    assert base["spec"]["volumes"] == [{"name": "x"}, {"name": "y"}], "the template was changed"


def test_lists_without_a_key_are_replaced() -> None:
    base = {"spec": {"tolerations": [{"key": "a"}]}}
    assert merged(base, {"spec": {"tolerations": [{"key": "b"}]}}, "any") == {
        "spec": {"tolerations": [{"key": "b"}]}
    }


MISTAKES = {
    "containers that are not a list": (
        "workers: {spec: {containers: 3}}",
        r"workers.spec.containers: is not a list",
    ),
    "labels that are not a mapping": (
        "head: {metadata: {labels: 3}}",
        r"head.metadata.labels: is not a mapping",
    ),
    "resources that are not a mapping": (
        "workers: {spec: {containers: [{name: trainer, resources: [1]}]}}",
        r"containers\[0\].resources: is not a mapping -> write `requests:` and `limits:`",
    ),
    "a grace period in words": (
        "workers: {spec: {terminationGracePeriodSeconds: a minute}}",
        r"workers.spec.terminationGracePeriodSeconds: is not a number of seconds -> a whole number",
    ),
    "a value that is not what its tag says": ("!!timestamp nothing", r"a value is not what its tag"),
    "an empty number": ("!<tag:yaml.org,2002:int> ''", r"a value is not what its tag"),
    "a role that does not exist": ("worker: {}", r"worker: is not a kind of pod.*workers"),
    "the spec of a pod": ("workers: {containers: []}", r"workers.containers: is not a key of a pod template"),
    "a label of the launcher": (
        "workers: {metadata: {labels: {ray.io/group: a}}}",
        r"workers.metadata.labels.ray.io/group: is how the run's pods are found",
    ),
    "a name": ("head: {metadata: {name: me}}", r"head.metadata.name: is set by the launcher"),
    "the image": (
        "workers: {spec: {containers: [{name: trainer, image: a}]}}",
        r"containers\[0\].image: is set by the launcher -> use --image REF",
    ),
    "GPUs": (
        "workers: {spec: {containers: [{name: trainer, resources: {limits: {nvidia.com/gpu: 1}}}]}}",
        r"resources.limits.nvidia.com/gpu: is one for each worker",
    ),
    "a container without a name": (
        "workers: {spec: {containers: [{env: []}]}}",
        r"containers\[0\]: has no `name` -> `name: trainer`",
    ),
    "a variable without a name": (
        "workers: {spec: {containers: [{name: trainer, env: [{value: a}]}]}}",
        r"containers\[0\].env\[0\]: has no `name`",
    ),
    "a list that is none": ("workers: {spec: {volumes: {}}}", r"volumes: is not a list"),
    "a list of roles": ("- workers", "is not a mapping"),
    "no YAML": ("{", "cannot read the pod template"),
}


@pytest.mark.parametrize(("text", "message"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_reported_with_its_place(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "pods.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        load(str(path))
    shown = "\n".join(f"{each.where}: {each.what} -> {each.fix}" for each in caught.value.problems)
    assert re.search(message, f"{caught.value.summary}\n{shown}"), shown


def test_all_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    path = tmp_path / "pods.yaml"
    path.write_text(
        yaml.safe_dump({"worker": {}, "head": {"metadata": {"name": "a", "labels": {"ray.io/x": "y"}}}})
    )
    with pytest.raises(InputError) as caught:
        run_spec(pod_template=str(path))
    assert len(caught.value.problems) == 3


def test_a_file_that_does_not_exist_is_reported() -> None:
    with pytest.raises(InputError, match=r"nowhere.yaml: No such file"):
        load("nowhere.yaml")


def test_a_cluster_that_exists_is_not_changed(api: FakeApi, file: str) -> None:
    check(cluster="shared", pod_template=file)
    existing = ray_cluster(run_spec(cluster="shared", **PLACE))
    api.objects["/apis/ray.io/v1/namespaces/training/rayclusters/shared"] = existing
    check(cluster="shared")
    with pytest.raises(InputError, match=r"--pod-template: the pods of shared exist already"):
        check(cluster="shared", pod_template=file)


def patched(**container: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "trainer", **container}]}}


def env(name: str, value: str) -> dict[str, Any]:
    return {"env": [{"name": name, "value": value}]}


STACK = PodPatches(
    head=patched(**env("WHO", "stack")),
    workers={"spec": {"terminationGracePeriodSeconds": 300, **patched(**env("WHO", "stack"))["spec"]}},
)
OVERRIDE = (
    "pod_template.workers.spec={terminationGracePeriodSeconds: 600, containers: [{name: trainer, env: %s}]}"
)


def test_the_recipe_changes_what_the_stack_changed_and_the_option_what_the_recipe_changed(file: str) -> None:
    """The stack sets WHO and 300 s, the recipe OTHER and 600 s, the file NCCL_DEBUG and 1260 s."""
    platform = outputs().model_copy(update={"pod_template": STACK})
    recipes = OVERRIDE % "[{name: OTHER, value: recipe}, {name: WHO, value: recipe}]"
    cases: list[tuple[tuple[str, ...], dict[str, Any], dict[str, str], int]] = [
        ((), {}, {"WHO": "stack"}, 300),
        ((recipes,), {}, {"WHO": "recipe", "OTHER": "recipe"}, 600),
        ((), {"pod_template": file}, {"WHO": "stack", "NCCL_DEBUG": "INFO"}, 1260),
        (
            (recipes,),
            {"pod_template": file},
            {"WHO": "recipe", "OTHER": "recipe", "NCCL_DEBUG": "INFO"},
            1260,
        ),
    ]
    for overrides, options, variables, seconds in cases:
        spec = worker_pod(run_spec(*overrides, platform=platform, **options))["spec"]
        found = {each["name"]: each.get("value") for each in spec["containers"][0]["env"]}
        assert variables.items() <= found.items(), overrides
        assert {"WHO", "OTHER", "NCCL_DEBUG"} & found.keys() == variables.keys(), overrides
        assert spec["terminationGracePeriodSeconds"] == seconds
    head = head_pod(run_spec(platform=platform))["spec"]["containers"][0]
    assert named(head["env"], "WHO")["value"] == "stack"


def test_a_later_patch_deletes_what_an_earlier_one_added() -> None:
    platform = outputs().model_copy(update={"pod_template": STACK})
    spec = worker_pod(run_spec(OVERRIDE % "[{name: WHO, $patch: delete}]", platform=platform))["spec"]
    assert "WHO" not in [each["name"] for each in spec["containers"][0]["env"]]


def test_the_pods_of_skypilot_get_the_changes_of_their_own_platform() -> None:
    changed = recipe("scaling.workers=8", OVERRIDE % "[{name: OTHER, value: recipe}]")
    patches = run_patches(changed, SkyOptions())
    stacks = platforms("aws-prod", "gcp-prod")
    stacks[0] = (stacks[0][0], stacks[0][1].model_copy(update={"pod_template": STACK}))
    plan = make_plan(changed, stacks, PlanOptions())
    task = task_document(
        changed, plan.possible, dict(stacks), TaskOptions("a", False, "token", patches=patches)
    )
    seen = set()
    for resource in task["resources"]["ordered"]:
        spec = resource["_cluster_config_overrides"]["kubernetes"]["pod_config"]["spec"]
        names = {each["name"] for each in spec["containers"][0]["env"]}
        assert "OTHER" in names
        assert ("WHO" in names) == resource["infra"].startswith("k8s/trainfleet-prod-us-east-2"), resource
        seen.add("WHO" in names)
    assert seen == {True, False}


def test_the_workload_check_gets_the_changes_of_the_stack() -> None:
    platform = outputs().model_copy(update={"pod_template": STACK})
    check = workload_check(checked_run(run_spec(platform=platform)), "always")
    assert check is not None
    (container,) = check.job["spec"]["template"]["spec"]["containers"]
    assert named(container["env"], "WHO")["value"] == "stack"


def test_a_head_in_a_recipe_is_rejected_by_skypilot() -> None:
    changed = recipe("pod_template.head={spec: {priority: 1}}")
    with pytest.raises(InputError, match=r"pod_template.head: SkyPilot's pods are equal"):
        run_patches(changed, SkyOptions())


def test_a_mistake_in_a_recipe_is_reported_with_its_key() -> None:
    with pytest.raises(InputError, match=r"pod_template.workers.*image.*is set by the launcher"):
        recipe("pod_template.workers={spec: {containers: [{name: trainer, image: mine}]}}")


@pytest.mark.parametrize("on", ["local", "torchrun", "ray-up"])
def test_a_recipe_that_changes_pods_is_rejected_where_there_are_none(on: str) -> None:
    changed = recipe("pod_template.workers={spec: {priority: 1}}")
    with pytest.raises(InputError, match=f"pod_template: --on {on} has no pods"):
        _require_pods(find(on), changed, on)
    _require_pods(find(on), recipe(), on)
    _require_pods(find("kuberay"), changed, "kuberay")
    _require_pods(find("sky"), changed, "sky")


def test_a_cluster_that_exists_keeps_the_changes_of_the_stack_and_rejects_those_of_a_recipe(
    api: FakeApi,
) -> None:
    api.objects["/apis/ray.io/v1/namespaces/training/rayclusters/shared"] = {"metadata": {"name": "shared"}}
    platform = outputs().model_copy(update={"pod_template": STACK})
    assert run_spec(platform=platform).templates.of_run == ()
    assert run_spec(OVERRIDE % "[]", platform=platform).templates.of_run == ("pod_template",)
