"""Who may do what in the cluster: accounts bound to cloud identities, and the least that a launcher needs.

People and SkyPilot are members of the group `trainfleet:launchers`; the cloud's access entries put them there. It may
run workloads in the training namespace and look at nodes, nothing else; nobody here is cluster-admin.
"""

from __future__ import annotations

import pulumi
import pulumi_kubernetes as k8s

from infra.platform import LAUNCHERS_GROUP, TRAINING_NAMESPACE, TRAINING_SERVICE_ACCOUNT, Platform, ServiceIdentity
from infra.spec import PlatformSpec

READ = ["get", "list", "watch"]
WRITE = [*READ, "create", "update", "patch", "delete", "deletecollection"]

Rule = tuple[str, list[str], list[str]]
"""API group, resources, verbs."""

LAUNCHER_RULES: tuple[Rule, ...] = (
    ("", ["pods", "services", "configmaps", "persistentvolumeclaims"], WRITE),
    # SkyPilot copies its keys and a launcher its Ray token into secrets of this namespace.
    ("", ["secrets"], WRITE),
    ("", ["pods/exec", "pods/portforward"], ["get", "create"]),
    ("", ["pods/log", "pods/status", "events", "serviceaccounts", "resourcequotas"], READ),
    ("apps", ["deployments"], WRITE),
    ("batch", ["jobs"], WRITE),
    ("ray.io", ["rayclusters", "rayjobs", "rayservices"], WRITE),
)
CLUSTER_RULES: tuple[Rule, ...] = (
    ("", ["nodes", "namespaces", "persistentvolumes"], READ),
    ("node.k8s.io", ["runtimeclasses"], READ),
    ("storage.k8s.io", ["storageclasses"], READ),
    ("scheduling.k8s.io", ["priorityclasses"], READ),
)
PRIORITIES = {"trainfleet-high": 100_000, "trainfleet-normal": 10_000, "trainfleet-low": 1_000}
"""Only `high` preempts: a running training is not thrown out for one that merely came first by name."""


class Access(pulumi.ComponentResource):
    """Accounts, launcher roles and priority classes; the account `trainer` is there on every platform."""

    def __init__(self, platform: Platform, spec: PlatformSpec, opts: pulumi.ResourceOptions) -> None:
        super().__init__("trainfleet:kubernetes:Access", f"{spec.name}-access", None, opts)
        identities = dict(platform.identities)
        identities.setdefault("training", ServiceIdentity(TRAINING_NAMESPACE, TRAINING_SERVICE_ACCOUNT, ""))
        for role, identity in sorted(identities.items()):
            self._account(spec, role, identity)
        self._launchers(spec)
        for name, value in PRIORITIES.items():
            k8s.scheduling.v1.PriorityClass(
                f"{spec.name}-priority-{name.rpartition('-')[2]}",
                metadata=k8s.meta.v1.ObjectMetaArgs(name=name),
                value=value,
                preemption_policy="PreemptLowerPriority" if name.endswith("high") else "Never",
                description=f"Trainfleet workloads of priority {name.rpartition('-')[2]}",
                opts=pulumi.ResourceOptions(parent=self, delete_before_replace=True),
            )
        self.register_outputs({})

    def _account(self, spec: PlatformSpec, role: str, identity: ServiceIdentity) -> None:
        k8s.core.v1.ServiceAccount(
            f"{spec.name}-account-{role}",
            metadata=k8s.meta.v1.ObjectMetaArgs(
                name=identity.service_account,
                namespace=identity.namespace,
                annotations=identity.annotations,
                labels=identity.labels,
            ),
            # Training pods never talk to the cluster's API; a controller does, and its chart mounts no token of its own.
            automount_service_account_token=role != "training",
            opts=pulumi.ResourceOptions(parent=self, delete_before_replace=True),
        )

    def _launchers(self, spec: PlatformSpec) -> None:
        subjects = [k8s.rbac.v1.SubjectArgs(kind="Group", name=LAUNCHERS_GROUP, api_group="rbac.authorization.k8s.io")]
        here = k8s.meta.v1.ObjectMetaArgs(name="trainfleet-launcher", namespace=TRAINING_NAMESPACE)
        everywhere = k8s.meta.v1.ObjectMetaArgs(name="trainfleet-launcher")
        options = pulumi.ResourceOptions(parent=self, delete_before_replace=True)
        role = k8s.rbac.v1.Role(f"{spec.name}-launcher", metadata=here, rules=_rules(LAUNCHER_RULES), opts=options)
        k8s.rbac.v1.RoleBinding(f"{spec.name}-launchers", metadata=here, subjects=subjects, role_ref=_reference("Role"), opts=_after(options, role))
        reader = k8s.rbac.v1.ClusterRole(f"{spec.name}-launcher-reader", metadata=everywhere, rules=_rules(CLUSTER_RULES), opts=options)
        k8s.rbac.v1.ClusterRoleBinding(
            f"{spec.name}-launcher-readers", metadata=everywhere, subjects=subjects, role_ref=_reference("ClusterRole"), opts=_after(options, reader)
        )


def _rules(rules: tuple[Rule, ...]) -> list[k8s.rbac.v1.PolicyRuleArgs]:
    return [k8s.rbac.v1.PolicyRuleArgs(api_groups=[group], resources=resources, verbs=verbs) for group, resources, verbs in rules]


def _reference(kind: str) -> k8s.rbac.v1.RoleRefArgs:
    return k8s.rbac.v1.RoleRefArgs(api_group="rbac.authorization.k8s.io", kind=kind, name="trainfleet-launcher")


def _after(options: pulumi.ResourceOptions, role: pulumi.Resource) -> pulumi.ResourceOptions:
    return pulumi.ResourceOptions.merge(options, pulumi.ResourceOptions(depends_on=[role]))
