"""Kubernetes: pod privileges, image versions, secrets, and the control plane's logs and version."""

from __future__ import annotations

import re
from collections.abc import Iterable

from trainfleet.dates import today
from trainfleet.kubernetes_support import supported_versions
from trainfleet.policies.engine.accessors import at, is_true, listed, missing_companion, numbered
from trainfleet.policies.engine.pod_specs import (
    CLOUD_NAMESPACES,
    HOST_FLAGS,
    allowed_release,
    allowed_root,
    allowed_workload,
    chart,
    containers,
    node_access,
    pod_specs,
    release_values,
)
from trainfleet.policies.engine.rule import ADVICE, FROM_STAGING, UNKNOWN, Json, Resource, Rule, Violation
from trainfleet.policies.resource_types import (
    AKS,
    AZURE_DIAGNOSTICS,
    EKS,
    GKE,
    NAMESPACE,
    RELEASE,
    ROLES,
    WORKLOADS,
)

PRIVILEGED_CHARTS = {
    "nvidia-device-plugin",
    "aws-efa-k8s-device-plugin",
    "gpu-operator",
    "network-operator",
    "dcgm-exporter",
    "prometheus-node-exporter",
    "node-problem-detector",
}
"""Charts whose templates request privileges that the values do not show."""
EKS_LOGS = {"api", "audit", "authenticator", "controllerManager", "scheduler"}
GKE_LOGS = {"SYSTEM_COMPONENTS", "APISERVER", "SCHEDULER", "CONTROLLER_MANAGER"}
STANDARDS = ("restricted", "baseline", "privileged")
SECRET_WORD = re.compile(
    r"(?i)(^|[_.-]|[a-z](?=[A-Z]))(password|passwd|token|secret[_-]?key|api[_-]?key|secretaccesskey|private[_-]?key)$"
)
NOT_SECRET = re.compile(r"^(|true|false|\d+|/[^\s]*)$")
"""Values that are not secrets, whatever their key: empty, a flag, a number or a file path."""
HARMFUL_VERBS = {"escalate", "bind", "impersonate"}


def unprivileged_pods(resource: Resource) -> Iterable[Violation]:
    if allowed_workload(resource):
        return
    for where, pod in pod_specs(resource):
        for flag in HOST_FLAGS:
            if is_true(pod.get(flag)):
                yield Violation(f"{where}.{flag} is true")
    for where, container, _ in containers(resource):
        if is_true((container.get("securityContext") or {}).get("privileged")):
            yield Violation(f"{where}.securityContext.privileged is true")
        yield from node_access(where, container)


def unprivileged_release(resource: Resource) -> Iterable[Violation]:
    if allowed_release(resource):
        return
    name = chart(resource)
    if name in PRIVILEGED_CHARTS:
        yield Violation(f"the chart {name} runs privileged pods and is not allowed to")
    for where, key, value in release_values(resource):
        if key in (*HOST_FLAGS, "privileged") and is_true(value):
            yield Violation(f"{where} is true")


def host_paths(resource: Resource) -> Iterable[Violation]:
    if allowed_workload(resource):
        return
    for where, pod in pod_specs(resource):
        for index, volume in enumerate(listed(pod.get("volumes"))):
            path = at(volume, "hostPath.path")
            if path is not None:
                yield Violation(f"{where}.volumes[{index}].hostPath is {path}")


def escalating_pods(resource: Resource) -> Iterable[Violation]:
    if allowed_workload(resource):
        return
    for where, container, pod in containers(resource):
        security = container.get("securityContext") or {}
        other_user = security.get("runAsNonRoot", (pod.get("securityContext") or {}).get("runAsNonRoot"))
        if not is_true(other_user) and not allowed_root(resource):
            yield Violation(f"{where}.securityContext.runAsNonRoot is not true")
        if is_true(security.get("allowPrivilegeEscalation", True)):
            yield Violation(f"{where}.securityContext.allowPrivilegeEscalation is not false")


def namespace_standard(resource: Resource) -> Iterable[Violation]:
    labels = at(resource.props, "metadata.labels") or {}
    enforced = labels.get("pod-security.kubernetes.io/enforce")
    if enforced not in STANDARDS:
        yield Violation(
            "metadata.labels lacks pod-security.kubernetes.io/enforce: restricted, baseline or privileged"
        )
    name = at(resource.props, "metadata.name")
    if enforced == "privileged" and (name is UNKNOWN or name not in CLOUD_NAMESPACES):
        for mode in ("audit", "warn"):
            if labels.get(f"pod-security.kubernetes.io/{mode}") not in ("restricted", "baseline"):
                yield Violation(
                    "pod-security.kubernetes.io/enforce is privileged "
                    f"and pod-security.kubernetes.io/{mode} is not baseline or stricter"
                )


def pinned_images(resource: Resource) -> Iterable[Violation]:
    for where, container, _ in containers(resource):
        image = container.get("image")
        if image is None or image is UNKNOWN:
            continue
        name, _, tag = str(image).rpartition("/")[2].partition(":")
        if "@sha256:" not in str(image) and tag in ("", "latest"):
            yield Violation(
                f"{where}.image is {name}{f':{tag}' if tag else ''}, which is not a fixed version"
            )


def pinned_release(resource: Resource) -> Iterable[Violation]:
    version = resource.props.get("version")
    if version is None or (version is not UNKNOWN and not re.match(r"^v?\d+\.\d+\.\d+", str(version))):
        yield Violation(
            "version is missing" if version is None else f"version is `{version}`, not an exact version"
        )
    for where, key, value in release_values(resource):
        if key == "tag" and str(value) == "latest":
            yield Violation(f"{where} is latest")


def memory_requests(resource: Resource) -> Iterable[Violation]:
    for where, container, _ in containers(resource):
        if (
            at(container, "resources.requests.memory") is None
            and at(container, "resources.limits.memory") is None
        ):
            yield Violation(f"{where}.resources requests no memory")


def plaintext_env(resource: Resource) -> Iterable[Violation]:
    for where, container, _ in containers(resource):
        for place, variable in numbered(f"{where}.env", container.get("env")):
            if _secret(str(variable.get("name") or ""), variable.get("value")):
                yield Violation(f"{place} sets {variable['name']} in plain text")


def plaintext_values(resource: Resource) -> Iterable[Violation]:
    for where, key, value in release_values(resource):
        if _secret(key, value):
            yield Violation(f"{where} is set in plain text")


def plaintext_config(resource: Resource) -> Iterable[Violation]:
    data = resource.props.get("data") or {}
    for key, value in data.items():
        if _secret(key, value):
            yield Violation(f"data.{key} is set in plain text")


def _secret(key: str, value: Json) -> bool:
    return isinstance(value, str) and bool(SECRET_WORD.search(key)) and not NOT_SECRET.match(value)


def escalating_role(resource: Resource) -> Iterable[Violation]:
    for where, rule in numbered("rules", resource.props.get("rules")):
        if harmful := HARMFUL_VERBS & set(listed(rule.get("verbs"))):
            yield Violation(
                f"{where}.verbs holds {', '.join(sorted(harmful))}: its holder can obtain every permission"
            )
        if (
            resource.kind.endswith("ClusterRole")
            and {"secrets", "*"} & set(listed(rule.get("resources")))
            and not listed(rule.get("resourceNames"))
        ):
            core = {"", "*"} & set(listed(rule.get("apiGroups")))
            if core and {"get", "list", "watch", "*"} & set(listed(rule.get("verbs"))):
                yield Violation(f"{where} reads the secrets of every namespace")


def eks_logs(resource: Resource) -> Iterable[Violation]:
    missing = EKS_LOGS - set(listed(resource.props.get("enabledClusterLogTypes")))
    if missing:
        yield Violation(f"enabledClusterLogTypes lacks {', '.join(sorted(missing))}")


def gke_logs(resource: Resource) -> Iterable[Violation]:
    missing = GKE_LOGS - set(listed(at(resource.props, "loggingConfig.enableComponents")))
    if missing:
        yield Violation(f"loggingConfig.enableComponents lacks {', '.join(sorted(missing))}")


def aks_logs(resource: Resource) -> Iterable[Violation]:
    on = [each for _, each in numbered("logs", resource.props.get("logs")) if is_true(each.get("enabled"))]
    if not on:
        yield Violation("logs has no enabled category")


def _outdated(cloud: str, where: str, version: Json, resource: Resource) -> Iterable[Violation]:
    """Compare with the oldest version in standard support, or with the policy's setting `oldest`."""
    setting, current = resource.settings.get("oldest"), supported_versions(cloud, today())
    if not (setting or current):
        yield Violation("the support calendar of this release has ended; upgrade Trainfleet")
        return
    expected = str(setting) if setting else current[0].version
    oldest = tuple(map(int, expected.split(".")))
    found = re.match(r"^(\d+)\.(\d+)", str(version))
    if found is None or (int(found[1]), int(found[2])) < oldest:
        yield Violation(f"{where} is `{version}`, expected {expected} or newer")


def eks_version(resource: Resource) -> Iterable[Violation]:
    version = resource.props.get("version")
    if version is None:
        yield Violation("version is missing, so a new cluster may get a different version")
    else:
        yield from _outdated("aws", "version", version, resource)


def gke_version(resource: Resource) -> Iterable[Violation]:
    channel = at(resource.props, "releaseChannel.channel")
    if channel is None or str(channel) == "UNSPECIFIED":
        yield Violation("releaseChannel.channel is missing, so the cluster gets no version upgrades")
    if (least := resource.props.get("minMasterVersion")) is not None:
        yield from _outdated("gcp", "minMasterVersion", least, resource)


def aks_version(resource: Resource) -> Iterable[Violation]:
    version = resource.props.get("kubernetesVersion")
    if version is None:
        yield Violation("kubernetesVersion is missing, so a new cluster may get a different version")
    else:
        yield from _outdated("azure", "kubernetesVersion", version, resource)


NO_PRIVILEGED_POD = Rule(
    name="no-privileged-pod",
    statement=(
        "No pod is privileged, shares the node's network, process or IPC namespace, uses the node's ports or "
        "adds capabilities beyond the profile Baseline, except the allowed ones."
    ),
    reason=(
        "Such a pod has root on the node: it can read every other pod's memory and the node's own "
        "credentials."
    ),
    fix=(
        "remove the flag; allow a device plugin or exporter that needs it as namespace/name in the policy's "
        "setting `allowed`"
    ),
    references=(
        "CIS Kubernetes 5.2.2 to 5.2.5",
        "CKV_K8S_16",
        "CKV_K8S_17",
        "CKV_K8S_18",
        "CKV_K8S_19",
        "KSV-0005",
        "KSV-0017",
        "KSV-0024",
    ),
    severity="critical",
    checks={**dict.fromkeys(WORKLOADS, unprivileged_pods), RELEASE: unprivileged_release},
    settings={"allowed": {"type": "array", "items": {"type": "string"}}},
)
NO_HOST_PATH = Rule(
    name="no-host-path",
    statement="No pod mounts a directory of the node, except the allowed ones.",
    reason="The node's directories contain the kubelet's credentials and the files of every other pod.",
    fix="use a persistent volume claim, an emptyDir or the shared volume",
    references=("CIS Kubernetes 5.2.11", "KSV-0023", "Pod Security Standards: baseline"),
    severity="high",
    checks=dict.fromkeys(WORKLOADS, host_paths),
    settings={"allowed": {"type": "array", "items": {"type": "string"}}},
)
NO_ROOT = Rule(
    name="no-root-in-pods",
    statement="The platform's own pods do not run as root and cannot become root.",
    reason="A flaw in a non-root program affects one container; as root, it is halfway to the node.",
    fix="set runAsNonRoot: true and allowPrivilegeEscalation: false",
    references=("CIS Kubernetes 5.2.6, 5.2.7", "CKV_K8S_20", "CKV_K8S_23", "KSV-0001", "KSV-0012"),
    severity="medium",
    levels=FROM_STAGING,
    checks=dict.fromkeys(WORKLOADS, escalating_pods),
    settings={"allowed": {"type": "array", "items": {"type": "string"}}},
)
POD_SECURITY = Rule(
    name="namespace-says-what-pods-may",
    statement=(
        "Every namespace enforces a pod security standard; with `privileged`, it audits and warns by a "
        "stricter one."
    ),
    reason="A namespace without the label accepts every pod, even one that mounts the node's disk.",
    fix=(
        "label the namespace pod-security.kubernetes.io/enforce: restricted or baseline; add audit and warn "
        "where it must be privileged"
    ),
    references=("CIS Kubernetes 5.2.1", "Pod Security Admission"),
    severity="high",
    checks={NAMESPACE: namespace_standard},
)
PINNED = Rule(
    name="pinned-versions",
    statement="Images and charts have an exact version.",
    reason="`latest` changes over time, so the same apply produces a different cluster.",
    fix="set a tag or digest, and the chart's version",
    references=("CKV_K8S_14", "CKV_K8S_43", "KSV-0013"),
    severity="medium",
    checks={**dict.fromkeys(WORKLOADS, pinned_images), RELEASE: pinned_release},
)
MEMORY_REQUESTS = Rule(
    name="pods-ask-for-memory",
    statement="Every container requests memory.",
    reason=(
        "The scheduler packs pods without requests onto one node, and the kernel kills one of them mid-epoch."
    ),
    fix="set resources.requests.memory",
    references=("CKV_K8S_12", "CKV_K8S_13", "KSV-0016", "KSV-0018"),
    severity="low",
    levels=ADVICE,
    checks=dict.fromkeys(WORKLOADS, memory_requests),
)
NO_PLAINTEXT_SECRET = Rule(
    name="no-secret-in-the-clear",
    statement="No password or token is written in plain text in a pod, a ConfigMap or Helm values.",
    reason="Such a value appears in the state, in the history of every release and in `kubectl describe`.",
    fix="put it in the cloud's secret store and list it under secrets.names in the spec",
    references=("CIS Kubernetes 5.4.1", "CKV_K8S_35", "KSV-0109"),
    severity="critical",
    checks={
        **dict.fromkeys(WORKLOADS, plaintext_env),
        RELEASE: plaintext_values,
        "kubernetes:core/v1:ConfigMap": plaintext_config,
    },
)
NO_ESCALATION = Rule(
    name="no-escalating-role",
    statement="No cluster role can grant itself more permissions or read the secrets of every namespace.",
    reason="`escalate`, `bind`, `impersonate` and access to all secrets amount to cluster-admin.",
    fix="name the resources, and read secrets in one namespace or by name",
    references=("CIS Kubernetes 5.1.2, 5.1.8", "CKV_K8S_155", "CKV_K8S_157", "CKV_K8S_158", "KSV-0041"),
    severity="high",
    checks=dict.fromkeys(ROLES, escalating_role),
)
CONTROL_PLANE_LOGGED = Rule(
    name="control-plane-logged",
    statement="The control plane logs who requested what.",
    reason="Without the audit log, nobody can determine what a stolen token was used for.",
    fix="enable every control plane log type that the cloud offers",
    references=("CIS EKS 2.1.1", "CKV_AWS_37", "AWS-0038", "CIS GKE 5.7.1", "CKV_AZURE_4", "AZU-0040"),
    severity="high",
    levels=FROM_STAGING,
    checks={EKS: eks_logs, GKE: gke_logs, **dict.fromkeys(AZURE_DIAGNOSTICS, aks_logs)},
    stack={
        AKS: missing_companion(
            (AKS,),
            AZURE_DIAGNOSTICS,
            "resourceUri",
            "the cluster has no diagnostic setting, so its audit log is lost",
        )
    },
)
SUPPORTED_VERSION = Rule(
    name="supported-version",
    statement="The cluster runs a Kubernetes version that its cloud still supports.",
    reason=(
        "An old version gets no patches, and the cloud eventually upgrades it at a time of its own choice."
    ),
    fix="raise kubernetes.version in the spec",
    references=("CKV_AWS_339", "CKV_GCP_70", "AKS: supported Kubernetes versions"),
    severity="high",
    checks={EKS: eks_version, GKE: gke_version, AKS: aks_version},
    settings={"oldest": {"type": "string"}},
)
RULES = (
    NO_PRIVILEGED_POD,
    NO_HOST_PATH,
    NO_ROOT,
    POD_SECURITY,
    PINNED,
    MEMORY_REQUESTS,
    NO_PLAINTEXT_SECRET,
    NO_ESCALATION,
    CONTROL_PLANE_LOGGED,
    SUPPORTED_VERSION,
)
