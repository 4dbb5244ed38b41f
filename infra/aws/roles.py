"""The roles of a platform by purpose: whom each trusts, and what it is allowed to do.

The platform creates them (identity.py, network.py), or uses roles that exist (`identities.existing`) and were
created with the same documents: `trainfleet spec identities`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pulumi

from trainfleet.infra.aws import layout, permissions
from trainfleet.infra.aws.iam_documents import Document, Statement, arn, trust_pods, trust_service
from trainfleet.infra.platform import (
    LOGS_NAMESPACE,
    LOGS_SERVICE_ACCOUNT,
    TRAINING_NAMESPACE,
    TRAINING_SERVICE_ACCOUNT,
)
from trainfleet.infra.spec.schema import PlatformSpec

FLOW_LOGS = "flow-logs"


@dataclass(frozen=True, kw_only=True)
class RoleDocuments:
    """The documents of one role."""

    trust: Document
    managed: tuple[str, ...] = ()
    """Names of AWS's own policies."""
    inline: Document | None = None
    service_account: tuple[str, str] | None = None
    """Namespace and name, if pods take the role."""


@dataclass(frozen=True, kw_only=True)
class PolicyResources:
    """The ARNs that the policies name."""

    account: pulumi.Input[str]
    bucket: pulumi.Input[str]
    cluster_key: pulumi.Input[str]
    nodes_key: pulumi.Input[str]
    data_key: pulumi.Input[str]
    secrets: list[pulumi.Input[str]]
    pod_logs: pulumi.Input[str] | None


def cluster_arn(spec: PlatformSpec, account: pulumi.Input[str]) -> pulumi.Input[str]:
    """The ARN of the platform's cluster, known before the cluster exists."""
    partition, cluster = layout.partition(spec.region), layout.cluster_name(spec)
    return arn("arn:", partition, ":eks:", spec.region, ":", account, f":cluster/{cluster}")


def documents(spec: PlatformSpec, has: PolicyResources) -> dict[str, RoleDocuments]:
    """The documents by purpose, for all roles but that of flow logs."""
    found = {
        "cluster": RoleDocuments(
            trust=trust_service("eks.amazonaws.com"),
            managed=("AmazonEKSClusterPolicy",),
            inline=permissions.cluster_secrets(has.cluster_key),
        ),
        "nodes": RoleDocuments(
            trust=trust_service("ec2.amazonaws.com"),
            # The CNI's permissions belong to its own pods. Session Manager replaces SSH.
            managed=(
                "AmazonEKSWorkerNodePolicy",
                "AmazonEC2ContainerRegistryPullOnly",
                "AmazonSSMManagedInstanceCore",
            ),
        ),
        **_pods(spec, has),
    }
    if any(pool.kind == "hyperpod" for pool in spec.gpu_pools):
        found["hyperpod"] = _hyperpod(spec, has)
    return {purpose: found[purpose] for purpose in layout.role_purposes(spec) if purpose in found}


def flow_logs(account: pulumi.Input[str], group_arn: pulumi.Input[str]) -> RoleDocuments:
    """The role under which the VPC writes its flow log."""
    only_own = {"StringEquals": {"aws:SourceAccount": account}}
    return RoleDocuments(
        trust=trust_service("vpc-flow-logs.amazonaws.com", only_own), inline=permissions.flow_logs(group_arn)
    )


def rights(spec: PlatformSpec) -> dict[str, Mapping[str, Any]]:
    """The documents of the roles that this platform needs, with names as the platform will choose them."""
    partition, account = layout.partition(spec.region), spec.account or "ACCOUNT"
    here = f"{spec.region}:{account}"
    logs = f"arn:{partition}:logs:{here}:log-group:{spec.name}"
    has = PolicyResources(
        account=account,
        bucket=f"arn:{partition}:s3:::{spec.name}-bucket-*",
        cluster_key=layout.key_alias(spec, "cluster"),
        nodes_key=layout.key_alias(spec, "nodes"),
        data_key=layout.key_alias(spec, "data"),
        # AWS adds six characters to a secret's name.
        secrets=[
            f"arn:{partition}:secretsmanager:{here}:secret:{layout.secret_name(spec, name)}-??????"
            for name in spec.secrets.names
        ],
        pod_logs=f"{logs}-pod-logs-*",
    )
    known = documents(spec, has) | {FLOW_LOGS: flow_logs(account, f"{logs}-flow-logs-*")}
    keys = f"arn:{partition}:kms:{here}:key/*"
    return {
        purpose: {
            "trust": known[purpose].trust,
            "managed_policies": [
                f"arn:{partition}:iam::aws:policy/{name}" for name in known[purpose].managed
            ],
            "policy": _by_alias(known[purpose].inline, keys),
        }
        for purpose in layout.role_purposes(spec)
    }


def _pods(spec: PlatformSpec, has: PolicyResources) -> dict[str, RoleDocuments]:
    def pods(
        namespace: str, account: str, managed: str = "", inline: Document | None = None
    ) -> RoleDocuments:
        return RoleDocuments(
            trust=trust_pods(cluster_arn(spec, has.account), namespace, account),
            managed=(managed,) if managed else (),
            inline=inline,
            service_account=(namespace, account),
        )

    scale = permissions.autoscaler(
        layout.partition(spec.region), spec.region, has.account, layout.cluster_name(spec)
    )
    train = permissions.training(has.bucket, has.data_key, spec.region)
    read = permissions.read_secrets(has.secrets, has.data_key, spec.region)
    found = {
        "cni": pods("kube-system", "aws-node", "AmazonEKS_CNI_Policy"),
        "csi-disk": pods(
            "kube-system",
            "ebs-csi-controller-sa",
            "service-role/AmazonEBSCSIDriverPolicy",
            permissions.encrypted_volumes(has.nodes_key),
        ),
        "autoscaler": pods("kube-system", "cluster-autoscaler", inline=scale),
        "training": pods(TRAINING_NAMESPACE, TRAINING_SERVICE_ACCOUNT, inline=train),
        "csi-shared": pods("kube-system", "fsx-csi-controller-sa", inline=permissions.shared_volume()),
        "secrets": pods("external-secrets", "external-secrets", inline=read),
    }
    if has.pod_logs is not None:
        write = permissions.write_logs(has.pod_logs)
        found["logs"] = pods(LOGS_NAMESPACE, LOGS_SERVICE_ACCOUNT, inline=write)
    return found


def _hyperpod(spec: PlatformSpec, has: PolicyResources) -> RoleDocuments:
    """The execution role of HyperPod's nodes."""
    return RoleDocuments(
        trust=trust_service("sagemaker.amazonaws.com"),
        managed=("AmazonSageMakerClusterInstanceRolePolicy", "AmazonEC2ContainerRegistryPullOnly"),
        inline=permissions.hyperpod_node(
            layout.partition(spec.region),
            spec.region,
            has.account,
            cluster_arn(spec, has.account),
            bucket_arn=has.bucket,
            keys=[has.data_key, has.nodes_key],
        ),
    )


def _by_alias(policy: Document | None, keys: str) -> Document | None:
    """The policy with keys named by alias, because their ids are not known before they exist."""
    if policy is None:
        return None
    return {**policy, "Statement": [_key_by_alias(each, keys) for each in policy["Statement"]]}


def _key_by_alias(statement: Statement, keys: str) -> Statement:
    names = statement["Resource"]
    if not names[0].startswith("alias/"):
        return statement
    named = {"ForAnyValue:StringEquals": {"kms:ResourceAliases": names}}
    return {**statement, "Resource": [keys], "Condition": {**statement.get("Condition", {}), **named}}
