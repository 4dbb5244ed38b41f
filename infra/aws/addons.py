"""AddOns: the EKS add-ons of a cluster, pinned per Kubernetes version, some before the first node and some
after.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pulumi
import pulumi_aws as aws

from trainfleet.errors import InputError, Problem
from trainfleet.infra.aws.identity import Identity
from trainfleet.infra.component import PlatformComponent
from trainfleet.infra.spec.schema import PlatformSpec

VERSIONS: dict[str, dict[str, str]] = {
    "1.33": {"kube-proxy": "v1.33.5-eksbuild.2", "coredns": "v1.12.4-eksbuild.1"},
    "1.34": {"kube-proxy": "v1.34.1-eksbuild.2", "coredns": "v1.12.4-eksbuild.1"},
    "1.35": {"kube-proxy": "v1.35.0-eksbuild.2", "coredns": "v1.13.2-eksbuild.1"},
    "1.36": {
        "kube-proxy": "v1.36.0-eksbuild.25",
        "coredns": "v1.14.3-eksbuild.23",
        "vpc-cni": "v1.22.4-eksbuild.3",
        "aws-ebs-csi-driver": "v1.66.0-eksbuild.1",
        "eks-node-monitoring-agent": "v1.7.2-eksbuild.1",
        "metrics-server": "v0.9.0-eksbuild.11",
    },
}
"""Add-ons that follow the Kubernetes version (EKS user guide, kube-proxy and CoreDNS version tables; for 1.36
the builds that running clusters of that version report).
"""
COMMON_VERSIONS = {
    "vpc-cni": "v1.21.1-eksbuild.1",
    "eks-pod-identity-agent": "v1.3.10-eksbuild.1",
    "aws-ebs-csi-driver": "v1.53.0-eksbuild.1",
    "eks-node-monitoring-agent": "v1.4.2-eksbuild.1",
    "metrics-server": "v0.8.0-eksbuild.5",
    "aws-fsx-csi-driver": "v1.8.0-eksbuild.2",
}
BEFORE_NODES = ("vpc-cni", "kube-proxy", "eks-pod-identity-agent")


def version(kubernetes: str, addon: str) -> str:
    """The pinned version of an add-on.

    Raises:
        InputError: no add-ons are pinned for this Kubernetes version.
    """
    if kubernetes not in VERSIONS:
        problem = Problem(
            "kubernetes.version",
            f"no add-on versions are pinned for {kubernetes} on AWS",
            f"known: {', '.join(VERSIONS)}",
        )
        raise InputError("the cluster cannot be planned", [problem])
    return {**COMMON_VERSIONS, **VERSIONS[kubernetes]}[addon]


def names(spec: PlatformSpec) -> tuple[str, ...]:
    """All add-ons of a platform, those before nodes first."""
    after = ("coredns", "aws-ebs-csi-driver", "metrics-server")
    watched = ("eks-node-monitoring-agent",) if spec.layer.node_problems else ()
    shared = ("aws-fsx-csi-driver",) if spec.storage.shared_filesystem else ()
    return (*BEFORE_NODES, *after, *watched, *shared)


def configuration(addon: str, tags: dict[str, str]) -> dict[str, Any]:
    """Settings of an add-on that differ from its defaults."""
    if addon == "vpc-cni":
        return {
            # Sixteen addresses per slot: a GPU node fits as many pods as its memory allows, with few
            # calls to EC2.
            "env": {"ENABLE_PREFIX_DELEGATION": "true", "WARM_PREFIX_TARGET": "1"},
            # NOTE: without this, a NetworkPolicy is accepted and never enforced.
            "enableNetworkPolicy": "true",
        }
    if addon == "aws-ebs-csi-driver":
        return {
            "controller": {"extraVolumeTags": {key: value for key, value in tags.items() if key != "Name"}}
        }
    if addon == "eks-node-monitoring-agent":
        # GPU nodes are tainted.
        return {"nodeAgent": {"tolerations": [{"operator": "Exists"}]}}
    return {}


ROLES = {"vpc-cni": "cni", "aws-ebs-csi-driver": "csi-disk", "aws-fsx-csi-driver": "csi-shared"}


class AddOns(PlatformComponent):
    """Some of a cluster's add-ons, by name."""

    TYPE = "trainfleet:aws:AddOns"

    def __init__(
        self,
        spec: PlatformSpec,
        what: str,
        cluster: aws.eks.Cluster,
        identity: Identity,
        requested: Iterable[str],
        *,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(spec, what, opts)
        self.installed: list[pulumi.Resource] = []
        for addon in requested:
            settings = configuration(addon, self.tags(addon))
            pods = identity.pods[ROLES[addon]] if addon in ROLES else None
            self.installed.append(
                aws.eks.Addon(
                    self.name(addon),
                    cluster_name=cluster.name,
                    addon_name=addon,
                    addon_version=version(spec.kubernetes.version, addon),
                    configuration_values=json.dumps(settings, sort_keys=True) if settings else None,
                    pod_identity_associations=[
                        {"role_arn": pods.role.arn, "service_account": pods.service_account}
                    ]
                    if pods
                    else None,
                    resolve_conflicts_on_create="OVERWRITE",
                    resolve_conflicts_on_update="OVERWRITE",
                    tags=self.tags(addon),
                    opts=self.options(depends_on=identity.ready),
                )
            )
        self.register_outputs({})
