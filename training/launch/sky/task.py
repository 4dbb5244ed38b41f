"""The SkyPilot task of a recipe: what runs, on how many pods, and the pools that are tried, in order. Pure.

A pool is selected by its labels, because SkyPilot's `use_spot` supports the spot nodes of two clouds only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from trainfleet.errors import InputError, Problem
from trainfleet.infra.outputs.contract import PlatformOutputs, PoolOutput
from trainfleet.pod_patches import CONTAINER
from trainfleet.training.launch.names import shortened
from trainfleet.training.launch.remote.fabric import fabric_settings
from trainfleet.training.launch.remote.node_groups import group_affinity
from trainfleet.training.launch.remote.pod_settings import lost_node_tolerations, variables
from trainfleet.training.launch.remote.pod_template import of_platform, with_patches
from trainfleet.training.launch.remote.run_price import price_variable
from trainfleet.training.launch.sky.kept_cluster import CLUSTER_LABEL, SETTINGS_LABEL, settings_digest
from trainfleet.training.launch.sky.plan import CLOSED, Candidate, Plan
from trainfleet.training.launch.sky.pod_size import pod_size
from trainfleet.training.launch.sky.skypilot import PRIVATE_KEY
from trainfleet.training.recipe.load import dump
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.runtime.code_archive import CODE
from trainfleet.training.runtime.events import ALLOW_CHANGES, JOB, NOTIFIED_LAUNCH

QUEUED_TAINT = "cloud.google.com/gke-queued"
"""Nodes that are provisioned only for a whole request: SkyPilot must request them with `dws`."""
RUN_LABEL = "trainfleet.io/run"
STORAGE_ANNOTATION = "trainfleet.io/storage"
MAX_NAME_LENGTH = 40
"""SkyPilot truncates a cluster's name at 42 characters on Kubernetes."""
TOKEN = "RAY_AUTH_TOKEN"
CLEAN = """# These pods outlive their runs: one at a time, and nothing of the previous one is left.
exec 9> "$HOME/trainfleet.lock"
flock --wait 30 9 || { echo "another run is using this pod" >&2; exit 1; }
# The folder stays, because Ray's processes are in it. A stop is requested by touching one file, which leads
# to the run's own: ranks of this run never find the request to an earlier one.
if [ -d "$HOME/trainfleet" ]; then find "$HOME/trainfleet" -mindepth 1 -delete; fi
stop="/tmp/trainfleet-stop-${SKYPILOT_TASK_ID:-$$}"
rm -f /tmp/trainfleet-stop*
ln -s "$stop" /tmp/trainfleet-stop
"""
END = """# The other pods notice that the head is gone, and end.
kill "$own" && wait "$own" || true
"""
OF_A_LAUNCH = (CODE, ALLOW_CHANGES, JOB, NOTIFIED_LAUNCH, TOKEN)
"""Variables that differ from launch to launch. Ranks get them from their driver, and not from Ray."""


@dataclass(frozen=True)
class TaskOptions:
    """What a task is built from, other than recipe and pools.

    Attributes:
        name: the run's name.
        managed: whether SkyPilot restarts it elsewhere when its pods are lost.
        token: the secret of Ray's own processes, new for each launch.
        secrets: variables whose values must not be shown, such as the keys of a bucket in another cloud.
        settings: variables that are not secret: the addresses of stores, and the launch's own.
        authority: certificates (PEM) of a private store's CA, or empty.
        from_secrets: Secrets of the namespace whose keys become variables of the pods.
        patches: the run's changes of the pods, after those of the platform.
        priorities: the priority class of the pods by platform, if the run has its own.
        cluster: the cluster that outlives the run, or None.
    """

    name: str
    managed: bool
    token: str
    secrets: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    authority: str = ""
    from_secrets: tuple[str, ...] = ()
    patches: tuple[dict[str, Any], ...] = ()
    priorities: Mapping[str, str] = field(default_factory=dict)
    cluster: str | None = None

    @property
    def pod_label(self) -> dict[str, str]:
        """The label that selects the pods."""
        return {RUN_LABEL: self.name} if self.cluster is None else {CLUSTER_LABEL: self.cluster}


def task_document(
    recipe: Recipe,
    candidates: Sequence[Candidate],
    platforms: Mapping[str, PlatformOutputs],
    options: TaskOptions,
) -> dict[str, Any]:
    """The task, with the candidates as alternatives in the order given.

    A task has one number of pods: candidates that need another number than the first are left out.

    Raises:
        InputError: no candidate is left.
    """
    same = [each for each in candidates if each.nodes == candidates[0].nodes]
    if not same:
        raise InputError(
            "nowhere to run",
            [Problem("--stack", "no pool can run this recipe", "`trainfleet plan` shows why")],
        )
    resources = [
        _resources(recipe, each, platforms[each.platform], options, same[:number])
        for number, each in enumerate(same)
    ]
    token = any(platforms[each.platform].ray_token_auth for each in same)
    document: dict[str, Any] = {
        "name": cluster_name(options.name),
        "num_nodes": same[0].nodes,
        "resources": {"ordered": resources} if len(resources) > 1 else resources[0],
        "envs": {**options.settings, **({"RAY_AUTH_MODE": "token"} if token else {})},
        "secrets": {**options.secrets, **({TOKEN: options.token} if token else {})},
    }
    kept = None if options.cluster is None else (*document["envs"], *document["secrets"])
    document["run"] = run_script(recipe, same[0], options.authority, kept=kept)
    return {key: value for key, value in document.items() if value != {}}


def left_out(plan: Plan) -> list[str]:
    """The pools that could run it and are not tried, as `PLATFORM/POOL: reason`."""
    best = plan.possible[0].nodes if plan.possible else 0
    found = [(each, "it needs another number of pods") for each in plan.possible if each.nodes != best]
    found += [
        (each, each.refusals[0])
        for each in plan.refused
        if len(each.refusals) == 1 and each.refusals[0].startswith(CLOSED)
    ]
    return [f"{each.platform}/{each.pool}".rstrip("/") + f": {why}" for each, why in found]


def cluster_name(run: str) -> str:
    """The name of a run's SkyPilot cluster or managed job."""
    return shortened(f"tf-{run}", MAX_NAME_LENGTH)


def redacted(document: Mapping[str, Any]) -> dict[str, Any]:
    """The task without its secrets."""
    return {
        **document,
        **({"secrets": dict.fromkeys(document["secrets"], "<hidden>")} if document.get("secrets") else {}),
    }


def run_script(
    recipe: Recipe, candidate: Candidate, authority: str = "", *, kept: Sequence[str] | None = None
) -> str:
    """What each pod runs: Ray across the pods, and `python -m trainfleet.training.run` on the first.

    `kept`: the task's variables, if the pods and their Ray outlive the run; else None.
    """
    folder = files("trainfleet.training.launch.sky")
    text, own, shared = (
        (folder / f"{name}.sh").read_text(encoding="utf-8") for name in ("run", "own_ray", "kept_ray")
    )
    document = dump(recipe).rstrip("\n")
    mark = "END_OF_RECIPE"
    while mark in document.splitlines():
        mark += "_"
    trust = (
        f"cat > ca.crt <<'END_OF_AUTHORITY'\n{authority}\nEND_OF_AUTHORITY\n"
        "export AWS_CA_BUNDLE=$PWD/ca.crt\n"
        if authority
        else ""
    )
    values = {
        "@AUTHORITY@\n": trust,
        "@CLEAN@\n": "" if kept is None else CLEAN,
        "@RAY@\n": own if kept is None else shared,
        "@END@\n": END if kept is None else "",
        "@VARIABLES@": " ".join(sorted(set(kept or ()) - set(OF_A_LAUNCH))),
        "@LEAVE_OUT@": "env " + " ".join(f"-u {name}" for name in OF_A_LAUNCH if name != TOKEN),
        "@CPUS@": str(math.ceil(pod_size(recipe, candidate.nodes).cpus)),
        "@MARK@": mark,
        "@RECIPE@": document,
    }
    for name, value in values.items():
        text = text.replace(name, value)
    return text


def _resources(
    recipe: Recipe,
    candidate: Candidate,
    outputs: PlatformOutputs,
    options: TaskOptions,
    before: Sequence[Candidate],
) -> dict[str, Any]:
    """One alternative.

    SkyPilot distinguishes alternatives by context, GPU and size only, so the second pool of a context with
    the same GPUs requests a little more memory than the first.
    """
    pool = next((each for each in outputs.pools if each.name == candidate.pool), None)
    kin = (candidate.context, candidate.accelerator, candidate.gpus_per_node)
    twins = sum((each.context, each.accelerator, each.gpus_per_node) == kin for each in before)
    size = pod_size(recipe, candidate.nodes)
    found: dict[str, Any] = {
        "infra": f"k8s/{candidate.context}",
        "cpus": size.cpus,
        "memory": int(size.memory_gib) + twins,
        "image_id": f"docker:{outputs.image}",
        "labels": options.pod_label,
    }
    if candidate.accelerator:
        found["accelerators"] = f"{candidate.accelerator}:{candidate.gpus_per_node}"
    if options.managed:
        found["job_recovery"] = {"max_restarts_on_errors": 0}
    # A memory limit, so that a pod that uses too much fails alone, and Ray sees how much it may use.
    container: dict[str, Any] = {"resources": {"limits": {"memory": f"{found['memory']}G"}}}
    if options.from_secrets:
        container["envFrom"] = [{"secretRef": {"name": name}} for name in options.from_secrets]
    overrides = _overrides(options.pod_label, outputs, pool, candidate, container)
    if price := variables(price_variable(candidate.usd_per_hour)):
        container["env"] = [*container.get("env", []), *price]
    # Pods that outlive the run do not name it.
    storage = (
        {} if options.cluster else {"metadata": {"annotations": {STORAGE_ANNOTATION: recipe.home_url()}}}
    )
    priority = options.priorities.get(candidate.platform)
    own: dict[str, Any] = {"spec": {"priorityClassName": priority}} if priority else {}
    patches = [each for each in (storage, own, *of_platform(outputs, pool), *options.patches) if each]
    overrides["pod_config"] = patched_pod(overrides["pod_config"], patches)
    if options.cluster is not None:
        found["labels"] = found["labels"] | {SETTINGS_LABEL: settings_digest(overrides)}
    found[PRIVATE_KEY] = {"kubernetes": overrides}
    return found


def patched_pod(pod: dict[str, Any], patches: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A pod configuration of one container, without a name, with the patches."""
    (container,) = pod["spec"]["containers"]
    named = {**pod, "spec": {**pod["spec"], "containers": [{**container, "name": CONTAINER}]}}
    found = with_patches(named, patches, CONTAINER)
    # SkyPilot merges a container without a name into its own, and adds those with one.
    (first,) = (each for each in found["spec"]["containers"] if each["name"] == CONTAINER)
    del first["name"]
    return found


def _overrides(
    label: Mapping[str, str],
    outputs: PlatformOutputs,
    pool: PoolOutput | None,
    candidate: Candidate,
    container: dict[str, Any],
) -> dict[str, Any]:
    """The pod settings of this pool, in addition to the context's, which apply to all pods.

    `label` selects the pods of the run.
    """
    if pool is None:
        return {"pod_config": {"spec": {"tolerations": lost_node_tolerations(), "containers": [container]}}}
    spec: dict[str, Any] = {"nodeSelector": dict(pool.node_selector)}
    spec["tolerations"] = [*lost_node_tolerations(), *(dict(each) for each in pool.tolerations)]
    if affinity := group_affinity(pool, dict(label), candidate.nodes):
        spec["affinity"] = affinity
    # SkyPilot's `network_tier: best` would add host folders and capabilities, which the namespace rejects.
    fabric = fabric_settings(pool, candidate.gpus_per_node, candidate.nodes)
    if fabric.resources:
        amount = dict(fabric.resources)
        container["resources"] = {"limits": container["resources"]["limits"] | amount, "requests": amount}
    if fabric.environment:
        container["env"] = [
            {"name": name, "value": value} for name, value in sorted(fabric.environment.items())
        ]
    spec["containers"] = [container]
    found: dict[str, Any] = {"pod_config": {"spec": spec}}
    if annotations := {**fabric.annotations, **pool.queue_annotations}:
        found["pod_config"]["metadata"] = {"annotations": annotations}
    if outputs.queue and any(each.get("key") == QUEUED_TAINT for each in pool.tolerations):
        found["dws"] = {"enabled": True}
    return found
