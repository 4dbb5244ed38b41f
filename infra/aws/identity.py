"""Identity: the IAM roles of a platform with least privilege, and which pods may assume them.

Pods get their roles by EKS Pod Identity; nodes hold no permissions of workloads. EKS cleans up with a role's
policies, so users of a role depend on `ready`.
"""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from trainfleet.infra.aws import iam_documents, layout, roles
from trainfleet.infra.aws.keys import Keys
from trainfleet.infra.component import PlatformComponent
from trainfleet.infra.spec.schema import PlatformSpec

CREATED_NAMES = {"nodes": "node"}
"""Names of created roles that differ from the purpose."""


@dataclass(frozen=True)
class ExistingRole:
    """A role that the platform uses and does not manage."""

    arn: pulumi.Output[str]


Role = aws.iam.Role | ExistingRole


@dataclass(frozen=True)
class PodIdentity:
    """A role for the pods of one service account."""

    namespace: str
    service_account: str
    role: Role


class Identity(PlatformComponent):
    """The roles of a platform: `cluster_role`, `node_role`, `hyperpod_role` where a pool needs it and, by
    purpose, `pods`.
    """

    TYPE = "trainfleet:aws:Identity"

    def __init__(
        self,
        spec: PlatformSpec,
        keys: Keys,
        account: pulumi.Input[str],
        bucket_arn: pulumi.Input[str],
        secret_arns: list[pulumi.Output[str]],
        *,
        logs_arn: pulumi.Output[str] | None = None,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(spec, "identity", opts)
        self.partition = layout.partition(spec.region)
        self.ready: list[pulumi.Resource] = []
        """NOTE: the policies. A cluster or node can neither start nor be cleaned up without them."""
        documents = roles.documents(
            spec,
            roles.PolicyResources(
                account=account,
                bucket=bucket_arn,
                cluster_key=keys.cluster.arn,
                nodes_key=keys.nodes.arn,
                data_key=keys.data.arn,
                secrets=[*secret_arns],
                pod_logs=logs_arn,
            ),
        )
        found = {purpose: self._role(purpose, each) for purpose, each in documents.items()}
        self.cluster_role, self.node_role = found["cluster"], found["nodes"]
        self.hyperpod_role = found.get("hyperpod")
        self.pods = {
            purpose: PodIdentity(*each.service_account, found[purpose])
            for purpose, each in documents.items()
            if each.service_account
        }
        self.register_outputs({})

    def _role(self, purpose: str, documents: roles.RoleDocuments) -> Role:
        if self.spec.identities.existing:
            return ExistingRole(pulumi.Output.from_input(self.spec.identities.existing[purpose]))
        what = CREATED_NAMES.get(purpose, purpose)
        role = aws.iam.Role(
            self.name(f"{what}-role"),
            assume_role_policy=iam_documents.to_json(documents.trust),
            description=f"Trainfleet {self.spec.name}: {what}",
            permissions_boundary=self.spec.identities.permission_boundary or None,
            tags=self.tags(f"{what}-role"),
            opts=self.options(),
        )
        for managed in documents.managed:
            self._managed(what, role, managed)
        if documents.inline:
            self._inline("cluster-secrets" if what == "cluster" else f"{what}-rights", role, documents.inline)
        return role

    def _managed(self, what: str, role: aws.iam.Role, managed: str) -> None:
        name = f"{what}-{managed.rsplit('/', maxsplit=1)[-1]}"
        self.ready.append(
            aws.iam.RolePolicyAttachment(
                self.name(name),
                role=role.name,
                policy_arn=f"arn:{self.partition}:iam::aws:policy/{managed}",
                opts=self.options(),
            )
        )

    def _inline(self, what: str, role: aws.iam.Role, document: iam_documents.Document) -> None:
        self.ready.append(
            aws.iam.RolePolicy(
                self.name(what),
                role=role.name,
                policy=iam_documents.to_json(document),
                opts=self.options(),
            )
        )


class PodIdentities(PlatformComponent):
    """Bind the roles of workloads to their service accounts. Add-ons bind their own."""

    TYPE = "trainfleet:aws:PodIdentities"

    BOUND = ("training", "autoscaler", "secrets", "logs")

    def __init__(
        self,
        spec: PlatformSpec,
        cluster: aws.eks.Cluster,
        identity: Identity,
        *,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(spec, "pod-identities", opts)
        self.bound = {purpose: identity.pods[purpose] for purpose in self.BOUND if purpose in identity.pods}
        self.ready: list[pulumi.Resource] = []
        """NOTE: a pod that starts before its association never gets its role."""
        for purpose, pods in self.bound.items():
            self.ready.append(
                aws.eks.PodIdentityAssociation(
                    self.name(f"{purpose}-identity"),
                    cluster_name=cluster.name,
                    namespace=pods.namespace,
                    service_account=pods.service_account,
                    role_arn=pods.role.arn,
                    tags=self.tags(f"{purpose}-identity"),
                    opts=self.options(depends_on=identity.ready),
                )
            )
        self.register_outputs({})
