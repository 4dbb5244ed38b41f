"""Alert rules, each with what to do and its runbook in docs/runbooks/.

An alert on an absent metric never fires. So a failed head is detected by `up`, which Prometheus keeps for
every discovered target: a pod with an address. A head that waits for a node has none.
"""

from __future__ import annotations

from typing import ClassVar

from trainfleet.infra.kubernetes.features import LayerFeatures
from trainfleet.infra.kubernetes.manifest_model import document
from trainfleet.infra.kubernetes.names import RAY_SIGNER, SIGNER_NAMESPACE
from trainfleet.infra.platform import TRAINING_NAMESPACE, Platform

XIDS_OF_PROGRAMS = "13|31|43|45|68|109"
"""Xid errors that a faulty program causes (NVIDIA's Xid catalogue: user application errors); the rest mean
the GPU or its driver.
"""
ALLOCATED = f'DCGM_FI_DEV_GPU_UTIL{{exported_namespace="{TRAINING_NAMESPACE}"}}'


@document
class Annotations:
    summary: str
    description: str
    runbook: str
    """The page of Trainfleet's documentation on this alert."""


@document
class Labels:
    severity: str


@document
class Rule:
    KEYS: ClassVar = {"for_": "for"}
    alert: str
    expr: str
    for_: str
    labels: Labels
    annotations: Annotations


@document
class Group:
    name: str
    rules: tuple[Rule, ...]


@document
class RulesSpec:
    groups: tuple[Group, ...]


def alert_rules(platform: Platform, features: LayerFeatures) -> RulesSpec:
    """The rules of this platform."""
    groups = [Group("trainfleet-nodes", NODES), Group("trainfleet-ray", RAY)]
    if platform.pools:
        groups.append(Group("trainfleet-gpus", GPUS))
    if features.certificates != "none":
        groups.append(Group("trainfleet-certificates", CERTIFICATES))
    if features.queue:
        groups.append(Group("trainfleet-queue", QUEUE))
    return RulesSpec(tuple(groups))


def _rule(name: str, expression: str, lasting: str, severity: str, *texts: str) -> Rule:
    """A rule; the texts are what is wrong, in one line, and what to do."""
    summary, what_to_do = texts
    annotations = Annotations(summary, what_to_do, f"docs/runbooks/{name}.md")
    return Rule(name, expression, lasting, Labels(severity), annotations)


_XIDS = " and ".join(f"DCGM_FI_DEV_XID_ERRORS != {number}" for number in ("0", *XIDS_OF_PROGRAMS.split("|")))
GPUS = (
    _rule(
        "GpuXidError",
        _XIDS,
        "0m",
        "critical",
        "GPU {{ $labels.gpu }} of {{ $labels.Hostname }} reports Xid {{ $value }}",
        "Look the number up in NVIDIA's Xid catalogue; "
        "cordon the node and drain it, and the pool's repair or the autoscaler replaces it.",
    ),
    _rule(
        "GpuMemoryFailing",
        "DCGM_FI_DEV_ROW_REMAP_FAILURE > 0",
        "0m",
        "critical",
        "GPU {{ $labels.gpu }} of {{ $labels.Hostname }} can repair no more memory",
        "Cordon the node and let it be replaced; the GPU itself needs an exchange.",
    ),
    _rule(
        "TrainingStalled",
        # NOTE: with a window of half an hour, a pod that has existed for five minutes would fire.
        f"max by (exported_pod, Hostname) (max_over_time({ALLOCATED}[5m])) < 1",
        "30m",
        "warning",
        "{{ $labels.exported_pod }} holds GPUs and has used none for half an hour",
        "Look at the run's log and its queue of data; "
        "a run that waits for ever costs as much as one that trains.",
    ),
)
NODES = (
    _rule(
        "NodeNotReady",
        'kube_node_status_condition{condition="Ready", status="true"} == 0',
        "10m",
        "critical",
        "Node {{ $labels.node }} has not been ready for ten minutes",
        "The cloud repairs nodes of its pools by itself; on a cluster of your own, look at the kubelet.",
    ),
    _rule(
        "NodeHasProblem",
        'kube_node_status_condition{condition=~"KernelDeadlock|ReadonlyFilesystem", status="true"} == 1'
        ' or kube_node_status_condition{condition="AcceleratedHardwareReady", status="false"} == 1',
        "5m",
        "warning",
        "Node {{ $labels.node }} reports {{ $labels.condition }}",
        "Drain the node; trainings resume from their last checkpoint on another.",
    ),
)
_RESTARTS = f'kube_pod_container_status_restarts_total{{namespace="{TRAINING_NAMESPACE}"}}'
RAY = (
    _rule(
        "RayHeadDown",
        'up{ray_io_node_type="head"} == 0',
        "3m",
        "critical",
        "The head of Ray cluster {{ $labels.ray_io_cluster }} does not answer",
        "KubeRay starts a RayJob's cluster again; see its events, and the head's last lines in the logs.",
    ),
    _rule(
        "RayPodRestarts",
        # Rounded, because `increase` extrapolates to the whole window: three restarts are 3.03.
        f"round(increase({_RESTARTS}[30m])) > 3",
        "0m",
        "warning",
        "{{ $labels.pod }} was started again more than three times in half an hour",
        "The reason of its last end is in the pod's status; out of memory is the most frequent one.",
    ),
)
_SIGNER = f'namespace="{SIGNER_NAMESPACE}", deployment="{RAY_SIGNER}"'
CERTIFICATES = (
    _rule(
        "RaySignerDown",
        f"kube_deployment_status_replicas_available{{{_SIGNER}}} == 0",
        "5m",
        "critical",
        "No pod signs the certificates of Ray, so no run starts",
        f"See why: kubectl -n {SIGNER_NAMESPACE} describe pods, and the log of deployments/{RAY_SIGNER}. "
        "Runs that have started are not affected, except that they cannot replace a pod.",
    ),
)
QUEUE = (
    _rule(
        "QueueNotMoving",
        # NOTE: of every status. A workload that asks for more than the quota is `inadmissible`, not `active`.
        "sum(kueue_pending_workloads) > 0 and sum(kueue_admitted_active_workloads) == 0",
        "1h",
        "warning",
        "Trainings have waited for an hour while none runs",
        "Ask for less than the pool's quota, or see whether the pool can grow at all: "
        "kubectl describe clusterqueue.",
    ),
)
