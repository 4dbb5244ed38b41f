"""What a namespace admits: pods at its Pod Security level and within its quotas, by record."""

from __future__ import annotations

from typing import Any

from tests.rehearsal.relation_cases import (
    Right,
    Wrong,
    assert_accepted,
    assert_rejected,
    each_right,
    each_wrong,
    record,
)
from trainfleet.rehearsal.simulation.cloud_object import CloudObject
from trainfleet.rehearsal.simulation.state import Cloud
from trainfleet.rehearsal.simulation.stateful_rules import rules

TYPES = {
    "Pod": ("kubernetes:core/v1:Pod", False),
    "Deployment": ("kubernetes:apps/v1:Deployment", True),
    "StatefulSet": ("kubernetes:apps/v1:StatefulSet", True),
    "DaemonSet": ("kubernetes:apps/v1:DaemonSet", True),
    "Job": ("kubernetes:batch/v1:Job", True),
}
SAFE = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
ONE_CPU = {"requests": {"cpu": "1"}}


def namespace(level: str, name: str = "training") -> CloudObject:
    labels = {"pod-security.kubernetes.io/enforce": level} if level else {}
    return record("kubernetes:core/v1:Namespace", name, metadata={"name": name, "labels": labels})


def quota(name: str = "training", **hard: str) -> CloudObject:
    spec = {"hard": {key.replace("_", "."): value for key, value in hard.items()}}
    return record(
        "kubernetes:core/v1:ResourceQuota", f"{name}/q", metadata={"namespace": name, "name": "q"}, spec=spec
    )


LIMITS = record("kubernetes:core/v1:LimitRange", "training/l", metadata={"namespace": "training"})


def pods(kind: str = "Pod", replicas: int = 1, resources: Any = None, **pod: Any) -> CloudObject:
    """A workload with one container, whose security context is `security`."""
    container = {"name": "train", "securityContext": pod.pop("security", {}), "resources": resources or {}}
    spec: dict[str, Any] = {"containers": [container | pod.pop("container", {})], **pod}
    token, template = TYPES[kind]
    whole = {"replicas": replicas, "parallelism": replicas, "template": {"spec": spec}} if template else spec
    return record(token, f"training/{kind}", metadata={"namespace": "training", "name": kind}, spec=whole)


BASELINE, RESTRICTED = namespace("baseline"), namespace("restricted")
WRONG: list[Wrong] = [
    *(
        (f"a {kind} in the host's network", [BASELINE], pods(kind, hostNetwork=True), "hostNetwork")
        for kind in TYPES
    ),
    ("a privileged container", [BASELINE], pods(security={"privileged": True}), "train is privileged"),
    (
        "a capability beyond baseline",
        [BASELINE],
        pods(security={"capabilities": {"add": ["CHOWN", "IPC_LOCK"]}}),
        "adds the capability IPC_LOCK",
    ),
    (
        "a folder of the node",
        [BASELINE],
        pods(volumes=[{"name": "host", "hostPath": {"path": "/"}}]),
        "volume host is a hostPath",
    ),
    (
        "a port of the node",
        [BASELINE],
        pods(container={"ports": [{"containerPort": 80, "hostPort": 80}]}),
        "has a hostPort",
    ),
    ("a default container, restricted", [RESTRICTED], pods(), "does not set allowPrivilegeEscalation"),
    (
        "an initial container, restricted",
        [RESTRICTED],
        pods(security=SAFE, initContainers=[{"name": "copy", "securityContext": {}}]),
        "container copy does not",
    ),
    (
        "root, restricted",
        [RESTRICTED],
        pods(security=SAFE | {"runAsNonRoot": False}),
        "does not set runAsNonRoot",
    ),
    (
        "all capabilities, restricted",
        [RESTRICTED],
        pods(security=SAFE | {"capabilities": {}}),
        "does not drop ALL",
    ),
    (
        "no seccomp, restricted",
        [RESTRICTED],
        pods(security=SAFE | {"seccompProfile": {"type": "Unconfined"}}),
        "has no seccompProfile",
    ),
    *(
        (
            f"a {kind} without the request of a quota",
            [quota(requests_cpu="8")],
            pods(kind),
            "does not state it",
        )
        for kind in TYPES
    ),
    ("a limit that a quota needs", [quota(limits_memory="8Gi")], pods(resources=ONE_CPU), "limits.memory"),
    (
        "more replicas than a quota",
        [quota(cpu="2500m")],
        pods("Deployment", 3, ONE_CPU),
        "3 pods do not fit in cpu 2500m",
    ),
    (
        "a request above a quota",
        [quota(requests_memory="1Gi")],
        pods(resources={"limits": {"memory": "1025Mi"}}),
        "do not fit in requests.memory",
    ),
]
RIGHT: list[Right] = [
    *((f"a {kind} at baseline", [BASELINE], pods(kind)) for kind in TYPES),
    *((f"a {kind} at restricted", [RESTRICTED], pods(kind, security=SAFE)) for kind in TYPES),
    (
        "a pod that is restricted as a whole",
        [RESTRICTED],
        pods(
            security={key: SAFE[key] for key in ("allowPrivilegeEscalation", "capabilities")},
            securityContext={key: SAFE[key] for key in ("runAsNonRoot", "seccompProfile")},
        ),
    ),
    ("a privileged namespace", [namespace("privileged")], pods(hostPID=True)),
    ("a namespace without a level", [namespace("")], pods(hostPID=True)),
    ("the level of another namespace", [namespace("baseline", "other")], pods(hostPID=True)),
    ("a capability of baseline", [BASELINE], pods(security={"capabilities": {"add": ["CHOWN"]}})),
    *((f"a {kind} within a quota", [quota(cpu="2")], pods(kind, 2, ONE_CPU)) for kind in TYPES),
    ("a request that has a default", [quota(requests_cpu="8"), LIMITS], pods()),
    ("the quota of another namespace", [quota("other", cpu="8")], pods()),
    ("a quota on objects", [quota(pods="8")], pods()),
]


@each_wrong(WRONG)
def test_pods_that_a_namespace_does_not_admit_are_rejected(
    there: list[CloudObject], what: CloudObject, output: str
) -> None:
    assert_rejected(there, what, output)


@each_right(RIGHT)
def test_pods_that_a_namespace_admits_are_accepted(there: list[CloudObject], what: CloudObject) -> None:
    assert_accepted(there, what)


def test_a_pod_of_another_cluster_has_its_own_namespaces() -> None:
    pod = pods(hostNetwork=True)
    pod.place = "another cluster"
    Cloud(records={BASELINE.key: BASELINE}).create(pod)


def test_every_type_of_the_rules_has_cases() -> None:
    tokens = {token for token, _ in TYPES.values()}
    assert rules()["pod_security"].keys() == rules()["within_quota"].keys() == tokens
