"""Cluster: the AKS control plane, who may administer it, when it is upgraded, and the inline pool that AKS
requires.
"""

from __future__ import annotations

import base64
from typing import Any

import pulumi
import pulumi_kubernetes as k8s
import yaml
from pulumi_azure_native import containerservice

from trainfleet.infra.azure import layout, node_config
from trainfleet.infra.azure.foundation import Foundation
from trainfleet.infra.azure.identity import Identity
from trainfleet.infra.azure.keys import Keys
from trainfleet.infra.azure.permissions import grant, once_in_effect
from trainfleet.infra.azure.sizes import INLINE_NODES, INLINE_POOL
from trainfleet.infra.catalog.machines import Machine, system_machine
from trainfleet.infra.component import PlatformComponent, answer_after
from trainfleet.infra.spec.node_groups import node_groups
from trainfleet.infra.spec.schema import PlatformSpec

LOGIN_SERVER = "6dae42f8-4368-4678-94ff-3960e28e3630"
"""The application of every AKS cluster's Entra login: the same in every tenant (kubelogin documentation)."""
MAINTENANCE = {"aksManagedAutoUpgradeSchedule": "Saturday", "aksManagedNodeOSUpgradeSchedule": "Sunday"}
"""The maintenance windows with names that AKS defines (AKS documentation, planned maintenance), and their
day.
"""
MAINTENANCE_HOURS, MAINTENANCE_START = 8, "02:00"
AUTOSCALER: containerservice.ManagedClusterPropertiesAutoScalerProfileArgsDict = {
    "expander": "least-waste",
    "balance_similar_node_groups": "true",
    # System pods must not keep a GPU node; training pods with local scratch must.
    "skip_nodes_with_system_pods": "false",
    "skip_nodes_with_local_storage": "true",
    "scale_down_unneeded_time": "10m",
    # In a busy region, an eight-GPU machine takes longer than the default 15 minutes to start.
    "max_node_provision_time": "30m",
}
STORAGE_DRIVERS: containerservice.ManagedClusterStorageProfileArgsDict = {
    "disk_csi_driver": {"enabled": True},
    "file_csi_driver": {"enabled": True},
    "blob_csi_driver": {"enabled": False},
    "snapshot_controller": {"enabled": True},
}


def autoscaler(
    spec: PlatformSpec,
) -> containerservice.ManagedClusterPropertiesAutoScalerProfileArgsDict:
    """The settings of AKS's autoscaler. It accepts one expander (Azure/AKS#2610), so groups of one priority
    compete at random.
    """
    ordered = any(group.preferences for group in node_groups(spec))
    return {**AUTOSCALER, "expander": "priority"} if ordered else AUTOSCALER


def api_server(
    spec: PlatformSpec, subnet: pulumi.Input[str]
) -> containerservice.ManagedClusterAPIServerAccessProfileArgsDict:
    """Who may reach the control plane."""
    ranges = layout.open_to(spec)
    return {
        "enable_private_cluster": not ranges,
        "private_dns_zone": None if ranges else "system",
        # Clients behind a hub cannot query the private DNS zone. The public name has the private address.
        "enable_private_cluster_public_fqdn": None if ranges else bool(layout.clients(spec)),
        "authorized_ip_ranges": list(ranges) or None,
        # The control plane is in the network: nodes reach it privately, and it reaches its key's vault, which
        # is private. AKS supports no other way to a private vault (AKS documentation, KMS etcd encryption).
        "enable_vnet_integration": True,
        "subnet_id": subnet,
        # `az aks command invoke` is a shell that bypasses the cluster's RBAC.
        "disable_run_command": True,
    }


def network_profile(spec: PlatformSpec) -> containerservice.ContainerServiceNetworkProfileArgsDict:
    """Azure CNI Overlay with Cilium."""
    return {
        "network_plugin": "azure",
        "network_plugin_mode": "overlay",
        "network_dataplane": "cilium",
        "network_policy": "cilium",
        "pod_cidr": layout.pod_cidr(spec.network.cidr),
        "service_cidr": layout.service_cidr(spec.network.cidr),
        "dns_service_ip": layout.dns_address(spec.network.cidr),
        "ip_families": ["IPv4"],
        "load_balancer_sku": "standard",
        "outbound_type": "userAssignedNATGateway",
    }


def security_profile(keys: Keys) -> containerservice.ManagedClusterSecurityProfileArgsDict:
    """Workload identity and encryption of Kubernetes secrets."""
    return {
        "workload_identity": {"enabled": True},
        "azure_key_vault_kms": {
            "enabled": True,
            "key_id": keys.cluster_url,
            "key_vault_resource_id": keys.vault.id,
            # The vault has no public access, even if the control plane has.
            "key_vault_network_access": "Private",
        },
        "image_cleaner": {"enabled": True, "interval_hours": 168},
    }


def kubelet(identity: Identity) -> dict[str, containerservice.UserAssignedIdentityArgsDict]:
    """The identity of nodes, known when the control plane may assign it."""
    return {
        "kubeletidentity": {
            "resource_id": once_in_effect(identity.kubelet.id, *identity.ready),
            "client_id": identity.kubelet.client_id,
            "object_id": identity.kubelet.principal_id,
        }
    }


class Cluster(PlatformComponent):
    """The control plane of a platform."""

    TYPE = "trainfleet:azure:Cluster"

    def __init__(
        self,
        spec: PlatformSpec,
        foundation: Foundation,
        *,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(spec, "cluster", opts)
        self.group = foundation.group
        self.cluster_name = layout.cluster_name(spec)
        self.machine = system_machine(spec)
        joins = self._joins(foundation)
        self.cluster = self._control_plane(foundation, joins)
        self.windows = [self._window(name, day) for name, day in MAINTENANCE.items()]
        self.ready: list[pulumi.Resource] = [
            self.cluster,
            *joins,
            *foundation.identity.ready,
            *foundation.keys.ready,
            *foundation.registry.ready,
            *foundation.network.ready,
        ]
        """Must exist before a node starts and outlive the last one."""
        self.kubeconfig = self._kubeconfig()
        self.register_outputs({"name": self.cluster.name})

    def _joins(self, foundation: Foundation) -> list[pulumi.Resource]:
        network, identity = foundation.network, foundation.identity
        # The control plane creates nodes and load balancers in these subnets, and itself in the last.
        subnets = {
            "nodes": network.nodes,
            **{
                f"nodes-{zone}": subnet
                for zone, subnet in network.zonal.items()
                if subnet is not network.nodes
            },
        }
        return [
            grant(self, f"cluster-joins-{what}", "Network Contributor", subnet.id, identity.cluster)
            for what, subnet in {**subnets, "control-plane": network.control_plane}.items()
        ]

    def _control_plane(
        self, foundation: Foundation, joins: list[pulumi.Resource]
    ) -> containerservice.ManagedCluster:
        spec, group, registry = self.spec, foundation.group, foundation.registry
        network, identity, keys = foundation.network, foundation.identity, foundation.keys
        return containerservice.ManagedCluster(
            self.name("aks"),
            resource_group_name=group.platform.name,
            resource_name_=self.cluster_name,
            location=spec.region,
            # Derived from the platform's group, because AKS's default name is too long for long platform
            # names.
            node_resource_group=group.platform.name.apply(lambda name: f"{name}-nodes"),
            node_resource_group_profile={"restriction_level": "ReadOnly"},
            dns_prefix=self.cluster_name,
            kubernetes_version=spec.kubernetes.version,
            sku={"name": "Base", "tier": "Standard"},
            support_plan="KubernetesOfficial",
            identity={
                "type": containerservice.ResourceIdentityType.USER_ASSIGNED,
                "user_assigned_identities": [identity.cluster.id],
            },
            identity_profile=kubelet(identity),
            enable_rbac=True,
            # People log in as members of Entra groups, and the cluster's RBAC decides what a group may do.
            # Azure RBAC would replace it and lacks the layer's roles for launchers.
            aad_profile={
                "managed": True,
                "enable_azure_rbac": False,
                "admin_group_object_ids": list(spec.kubernetes.admins),
            },
            disable_local_accounts=True,
            api_server_access_profile=api_server(spec, network.control_plane.id),
            network_profile=network_profile(spec),
            oidc_issuer_profile={"enabled": True},
            security_profile=security_profile(keys),
            disk_encryption_set_id=keys.disks.id,
            storage_profile=STORAGE_DRIVERS,
            addon_profiles=add_ons(spec, foundation.workspace.workspace.id),
            azure_monitor_profile={"metrics": {"enabled": spec.monitoring.enabled}},
            metrics_profile={"cost_analysis": {"enabled": True}},
            auto_upgrade_profile={"upgrade_channel": "patch", "node_os_upgrade_channel": "NodeImage"},
            auto_scaler_profile=autoscaler(spec),
            agent_pool_profiles=[inline_pool(spec, self.machine, network.nodes.id, self.tags(INLINE_POOL))],
            tags=self.tags("aks"),
            # A fixed name cannot exist twice, so a replacement deletes first (which `protect` rejects in
            # production).
            opts=self.options(
                protect=True,
                depends_on=[*joins, *identity.ready, *keys.ready, *registry.ready, *network.ready],
                delete_before_replace=True,
                ignore_changes=["agentPoolProfiles"],
                # Cannot change; without this the provider reports Azure's error in the middle of an apply.
                replace_on_changes=["apiServerAccessProfile.subnetId"],
                custom_timeouts=pulumi.CustomTimeouts(create="60m", update="120m", delete="60m"),
            ),
        )

    def provider(self, depends_on: list[pulumi.Resource]) -> k8s.Provider:
        """The provider of the cluster layer. Its resources are deleted before any of `depends_on`."""
        return k8s.Provider(
            self.name("kubernetes-provider"),
            kubeconfig=self.kubeconfig,
            # NOTE: without an identifier, a new endpoint or certificate would replace every resource of the
            # layer. Azure's id of the cluster distinguishes a new one from a changed one.
            cluster_identifier=pulumi.Output.concat(self.cluster_name, "@", self.cluster.resource_uid),
            enable_server_side_apply=True,
            # NOTE: not delete_unreachable: a refresh from outside a private network would drop the whole
            # layer.
            opts=self.options(depends_on=depends_on),
        )

    def _window(self, name: str, day: str) -> containerservice.MaintenanceConfiguration:
        what = "upgrades" if name == "aksManagedAutoUpgradeSchedule" else "node-images"
        return containerservice.MaintenanceConfiguration(
            self.name(f"window-{what}"),
            resource_group_name=self.group.platform.name,
            resource_name_=self.cluster.name,
            config_name=name,
            maintenance_window={
                "duration_hours": MAINTENANCE_HOURS,
                "start_time": MAINTENANCE_START,
                "utc_offset": "+00:00",
                "schedule": {"weekly": {"day_of_week": day, "interval_weeks": 1}},
            },
            opts=self.options(delete_before_replace=True),
        )

    def _kubeconfig(self) -> pulumi.Output[str]:
        asked = containerservice.list_managed_cluster_user_credentials_output(
            resource_group_name=self.group.platform.name,
            resource_name=self.cluster.name,
            format="exec",
            server_fqdn="public" if layout.clients(self.spec) else None,
        )
        asked = answer_after(asked, self.group.platform, self.cluster)
        # Only the address and the certificate are used, which are public.
        reached = pulumi.Output.unsecret(
            asked.apply(lambda answer: cluster_address([each.value for each in answer.kubeconfigs]))
        )
        return pulumi.Output.json_dumps(
            kubeconfig(self.cluster_name, reached["server"], reached["certificate"])
        )


def add_ons(
    spec: PlatformSpec, workspace: pulumi.Input[str]
) -> dict[str, containerservice.ManagedClusterAddonProfileArgsDict]:
    """The add-ons of AKS. Container Insights authenticates with its identity, not the workspace's key."""
    return {
        "azurepolicy": {"enabled": True},
        "azureKeyvaultSecretsProvider": {
            "enabled": True,
            "config": {"enableSecretRotation": "true", "rotationPollInterval": "10m"},
        },
        "omsagent": (
            {"enabled": True, "config": {"logAnalyticsWorkspaceResourceID": workspace, "useAADAuth": "true"}}
            if spec.layer.logs
            else {"enabled": False}
        ),
    }


def inline_pool(
    spec: PlatformSpec, machine: Machine, subnet: pulumi.Input[str], tags: dict[str, str]
) -> containerservice.ManagedClusterAgentPoolProfileArgsDict:
    """The inline pool that AKS requires, for its own add-ons only. NOTE: a change of an inline pool puts
    every pool into scaling (pulumi-azure-native#4264), so all others are separate resources and this one is
    never updated.
    """
    low, high = INLINE_NODES[spec.production]
    zones = layout.platform_zones(spec)
    return {
        "name": INLINE_POOL,
        "mode": "System",
        "type": "VirtualMachineScaleSets",
        "vm_size": machine.instance_type,
        "os_type": "Linux",
        "os_sku": node_config.OS_SKU,
        "os_disk_type": "Managed",
        "os_disk_size_gb": 128,
        "enable_auto_scaling": True,
        "count": low,
        "min_count": low,
        "max_count": high,
        "max_pods": node_config.PODS_PER_NODE,
        "availability_zones": list(zones) or None,
        "vnet_subnet_id": subnet,
        "enable_encryption_at_host": True,
        "enable_node_public_ip": False,
        "node_taints": [node_config.SYSTEM_TAINT],
        "node_labels": {"trainfleet.io/pool": INLINE_POOL},
        "security_profile": {"enable_secure_boot": True, "enable_vtpm": True, "ssh_access": "Disabled"},
        "upgrade_settings": {"max_surge": "33%"},
        "tags": tags,
    }


def cluster_address(encoded: list[str]) -> dict[str, str]:
    """Address and certificate of the cluster from the kubeconfig that Azure returns. The rest is dropped."""
    for each in encoded:
        document = yaml.safe_load(base64.b64decode(each)) or {}
        for entry in document.get("clusters", ()):
            found = entry.get("cluster", {})
            if found.get("server") and found.get("certificate-authority-data"):
                return {"server": found["server"], "certificate": found["certificate-authority-data"]}
    raise LookupError("AKS did not report the cluster's address and certificate")


def kubeconfig(name: str, endpoint: pulumi.Input[str], certificate: pulumi.Input[str]) -> dict[str, Any]:
    """A kubeconfig without credentials: kubelogin creates a token for the user of the Azure CLI."""
    arguments = ["get-token", "--login", "azurecli", "--server-id", LOGIN_SERVER]
    login = {
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "command": "kubelogin",
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
