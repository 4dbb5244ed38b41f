"""Identity: the IAM roles of a platform with least privilege, and which pods may assume them.

Pods get their roles by EKS Pod Identity; nodes hold no permissions of workloads. EKS cleans up with a role's
policies, so users of a role depend on `ready`.
"""

from __future__ import annotations

from dataclasses import dataclass

import pulumi
import pulumi_aws as aws

from trainfleet.infra.aws import iam_documents, layout, permissions
from trainfleet.infra.aws.keys import Keys
from trainfleet.infra.component import PlatformComponent
from trainfleet.infra.platform import (
    LOGS_NAMESPACE,
    LOGS_SERVICE_ACCOUNT,
    TRAINING_NAMESPACE,
    TRAINING_SERVICE_ACCOUNT,
)
from trainfleet.infra.spec.schema import PlatformSpec


@dataclass(frozen=True)
class PodIdentity:
    """A role for the pods of one service account."""

    namespace: str
    service_account: str
    role: aws.iam.Role


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
        cluster = layout.cluster_name(spec)
        self.cluster_arn = iam_documents.arn(
            "arn:", self.partition, ":eks:", spec.region, ":", account, f":cluster/{cluster}"
        )
        self.ready: list[pulumi.Resource] = []
        """NOTE: the policies. A cluster or node can neither start nor be cleaned up without them."""
        self.cluster_role = self._role("cluster", iam_documents.trust_service("eks.amazonaws.com"))
        self._managed("cluster", self.cluster_role, "AmazonEKSClusterPolicy")
        self._inline("cluster-secrets", self.cluster_role, permissions.cluster_secrets(keys.cluster.arn))
        self.node_role = self._role("node", iam_documents.trust_service("ec2.amazonaws.com"))
        # The CNI's permissions belong to its own pods. Session Manager replaces SSH.
        for managed in (
            "AmazonEKSWorkerNodePolicy",
            "AmazonEC2ContainerRegistryPullOnly",
            "AmazonSSMManagedInstanceCore",
        ):
            self._managed("node", self.node_role, managed)
        self.hyperpod_role = (
            self._hyperpod(keys, account, bucket_arn)
            if any(pool.kind == "hyperpod" for pool in spec.gpu_pools)
            else None
        )
        self.pods = {
            "cni": self._pods("cni", "kube-system", "aws-node", managed="AmazonEKS_CNI_Policy"),
            "csi-disk": self._pods(
                "csi-disk",
                "kube-system",
                "ebs-csi-controller-sa",
                managed="service-role/AmazonEBSCSIDriverPolicy",
                inline=permissions.encrypted_volumes(keys.nodes.arn),
            ),
            "autoscaler": self._pods(
                "autoscaler",
                "kube-system",
                "cluster-autoscaler",
                inline=permissions.autoscaler(self.partition, spec.region, account, cluster),
            ),
            "training": self._pods(
                "training",
                TRAINING_NAMESPACE,
                TRAINING_SERVICE_ACCOUNT,
                inline=permissions.training(bucket_arn, keys.data.arn, spec.region),
            ),
        }
        self._optional_pods(keys, secret_arns, logs_arn)
        self.register_outputs({})

    def _optional_pods(
        self, keys: Keys, secret_arns: list[pulumi.Output[str]], logs_arn: pulumi.Output[str] | None
    ) -> None:
        spec = self.spec
        if spec.storage.shared_filesystem:
            self.pods["csi-shared"] = self._pods(
                "csi-shared", "kube-system", "fsx-csi-controller-sa", inline=permissions.shared_volume()
            )
        if secret_arns:
            self.pods["secrets"] = self._pods(
                "secrets",
                "external-secrets",
                "external-secrets",
                inline=permissions.read_secrets(secret_arns, keys.data.arn, spec.region),
            )
        if logs_arn is not None:
            self.pods["logs"] = self._pods(
                "logs", LOGS_NAMESPACE, LOGS_SERVICE_ACCOUNT, inline=permissions.write_logs(logs_arn)
            )

    def _role(self, what: str, trust: iam_documents.Document) -> aws.iam.Role:
        return aws.iam.Role(
            self.name(f"{what}-role"),
            assume_role_policy=iam_documents.to_json(trust),
            description=f"Trainfleet {self.spec.name}: {what}",
            tags=self.tags(f"{what}-role"),
            opts=self.options(),
        )

    def _hyperpod(
        self, keys: Keys, account: pulumi.Input[str], bucket_arn: pulumi.Input[str]
    ) -> aws.iam.Role:
        """The execution role of HyperPod's nodes."""
        role = self._role("hyperpod", iam_documents.trust_service("sagemaker.amazonaws.com"))
        for managed in ("AmazonSageMakerClusterInstanceRolePolicy", "AmazonEC2ContainerRegistryPullOnly"):
            self._managed("hyperpod", role, managed)
        rights = permissions.hyperpod_node(
            self.partition,
            self.spec.region,
            account,
            self.cluster_arn,
            bucket_arn=bucket_arn,
            keys=[keys.data.arn, keys.nodes.arn],
        )
        self._inline("hyperpod-rights", role, rights)
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

    def _pods(
        self,
        what: str,
        namespace: str,
        account: str,
        *,
        managed: str = "",
        inline: iam_documents.Document | None = None,
    ) -> PodIdentity:
        role = self._role(what, iam_documents.trust_pods(self.cluster_arn, namespace, account))
        if managed:
            self._managed(what, role, managed)
        if inline:
            self._inline(f"{what}-rights", role, inline)
        return PodIdentity(namespace, account, role)


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
