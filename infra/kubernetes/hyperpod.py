"""What SageMaker HyperPod needs in the cluster before its first node joins: its health agent, and permissions
of its service.

AWS publishes these only as a chart in a Git repository (aws/sagemaker-hyperpod-cli,
helm_chart/HyperPodHelmChart), half of which is a second KubeRay, Kueue, cert-manager and set of device
plugins. AWS fixes the namespace's name, and the agent must tolerate every taint.
"""

from __future__ import annotations

import pulumi
import pulumi_kubernetes as k8s

from trainfleet.infra.catalog.machines import catalogue
from trainfleet.infra.clouds import Cloud
from trainfleet.infra.spec.schema import PlatformSpec

NAMESPACE = "aws-hyperpod"
AGENT = "health-monitoring-agent"
AGENT_VERSION = "1.0.1892.0_1.0.424.0"
"""The image's tag (aws/sagemaker-hyperpod-cli, charts/health-monitoring-agent/values.yaml at 14cb59d)."""
CHECKER = "deep-health-check-service-account"
SERVICE_USER = "hyperpod-service-linked-role"
"""The user of SageMaker's service-linked role, which drains a node before it patches or replaces it."""

Rule = tuple[list[str], list[str], list[str]]
"""API groups, resources, verbs."""
AGENT_RULES: tuple[Rule, ...] = (
    ([""], ["nodes"], ["get", "patch"]),
    ([""], ["nodes/status"], ["patch"]),
    (["", "events.k8s.io"], ["events"], ["create", "patch", "update"]),
)
CHECKER_RULES: tuple[Rule, ...] = (
    ([""], ["nodes"], ["get", "list"]),
    ([""], ["pods"], ["get", "list", "patch"]),
)
SERVICE_RULES: tuple[Rule, ...] = (
    ([""], ["pods"], ["list"]),
    ([""], ["pods/eviction"], ["create"]),
    ([""], ["nodes"], ["get", "list", "patch"]),
)


class HyperPodAgents(pulumi.ComponentResource):
    """Namespace, permissions and the health agent. `image_account`: the AWS account that publishes the
    agent's image.
    """

    def __init__(
        self,
        provider: k8s.Provider,
        spec: PlatformSpec,
        image_account: str,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        below = pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(providers=[provider]))
        super().__init__("trainfleet:kubernetes:HyperPodAgents", f"{spec.name}-hyperpod-agents", None, below)
        self.spec = spec
        namespace = k8s.core.v1.Namespace(
            f"{spec.name}-namespace-{NAMESPACE}",
            metadata=k8s.meta.v1.ObjectMetaArgs(
                name=NAMESPACE,
                # The agent reads the kernel log of the host, and SageMaker runs its tests here.
                labels={
                    "pod-security.kubernetes.io/enforce": "privileged",
                    "pod-security.kubernetes.io/audit": "baseline",
                    "pod-security.kubernetes.io/warn": "baseline",
                },
            ),
            opts=self._options(),
        )
        agent = self._account(AGENT, AGENT_RULES, namespace)
        self._account(CHECKER, CHECKER_RULES, namespace)
        user = k8s.rbac.v1.SubjectArgs(kind="User", name=SERVICE_USER, api_group="rbac.authorization.k8s.io")
        self._grant("hyperpod-patching", SERVICE_RULES, user)
        k8s.apps.v1.DaemonSet(
            f"{spec.name}-hyperpod-{AGENT}",
            metadata=k8s.meta.v1.ObjectMetaArgs(
                name=AGENT,
                namespace=NAMESPACE,
                labels={"app": AGENT},
                # NOTE: its nodes are created later, so a rollout that waits for them would never end.
                annotations={"pulumi.com/skipAwait": "true"},
            ),
            spec=daemon(
                f"{image_account}.dkr.ecr.{spec.region}.amazonaws.com/hyperpod-{AGENT}:{AGENT_VERSION}"
            ),
            opts=self._options(agent),
        )
        self.register_outputs({})

    def _options(self, *depends_on: pulumi.Resource) -> pulumi.ResourceOptions:
        return pulumi.ResourceOptions(parent=self, depends_on=list(depends_on), delete_before_replace=True)

    def _account(self, name: str, rules: tuple[Rule, ...], namespace: pulumi.Resource) -> pulumi.Resource:
        account = k8s.core.v1.ServiceAccount(
            f"{self.spec.name}-hyperpod-account-{name}",
            metadata=k8s.meta.v1.ObjectMetaArgs(name=name, namespace=NAMESPACE),
            opts=self._options(namespace),
        )
        self._grant(
            name, rules, k8s.rbac.v1.SubjectArgs(kind="ServiceAccount", name=name, namespace=NAMESPACE)
        )
        return account

    def _grant(self, name: str, rules: tuple[Rule, ...], subject: k8s.rbac.v1.SubjectArgs) -> None:
        everywhere = k8s.meta.v1.ObjectMetaArgs(name=name)
        role = k8s.rbac.v1.ClusterRole(
            f"{self.spec.name}-hyperpod-role-{name}",
            metadata=everywhere,
            rules=[
                k8s.rbac.v1.PolicyRuleArgs(api_groups=groups, resources=resources, verbs=verbs)
                for groups, resources, verbs in rules
            ],
            opts=self._options(),
        )
        k8s.rbac.v1.ClusterRoleBinding(
            f"{self.spec.name}-hyperpod-binding-{name}",
            metadata=everywhere,
            subjects=[subject],
            role_ref=k8s.rbac.v1.RoleRefArgs(
                api_group="rbac.authorization.k8s.io", kind="ClusterRole", name=name
            ),
            opts=self._options(role),
        )


def daemon(image: str) -> k8s.apps.v1.DaemonSetSpecArgs:
    """The agent on every HyperPod node with GPUs."""
    types = sorted(
        machine.instance_type
        for machine in catalogue()
        if machine.cloud is Cloud.AWS and machine.kind == "hyperpod"
    )
    on_ours = k8s.core.v1.NodeSelectorRequirementArgs(
        key="node.kubernetes.io/instance-type", operator="In", values=types
    )
    mounts = {"log": ("/var/log", False), "kmsg": ("/dev/kmsg", True), "localtime": ("/etc/localtime", True)}
    container = k8s.core.v1.ContainerArgs(
        name=AGENT,
        image=image,
        image_pull_policy="IfNotPresent",
        resources=k8s.core.v1.ResourceRequirementsArgs(
            requests={"cpu": "500m", "memory": "512Mi"}, limits={"cpu": "500m", "memory": "512Mi"}
        ),
        # As in AWS's chart. Capabilities are unchanged, because reading the kernel log needs one.
        security_context=k8s.core.v1.SecurityContextArgs(
            run_as_user=1000, run_as_group=2000, run_as_non_root=True
        ),
        env=[_from_pod("NODE_NAME", "spec.nodeName"), _from_pod("NODE_IP", "status.hostIP")],
        volume_mounts=[
            k8s.core.v1.VolumeMountArgs(name=name, mount_path=path, read_only=fixed)
            for name, (path, fixed) in mounts.items()
        ],
    )
    pod = k8s.core.v1.PodSpecArgs(
        service_account_name=AGENT,
        containers=[container],
        volumes=[
            k8s.core.v1.VolumeArgs(name=name, host_path=k8s.core.v1.HostPathVolumeSourceArgs(path=path))
            for name, (path, _) in mounts.items()
        ],
        tolerations=[
            k8s.core.v1.TolerationArgs(operator="Exists", effect=effect)
            for effect in ("NoSchedule", "NoExecute")
        ],
        affinity=k8s.core.v1.AffinityArgs(
            node_affinity=k8s.core.v1.NodeAffinityArgs(
                required_during_scheduling_ignored_during_execution=k8s.core.v1.NodeSelectorArgs(
                    node_selector_terms=[k8s.core.v1.NodeSelectorTermArgs(match_expressions=[on_ours])]
                )
            )
        ),
    )
    return k8s.apps.v1.DaemonSetSpecArgs(
        selector=k8s.meta.v1.LabelSelectorArgs(match_labels={"app": AGENT}),
        template=k8s.core.v1.PodTemplateSpecArgs(
            metadata=k8s.meta.v1.ObjectMetaArgs(labels={"app": AGENT}), spec=pod
        ),
    )


def _from_pod(name: str, path: str) -> k8s.core.v1.EnvVarArgs:
    source = k8s.core.v1.EnvVarSourceArgs(field_ref=k8s.core.v1.ObjectFieldSelectorArgs(field_path=path))
    return k8s.core.v1.EnvVarArgs(name=name, value_from=source)
