"""Cluster: the GKE control plane and who may reach it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pulumi
import pulumi_gcp as gcp
import pulumi_kubernetes as k8s

from trainfleet.infra.component import PlatformComponent
from trainfleet.infra.gcp import layout
from trainfleet.infra.gcp import network as ranges
from trainfleet.infra.gcp.foundation import Foundation
from trainfleet.infra.gcp.logs import cluster_logs
from trainfleet.infra.spec.schema import PlatformSpec

CONTROL_PLANE_LOGS = ("APISERVER", "CONTROLLER_MANAGER", "SCHEDULER")
METRICS = (
    "SYSTEM_COMPONENTS",
    "APISERVER",
    "CONTROLLER_MANAGER",
    "SCHEDULER",
    "STORAGE",
    "POD",
    "DAEMONSET",
    "DEPLOYMENT",
    "STATEFULSET",
    "HPA",
    "CADVISOR",
    "KUBELET",
)
GPU_METRICS = "DCGM"
WINDOW: gcp.container.ClusterMaintenancePolicyRecurringWindowArgsDict = {
    "start_time": "2026-01-03T01:00:00Z",
    "end_time": "2026-01-03T09:00:00Z",
    "recurrence": "FREQ=WEEKLY;BYDAY=SA,SU",
}
"""Upgrades happen in the nights to Saturday and Sunday. GKE requires 48 hours in 32 days; these are at least
64.
"""

RBAC_BINDINGS: gcp.container.ClusterRbacBindingConfigArgsDict = {
    "enable_insecure_binding_system_authenticated": False,
    "enable_insecure_binding_system_unauthenticated": False,
}
NODE_POOL_DEFAULTS: gcp.container.ClusterNodePoolDefaultsArgsDict = {
    "node_config_defaults": {
        "gcfs_config": {"enabled": True},
        "insecure_kubelet_readonly_port_enabled": "FALSE",
        "logging_variant": "DEFAULT",
    }
}


def logged(spec: PlatformSpec) -> list[str]:
    """The components that GKE logs."""
    return ["SYSTEM_COMPONENTS", *(("WORKLOADS",) if spec.layer.logs else ()), *CONTROL_PLANE_LOGS]


def measured(spec: PlatformSpec) -> list[str]:
    """The components that GKE monitors."""
    if not spec.monitoring.enabled:
        return ["SYSTEM_COMPONENTS"]
    return [*METRICS, *((GPU_METRICS,) if spec.layer.gpu_metrics else ())]


def allowed(spec: PlatformSpec) -> list[gcp.container.ClusterMasterAuthorizedNetworksConfigCidrBlockArgsDict]:
    """Ranges that may reach the control plane's addresses: this network, and those of the spec."""
    access = spec.kubernetes.access
    named = [
        (str(spec.network.cidr), "platform"),
        *((str(cidr), f"allowed-{index}") for index, cidr in enumerate(access.public_ranges)),
        *((str(cidr), f"hub-{index}") for index, cidr in enumerate(access.private_ranges)),
    ]
    return [{"cidr_block": cidr, "display_name": name} for cidr, name in named]


def add_ons(spec: PlatformSpec) -> gcp.container.ClusterAddonsConfigArgsDict:
    """The add-ons of GKE."""
    shared = spec.storage.shared_filesystem
    return {
        "gce_persistent_disk_csi_driver_config": {"enabled": True},
        "gcs_fuse_csi_driver_config": {"enabled": True},
        "gcp_filestore_csi_driver_config": {"enabled": shared is not None and shared.kind == "nfs"},
        "lustre_csi_driver_config": {"enabled": shared is not None and shared.kind == "lustre"},
        "horizontal_pod_autoscaling": {"disabled": False},
        "http_load_balancing": {"disabled": False},
        "dns_cache_config": {"enabled": False},
        # The layer installs the same KubeRay on every cloud. NOTE: two operators conflict over their
        # definitions.
        "ray_operator_configs": [{"enabled": False}],
    }


def monitoring(spec: PlatformSpec) -> gcp.container.ClusterMonitoringConfigArgsDict:
    """What GKE monitors."""
    return {
        "enable_components": measured(spec),
        "managed_prometheus": {"enabled": spec.monitoring.enabled},
        "advanced_datapath_observability_config": {
            "enable_metrics": spec.monitoring.enabled,
            "enable_relay": False,
        },
    }


def authorized_networks(spec: PlatformSpec) -> gcp.container.ClusterMasterAuthorizedNetworksConfigArgsDict:
    """Who may reach the control plane."""
    return {
        "cidr_blocks": allowed(spec),
        "gcp_public_cidrs_access_enabled": False,
        "private_endpoint_enforcement_enabled": True,
    }


def private_cluster(spec: PlatformSpec) -> gcp.container.ClusterPrivateClusterConfigArgsDict:
    """A public address requires ranges. Clients of another region need global access."""
    access = spec.kubernetes.access
    return {
        "enable_private_nodes": True,
        "enable_private_endpoint": not access.public_ranges,
        "master_global_access_config": {"enabled": bool(access.private_ranges)},
    }


def ip_ranges(secondary: Mapping[str, str]) -> gcp.container.ClusterIpAllocationPolicyArgsDict:
    """The subnet's secondary ranges of pods and services."""
    return {
        "cluster_secondary_range_name": secondary[ranges.PODS],
        "services_secondary_range_name": secondary[ranges.SERVICES],
    }


def dns_endpoint(spec: PlatformSpec) -> gcp.container.ClusterControlPlaneEndpointsConfigArgsDict:
    """The DNS endpoint, which ranges do not limit."""
    return {"dns_endpoint_config": {"allow_external_traffic": layout.uses_dns_endpoint(spec)}}


def groups(spec: PlatformSpec) -> gcp.container.ClusterAuthenticatorGroupsConfigArgsDict | None:
    """Groups in RBAC bindings, if the spec names any."""
    group = layout.security_group(spec)
    return {"security_group": group} if group else None


def first_nodes(foundation: Foundation) -> gcp.container.ClusterNodeConfigArgsDict:
    """The nodes of the initial pool. Without these settings they would have Compute Engine's default service
    account, which a project may have disabled (hashicorp/terraform-provider-google#4435), and disks without
    the platform's key, which organization policies deny (gcp.restrictNonCmekServices).
    """
    return {
        "service_account": foundation.identity.nodes.email,
        "oauth_scopes": ["https://www.googleapis.com/auth/cloud-platform"],
        "boot_disk_kms_key": foundation.keys.nodes.id,
        "shielded_instance_config": {"enable_secure_boot": True, "enable_integrity_monitoring": True},
        "workload_metadata_config": {"mode": "GKE_METADATA"},
    }


class Cluster(PlatformComponent):
    """The control plane of a platform."""

    TYPE = "trainfleet:gcp:Cluster"

    def __init__(
        self,
        spec: PlatformSpec,
        foundation: Foundation,
        *,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(spec, "cluster", opts)
        network, identity, keys = foundation.network, foundation.identity, foundation.keys
        fabric = foundation.fabric
        self.cluster_name = layout.cluster_name(spec)
        self.cluster = self._control_plane(foundation)
        self.ready: list[pulumi.Resource] = [*identity.ready, *network.ready, *fabric.ready, *keys.ready]
        """Must exist before a node starts and outlive the last one."""
        self.kubeconfig: pulumi.Output[str] = pulumi.Output.json_dumps(
            kubeconfig(layout.kube_context(spec), *self._reached())
        )
        self.register_outputs({"name": self.cluster.name})

    def _reached(self) -> tuple[pulumi.Output[str], pulumi.Output[str] | None]:
        """The address of the API server, and its certificate unless a public authority signs it."""
        if layout.uses_dns_endpoint(self.spec):
            return self.cluster.control_plane_endpoints_config.apply(
                lambda config: require_known(
                    config.dns_endpoint_config.endpoint if config.dns_endpoint_config else None,
                    "DNS endpoint",
                )
            ), None
        return self.cluster.endpoint, self.cluster.master_auth.apply(
            lambda auth: require_known(auth.cluster_ca_certificate, "certificate")
        )

    def _control_plane(self, foundation: Foundation) -> gcp.container.Cluster:
        spec = self.spec
        network, identity, keys = foundation.network, foundation.identity, foundation.keys
        logs = cluster_logs(self, keys, self.cluster_name)
        return gcp.container.Cluster(
            self.name("gke"),
            name=self.cluster_name,
            description=f"Trainfleet {spec.name}",
            location=spec.region,
            node_locations=list(layout.platform_zones(spec)),
            min_master_version=spec.kubernetes.version,
            release_channel={"channel": "REGULAR"},
            maintenance_policy={"recurring_window": WINDOW},
            # GKE requires an initial pool, which is deleted at once.
            remove_default_node_pool=True,
            initial_node_count=1,
            node_config=first_nodes(foundation),
            network=network.vpc.id,
            subnetwork=network.subnet.id,
            networking_mode="VPC_NATIVE",
            ip_allocation_policy=ip_ranges(network.secondary_ranges),
            default_max_pods_per_node=layout.PODS_PER_NODE,
            # Dataplane V2 enforces network policies; GKE rejects `network_policy` in addition.
            datapath_provider="ADVANCED_DATAPATH",
            enable_intranode_visibility=True,
            enable_multi_networking=bool(foundation.fabric.links),
            # The layer's network policies allow kube-dns; Cloud DNS answers from an address that they deny.
            dns_config={"cluster_dns": "KUBE_DNS"},
            private_cluster_config=private_cluster(spec),
            # The DNS endpoint is not limited by ranges: IAM decides (container.clusters.connect).
            control_plane_endpoints_config=dns_endpoint(spec),
            master_authorized_networks_config=authorized_networks(spec),
            master_auth={"client_certificate_config": {"issue_client_certificate": False}},
            enable_legacy_abac=False,
            anonymous_authentication_config={"mode": "LIMITED"},
            rbac_binding_config=RBAC_BINDINGS,
            authenticator_groups_config=groups(spec),
            workload_identity_config={"workload_pool": layout.workload_pool(spec)},
            database_encryption={"state": "ENCRYPTED", "key_name": keys.cluster.id},
            enable_shielded_nodes=True,
            binary_authorization={"evaluation_mode": "PROJECT_SINGLETON_POLICY_ENFORCE"},
            # Images are scanned in the registry; GKE's own scan of workloads was discontinued.
            security_posture_config={"mode": "BASIC", "vulnerability_mode": "VULNERABILITY_DISABLED"},
            addons_config=add_ons(spec),
            node_pool_defaults=NODE_POOL_DEFAULTS,
            # Idle GPU nodes are removed soon; nodes are created only in the pools of the spec.
            cluster_autoscaling={"enabled": False, "autoscaling_profile": "OPTIMIZE_UTILIZATION"},
            logging_config={"enable_components": logged(spec)},
            monitoring_config=monitoring(spec),
            cost_management_config={"enabled": True},
            resource_labels=self.labels("gke"),
            deletion_protection=spec.production,
            # A fixed name cannot exist twice, so a replacement deletes first (which production rejects).
            opts=self.options(
                depends_on=[*logs, *keys.ready, *identity.ready, *network.ready],
                delete_before_replace=True,
                # A change of the initial nodes, which are gone, would replace the cluster (pulumi-gcp#744).
                ignore_changes=["nodeConfig"],
            ),
        )

    def provider(self, depends_on: list[pulumi.Resource]) -> k8s.Provider:
        """The provider of the cluster layer. Its resources are deleted before any of `depends_on`."""
        return k8s.Provider(
            self.name("kubernetes-provider"),
            kubeconfig=self.kubeconfig,
            # NOTE: without an identifier, a new endpoint or certificate would replace every resource of the
            # layer. The id of a cluster that is being replaced is unknown, which is enough.
            cluster_identifier=self.cluster.id,
            enable_server_side_apply=True,
            # NOTE: not delete_unreachable: a refresh from outside a private network would drop the whole
            # layer.
            opts=self.options(depends_on=depends_on),
        )


def kubeconfig(
    context: str, endpoint: pulumi.Input[str], certificate: pulumi.Input[str] | None
) -> dict[str, Any]:
    """A kubeconfig without credentials: gcloud's plugin creates a token for its user."""
    cluster: dict[str, Any] = {"server": pulumi.Output.concat("https://", endpoint)}
    if certificate is not None:
        cluster["certificate-authority-data"] = certificate
    login = {
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "command": "gke-gcloud-auth-plugin",
        "installHint": "gcloud components install gke-gcloud-auth-plugin",
        "provideClusterInfo": True,
        "interactiveMode": "Never",
    }
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": context, "cluster": cluster}],
        "users": [{"name": context, "user": {"exec": login}}],
        "contexts": [{"name": context, "context": {"cluster": context, "user": context}}],
        "current-context": context,
    }


def require_known(value: str | None, what: str) -> str:
    """Return a value that Google always provides. Passing on None would silently drop a property."""
    if not value:
        raise LookupError(f"GKE did not report the cluster's {what}")
    return value
