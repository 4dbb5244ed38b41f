"""Cluster: the EKS control plane, who may administer it or launch on it, and the add-ons that nodes need to
start.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from ipaddress import IPv4Network
from typing import Any

import pulumi
import pulumi_aws as aws
import pulumi_kubernetes as k8s

from trainfleet.infra.aws import addons, layout
from trainfleet.infra.aws.asg_lookup import ScalingGroups
from trainfleet.infra.aws.foundation import Foundation
from trainfleet.infra.aws.keys import Keys
from trainfleet.infra.component import PlatformComponent
from trainfleet.infra.platform import LAUNCHERS_GROUP
from trainfleet.infra.spec.schema import PlatformSpec

LOG_TYPES = ("api", "audit", "authenticator", "controllerManager", "scheduler")


class Cluster(PlatformComponent):
    """The control plane of a platform."""

    TYPE = "trainfleet:aws:Cluster"

    def __init__(
        self,
        spec: PlatformSpec,
        foundation: Foundation,
        *,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(spec, "cluster", opts)
        network, identity = foundation.network, foundation.identity
        self.cluster_name = layout.cluster_name(spec)
        self.scaling_groups = ScalingGroups(self.cluster_name)
        self.cluster = self._control_plane(foundation)
        self.security_group_id = self.cluster.vpc_config.apply(
            lambda vpc: require_known(vpc.cluster_security_group_id, "security group")
        )
        """The group that EKS attaches to the control plane and nodes; open among its members."""
        self.access: list[pulumi.Resource] = [self._admin(principal) for principal in spec.kubernetes.admins]
        self.access += [self._client(cidr) for cidr in spec.kubernetes.access.private_ranges]
        """Must exist before the cluster layer is installed."""
        for principal in spec.kubernetes.launchers:
            self._entry("launcher", principal, [LAUNCHERS_GROUP])
        early = addons.AddOns(
            spec,
            "addons-before-nodes",
            self.cluster,
            identity,
            addons.BEFORE_NODES,
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.ready: list[pulumi.Resource] = [*early.installed, *identity.ready, *network.ready]
        """Must exist before a node starts and outlive the last one."""
        self.kubeconfig = self._kubeconfig()
        """For people and launchers, who log in with their own credentials."""
        self.register_outputs({"name": self.cluster.name})

    def _kubeconfig(self, *arguments: str) -> pulumi.Output[str]:
        certificate = self.cluster.certificate_authority.apply(
            lambda ca: require_known(ca.data, "certificate")
        )
        return pulumi.Output.json_dumps(
            kubeconfig(self.cluster_name, self.spec.region, self.cluster.endpoint, certificate, *arguments)
        )

    def _client(self, cidr: IPv4Network) -> pulumi.Resource:
        """A range behind the hub that may reach the API server (EKS user guide, cluster endpoint access)."""
        what = f"client-{str(cidr).replace('/', '-')}"
        return aws.vpc.SecurityGroupIngressRule(
            self.name(what),
            security_group_id=self.security_group_id,
            description="API server",
            ip_protocol="tcp",
            from_port=443,
            to_port=443,
            cidr_ipv4=str(cidr),
            tags=self.tags(what),
            opts=self.options(),
        )

    def _logs(self, keys: Keys) -> aws.cloudwatch.LogGroup:
        spec = self.spec
        return aws.cloudwatch.LogGroup(
            self.name("cluster-logs"),
            # EKS writes to this name. The group must exist first, or EKS creates one that never expires.
            name=f"/aws/eks/{self.cluster_name}/cluster",
            retention_in_days=layout.log_retention(spec.kubernetes.log_retention_days),
            kms_key_id=keys.logs.arn,
            tags=self.tags("cluster-logs"),
            # NOTE: has the audit log. Before a platform of this name is created again, import or delete it.
            opts=self.options(retain=True, delete_before_replace=True),
        )

    def _control_plane(self, foundation: Foundation) -> aws.eks.Cluster:
        spec, network = self.spec, foundation.network
        identity, keys = foundation.identity, foundation.keys
        logs = self._logs(keys)
        # NOTE: to AWS, an empty list of ranges means the whole internet, so a public endpoint requires
        # ranges.
        ranges = [str(cidr) for cidr in spec.kubernetes.access.public_ranges]
        return aws.eks.Cluster(
            self.name("eks"),
            name=self.cluster_name,
            role_arn=identity.cluster_role.arn,
            version=spec.kubernetes.version,
            vpc_config={
                "subnet_ids": network.control_plane_subnet_ids(),
                "endpoint_private_access": True,
                "endpoint_public_access": bool(ranges),
                "public_access_cidrs": ranges or None,
            },
            kubernetes_network_config={
                "ip_family": "ipv4",
                "service_ipv4_cidr": layout.service_cidr(spec.network.cidr),
            },
            access_config={
                # Access entries only: one bad edit of an aws-auth map can lock everybody out.
                "authentication_mode": "API",
                # The applier installs the layer on the cluster in the same run. If the spec names
                # administrators, the applier is one of them, and AWS rejects a second entry for one identity;
                # else it is the creator.
                "bootstrap_cluster_creator_admin_permissions": not spec.kubernetes.admins,
            },
            bootstrap_self_managed_addons=False,
            enabled_cluster_log_types=list(LOG_TYPES),
            encryption_config={"provider": {"key_arn": keys.cluster.arn}, "resources": ["secrets"]},
            # Extended support costs six times as much per hour and starts by default.
            upgrade_policy={"support_type": "STANDARD"},
            deletion_protection=spec.production,
            tags=self.tags("eks"),
            # A fixed name cannot exist twice, so a replacement deletes first (which AWS rejects in
            # production).
            opts=self.options(
                depends_on=[logs, *identity.ready, *network.ready],
                delete_before_replace=True,
                # Only for creation: a change would replace the cluster, and naming an administrator must not.
                ignore_changes=["accessConfig.bootstrapClusterCreatorAdminPermissions"],
                # A cluster cannot change its network, and without this the provider reports EKS's error in
                # the middle of an apply. The control plane's subnets are permanent: another first one is
                # another network.
                replace_on_changes=["vpcConfig.subnetIds[0]"],
            ),
        )

    def provider(self, depends_on: list[pulumi.Resource]) -> k8s.Provider:
        """The provider of the cluster layer. Its resources are deleted before any of `depends_on`."""
        return k8s.Provider(
            self.name("kubernetes-provider"),
            kubeconfig=self._kubeconfig(*applier_login(pulumi.Config("aws"))),
            # NOTE: without an identifier, a new endpoint or certificate would replace every resource of the
            # layer. The time of creation distinguishes a new cluster from a changed one.
            cluster_identifier=pulumi.Output.concat(self.cluster_name, "@", self.cluster.created_at),
            enable_server_side_apply=True,
            # NOTE: not delete_unreachable: a refresh from outside a private network would drop the whole
            # layer.
            opts=self.options(depends_on=[*self.access, *depends_on]),
        )

    def _entry(self, kind: str, principal: str, groups: Sequence[str] = ()) -> aws.eks.AccessEntry:
        what = _entry_name(kind, principal)
        return aws.eks.AccessEntry(
            self.name(what),
            cluster_name=self.cluster.name,
            principal_arn=principal,
            type="STANDARD",
            kubernetes_groups=list(groups) or None,
            tags=self.tags(what),
            opts=self.options(),
        )

    def _admin(self, principal: str) -> pulumi.Resource:
        what, entry = _entry_name("admin", principal), self._entry("admin", principal)
        return aws.eks.AccessPolicyAssociation(
            self.name(f"{what}-rights"),
            cluster_name=self.cluster.name,
            principal_arn=entry.principal_arn,
            policy_arn=f"arn:{layout.partition(self.spec.region)}:eks::aws:cluster-access-policy/AmazonEKSClusterAdminPolicy",
            access_scope={"type": "cluster"},
            opts=self.options(),
        )


def _entry_name(kind: str, principal: str) -> str:
    """By principal, so that the order in the spec does not matter."""
    return f"{kind}-{hashlib.sha256(principal.encode()).hexdigest()[:8]}"


def applier_login(config: pulumi.Config) -> list[str]:
    """The arguments with which the AWS CLI logs in as the identity of Pulumi's AWS provider, which may have a
    profile and assume roles (`aws:profile`, `aws:assumeRoles`).

    Raises:
        RunError: the provider assumes several roles in a row, which the AWS CLI's token cannot.
    """
    profile = config.get("profile")
    roles = [*(config.get_object("assumeRoles") or ()), config.get_object("assumeRole")]
    arns = [role["roleArn"] for role in roles if isinstance(role, dict) and role.get("roleArn")]
    if len(arns) > 1:
        raise pulumi.RunError(
            "aws:assumeRoles has several roles, and `aws eks get-token` assumes one: write the chain into a"
            " profile of the AWS CLI, and name it in aws:profile"
        )
    return [*(("--profile", profile) if profile else ()), *(("--role-arn", arns[0]) if arns else ())]


def kubeconfig(
    name: str,
    region_name: str,
    endpoint: pulumi.Input[str],
    certificate: pulumi.Input[str],
    *login_arguments: str,
) -> dict[str, Any]:
    """A kubeconfig without credentials: the AWS CLI creates a token for its user."""
    arguments = ["eks", "get-token", "--output", "json", "--cluster-name", name, "--region", region_name]
    arguments += login_arguments
    login = {
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "command": "aws",
        "args": arguments,
        "interactiveMode": "Never",
    }
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": name, "cluster": {"server": endpoint, "certificate-authority-data": certificate}}
        ],
        "users": [{"name": name, "user": {"exec": login}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }


def require_known(value: str | None, what: str) -> str:
    """Return a value that AWS always provides. Passing on None would silently drop a property."""
    if not value:
        raise LookupError(f"EKS did not report the cluster's {what}")
    return value
