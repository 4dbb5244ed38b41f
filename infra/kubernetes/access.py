"""Who may do what in the cluster: accounts bound to cloud identities, and the least permissions that a
launcher needs.

People are members of the group `trainfleet:launchers`, or subjects of the cloud's login. They may request
tokens of the account `launcher` that last hours, for SkyPilot and CI. Both may run workloads in the training
namespace and read nodes. Nobody is cluster-admin. SkyPilot's minimum:
docs/source/cloud-setup/cloud-permissions/kubernetes.rst.
"""

from __future__ import annotations

import pulumi
import pulumi_kubernetes as k8s

from trainfleet.infra.kubernetes.features import LayerFeatures
from trainfleet.infra.kubernetes.names import LAUNCHER_ACCOUNT, LAUNCHER_TOKEN, PRIORITIES
from trainfleet.infra.kubernetes.pod_changes import limit_pod_changes
from trainfleet.infra.platform import (
    LAUNCHERS_GROUP,
    TRAINING_NAMESPACE,
    TRAINING_SERVICE_ACCOUNT,
    Platform,
    ServiceIdentity,
)
from trainfleet.infra.spec.schema import PlatformSpec

READ = ["get", "list", "watch"]
WRITE = [*READ, "create", "update", "patch", "delete", "deletecollection"]
RBAC = "rbac.authorization.k8s.io"

Rule = tuple[str, list[str], list[str]]
"""API group, resources, verbs."""
Subjects = list[k8s.rbac.v1.SubjectArgs]

LAUNCHER_RULES: tuple[Rule, ...] = (
    ("", ["pods", "services", "configmaps", "persistentvolumeclaims"], WRITE),
    # The workload check creates the values of `--secret`, and people those of `--from-secret`. A rule cannot
    # limit creation by name, and reads no Secret: tokens of Ray come from the head's pod.
    ("", ["secrets"], ["create"]),
    ("", ["pods/status"], ["get", "patch", "update"]),
    ("", ["pods/exec", "pods/portforward"], ["get", "create"]),
    ("", ["pods/log", "events", "serviceaccounts", "resourcequotas"], READ),
    ("apps", ["deployments"], WRITE),
    ("batch", ["jobs"], WRITE),
    ("ray.io", ["rayclusters", "rayjobs", "rayservices"], WRITE),
    # A run's own, so that a drain evicts one of its pods at a time.
    ("policy", ["poddisruptionbudgets"], WRITE),
    # To see why a training is queued.
    ("kueue.x-k8s.io", ["localqueues", "workloads"], READ),
)
CLUSTER_RULES: tuple[Rule, ...] = (
    ("", ["nodes", "namespaces", "persistentvolumes"], READ),
    ("node.k8s.io", ["runtimeclasses"], READ),
    ("storage.k8s.io", ["storageclasses"], READ),
    ("scheduling.k8s.io", ["priorityclasses"], READ),
    ("kueue.x-k8s.io", ["clusterqueues", "resourceflavors", "workloadpriorityclasses"], READ),
)
LOGIN_RULES: tuple[Rule, ...] = (("", ["serviceaccounts/token"], ["create"]),)
RULE_NAMES = {"serviceaccounts/token": [LAUNCHER_ACCOUNT]}
"""Objects to which the rule of a resource is limited, by the resource."""
POD_RULES: tuple[Rule, ...] = (
    # A SkyPilot pod with `remote_identity` watches its own cluster and deletes it at the end. The submitter
    # of a run on KubeRay has the pods of a lost node replaced (training/launch/remote/lost_pods.py). A patch
    # may change one label only (pod_changes.py).
    ("", ["pods"], ["get", "list", "patch", "delete"]),
    ("", ["services"], ["get", "list", "delete", "deletecollection"]),
    ("", ["events"], ["create"]),
    ("apps", ["deployments"], ["get", "list"]),
)


class Access(pulumi.ComponentResource):
    """Accounts, launcher roles and priority classes. Every platform has the account `trainer`."""

    def __init__(
        self, platform: Platform, spec: PlatformSpec, features: LayerFeatures, opts: pulumi.ResourceOptions
    ) -> None:
        super().__init__("trainfleet:kubernetes:Access", f"{spec.name}-access", None, opts)
        self._spec = spec
        identities = dict(platform.identities)
        identities.setdefault("training", ServiceIdentity(TRAINING_NAMESPACE, TRAINING_SERVICE_ACCOUNT, ""))
        for role, identity in sorted(identities.items()):
            self._account(role, identity)
        if features.launcher_access:
            self._launchers(platform, features)
        for name, value in PRIORITIES.items() if features.priority_classes else ():
            k8s.scheduling.v1.PriorityClass(
                f"{spec.name}-priority-{name.rpartition('-')[2]}",
                metadata=k8s.meta.v1.ObjectMetaArgs(name=name),
                value=value,
                preemption_policy="PreemptLowerPriority" if name.endswith("high") else "Never",
                description=f"Trainfleet workloads of priority {name.rpartition('-')[2]}",
                opts=pulumi.ResourceOptions(parent=self, delete_before_replace=True),
            )
        self.register_outputs({})

    def _account(self, role: str, identity: ServiceIdentity) -> None:
        k8s.core.v1.ServiceAccount(
            f"{self._spec.name}-account-{role}",
            metadata=k8s.meta.v1.ObjectMetaArgs(
                name=identity.service_account,
                namespace=identity.namespace,
                annotations=identity.annotations,
                labels=identity.labels,
            ),
            # A training pod gets no token of the cluster unless it requests one, as SkyPilot's pods do. A
            # controller needs one, and its chart mounts none.
            automount_service_account_token=role != "training",
            opts=pulumi.ResourceOptions(parent=self, delete_before_replace=True),
        )

    def _launchers(self, platform: Platform, features: LayerFeatures) -> None:
        options = pulumi.ResourceOptions(parent=self, delete_before_replace=True)
        account = k8s.core.v1.ServiceAccount(
            f"{self._spec.name}-account-launcher",
            metadata=k8s.meta.v1.ObjectMetaArgs(name=LAUNCHER_ACCOUNT, namespace=TRAINING_NAMESPACE),
            automount_service_account_token=False,
            opts=options,
        )
        if features.launcher_token:
            self._lasting_token(account)
        launcher = k8s.rbac.v1.SubjectArgs(
            kind="ServiceAccount", name=LAUNCHER_ACCOUNT, namespace=TRAINING_NAMESPACE
        )
        group = k8s.rbac.v1.SubjectArgs(kind="Group", name=LAUNCHERS_GROUP, api_group=RBAC)
        people = [
            k8s.rbac.v1.SubjectArgs(kind=subject.kind, name=subject.name, api_group=RBAC)
            for subject in platform.launchers
        ]
        subjects = [group, launcher, *people]
        trainer = k8s.rbac.v1.SubjectArgs(
            kind="ServiceAccount", name=TRAINING_SERVICE_ACCOUNT, namespace=TRAINING_NAMESPACE
        )
        self._role("launcher", "trainfleet-launcher", LAUNCHER_RULES, subjects, options)
        # NOTE: not for the account itself, whose tokens would then renew themselves for ever.
        self._role("launcher-login", "trainfleet-launcher-login", LOGIN_RULES, [group, *people], options)
        limit = limit_pod_changes(self._spec.name, options)
        self._role("training-pod", "trainfleet-training-pod", POD_RULES, [trainer], _after(options, limit))
        everywhere = k8s.meta.v1.ObjectMetaArgs(name="trainfleet-launcher")
        reader = k8s.rbac.v1.ClusterRole(
            f"{self._spec.name}-launcher-reader",
            metadata=everywhere,
            rules=_rules(CLUSTER_RULES),
            opts=options,
        )
        k8s.rbac.v1.ClusterRoleBinding(
            f"{self._spec.name}-launcher-readers",
            metadata=everywhere,
            subjects=subjects,
            role_ref=_reference("ClusterRole", "trainfleet-launcher"),
            opts=_after(options, reader),
        )

    def _lasting_token(self, account: k8s.core.v1.ServiceAccount) -> None:
        k8s.core.v1.Secret(
            f"{self._spec.name}-launcher-token",
            # The cluster writes the token into the object, so the state has an empty secret.
            metadata=k8s.meta.v1.ObjectMetaArgs(
                name=LAUNCHER_TOKEN,
                namespace=TRAINING_NAMESPACE,
                annotations={"kubernetes.io/service-account.name": LAUNCHER_ACCOUNT},
            ),
            type="kubernetes.io/service-account-token",
            opts=pulumi.ResourceOptions(parent=self, depends_on=[account], delete_before_replace=True),
        )

    def _role(
        self,
        what: str,
        name: str,
        rules: tuple[Rule, ...],
        subjects: Subjects,
        options: pulumi.ResourceOptions,
    ) -> None:
        """A role of the training namespace, bound to its subjects."""
        metadata = k8s.meta.v1.ObjectMetaArgs(name=name, namespace=TRAINING_NAMESPACE)
        role = k8s.rbac.v1.Role(
            f"{self._spec.name}-{what}", metadata=metadata, rules=_rules(rules), opts=options
        )
        k8s.rbac.v1.RoleBinding(
            f"{self._spec.name}-{what}s",
            metadata=metadata,
            subjects=subjects,
            role_ref=_reference("Role", name),
            opts=_after(options, role),
        )


def _rules(rules: tuple[Rule, ...]) -> list[k8s.rbac.v1.PolicyRuleArgs]:
    return [
        k8s.rbac.v1.PolicyRuleArgs(
            api_groups=[group], resources=resources, verbs=verbs, resource_names=RULE_NAMES.get(resources[0])
        )
        for group, resources, verbs in rules
    ]


def _reference(kind: str, name: str) -> k8s.rbac.v1.RoleRefArgs:
    return k8s.rbac.v1.RoleRefArgs(api_group=RBAC, kind=kind, name=name)


def _after(options: pulumi.ResourceOptions, role: pulumi.Resource) -> pulumi.ResourceOptions:
    return pulumi.ResourceOptions.merge(options, pulumi.ResourceOptions(depends_on=[role]))
