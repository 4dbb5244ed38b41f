"""Logs: what is sent to the Log Analytics workspace, the cluster's metrics, and flow logs of the network.

Azure collects the logs of pods itself (Container Insights), so the cluster layer installs no log shipper.
"""

from __future__ import annotations

import pulumi
from pulumi_azure_native import containerservice, monitor, network, operationalinsights, storage

from trainfleet.infra.azure import storage_accounts
from trainfleet.infra.azure.foundation import Foundation
from trainfleet.infra.azure.permissions import grant
from trainfleet.infra.azure.workspace import Workspace
from trainfleet.infra.component import PlatformComponent
from trainfleet.infra.spec.schema import PlatformSpec

CONTROL_PLANE = (
    "kube-apiserver",
    "kube-audit-admin",
    "kube-controller-manager",
    "kube-scheduler",
    "cluster-autoscaler",
    "cloud-controller-manager",
    "guard",
)
"""Audit without reads, which are ten times as much (AKS documentation, monitor the control plane)."""
INSIGHTS_STREAM = "Microsoft-ContainerInsights-Group-Default"
METRICS_STREAM = "Microsoft-PrometheusMetrics"
WATCHERS_GROUP = "NetworkWatcherRG"
LONGEST_FLOW_RECORDS = 365


class Logs(PlatformComponent):
    """Logs of the control plane and of pods, and metrics if they are enabled."""

    TYPE = "trainfleet:azure:Logs"

    def __init__(
        self,
        spec: PlatformSpec,
        foundation: Foundation,
        cluster: containerservice.ManagedCluster,
        *,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(spec, "cluster-logs", opts)
        group, workspace = foundation.group, foundation.workspace
        self.group = group
        workspace.send_diagnostics(self, "control-plane", cluster.id, CONTROL_PLANE)
        if spec.layer.logs:
            self._pods(workspace.workspace, cluster.id)
        if spec.monitoring.enabled:
            self._metrics(cluster.id)
        self.register_outputs({})

    def _pods(self, workspace: operationalinsights.Workspace, cluster: pulumi.Input[str]) -> None:
        rule = monitor.DataCollectionRule(
            self.name("pod-logs"),
            resource_group_name=self.group.platform.name,
            location=self.spec.region,
            kind="Linux",
            description="Logs of every pod, and what happens to them",
            data_sources={
                "extensions": [
                    {
                        "name": "ContainerInsightsExtension",
                        "extension_name": "ContainerInsights",
                        "streams": [INSIGHTS_STREAM],
                        "extension_settings": {
                            "dataCollectionSettings": {
                                "interval": "1m",
                                "namespaceFilteringMode": "Off",
                                "enableContainerLogV2": True,
                            }
                        },
                    }
                ]
            },
            destinations={"log_analytics": [{"name": "workspace", "workspace_resource_id": workspace.id}]},
            data_flows=[{"streams": [INSIGHTS_STREAM], "destinations": ["workspace"]}],
            tags=self.tags("pod-logs"),
            opts=self.options(),
        )
        self._associate("pod-logs", "ContainerInsightsExtension", rule, cluster)

    def _metrics(self, cluster: pulumi.Input[str]) -> None:
        store = monitor.AzureMonitorWorkspace(
            self.name("metrics"),
            resource_group_name=self.group.platform.name,
            location=self.spec.region,
            tags=self.tags("metrics"),
            opts=self.options(),
        )
        # A short name: the limit is 44 characters, including 24 of the platform and Pulumi's suffix.
        entrance = monitor.DataCollectionEndpoint(
            self.name("metrics-in"),
            resource_group_name=self.group.platform.name,
            location=self.spec.region,
            kind="Linux",
            network_acls={"public_network_access": "Enabled"},
            tags=self.tags("metrics-in"),
            opts=self.options(),
        )
        rule = monitor.DataCollectionRule(
            self.name("metrics-rule"),
            resource_group_name=self.group.platform.name,
            location=self.spec.region,
            kind="Linux",
            description="Metrics of nodes and of the control plane",
            data_collection_endpoint_id=entrance.id,
            data_sources={"prometheus_forwarder": [{"name": "prometheus", "streams": [METRICS_STREAM]}]},
            destinations={"monitoring_accounts": [{"name": "metrics", "account_resource_id": store.id}]},
            data_flows=[{"streams": [METRICS_STREAM], "destinations": ["metrics"]}],
            tags=self.tags("metrics-rule"),
            opts=self.options(),
        )
        self._associate("metrics-rule", "prometheus", rule, cluster)

    def _associate(
        self, what: str, name: str, rule: monitor.DataCollectionRule, cluster: pulumi.Input[str]
    ) -> None:
        monitor.DataCollectionRuleAssociation(
            self.name(f"{what}-association"),
            # The cluster's agent finds its rule by this name.
            association_name=name,
            resource_uri=cluster,
            data_collection_rule_id=rule.id,
            description=f"What {self.spec.name} gathers: {what}",
            opts=self.options(delete_before_replace=True),
        )


def flow_analytics(workspace: Workspace, region: str) -> network.TrafficAnalyticsPropertiesArgsDict:
    """Aggregate flow logs in the workspace."""
    return {
        "network_watcher_flow_analytics_configuration": {
            "enabled": True,
            "traffic_analytics_interval": 60,
            "workspace_resource_id": workspace.workspace.id,
            "workspace_id": workspace.workspace.customer_id,
            "workspace_region": region,
        }
    }


class FlowLogs(PlatformComponent):
    """Flow logs, stored in an account of their own and aggregated in the workspace."""

    TYPE = "trainfleet:azure:FlowLogs"

    def __init__(
        self,
        spec: PlatformSpec,
        foundation: Foundation,
        *,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(spec, "flow-logs", opts)
        group, workspace = foundation.group, foundation.workspace
        keys, identity, net = foundation.keys, foundation.identity, foundation.network
        if identity.flow_logs is None:
            raise LookupError("flow logs need the identity under which they are written")
        days = min(spec.kubernetes.log_retention_days, LONGEST_FLOW_RECORDS)
        account = storage_accounts.account(
            self,
            "flow",
            keys,
            group=group.platform,
            name=group.global_name("flow"),
            identity=identity.data,
            retain=False,
            depends_on=keys.ready,
        )
        storage.ManagementPolicy(
            self.name("flow-lifecycle"),
            resource_group_name=group.platform.name,
            account_name=account.name,
            management_policy_name="default",
            policy={"rules": [storage_accounts.expire("forget-records", days)]},
            opts=self.options(delete_before_replace=True),
        )
        write = grant(
            self, "flow-logs-write", "Storage Blob Data Contributor", account.id, identity.flow_logs
        )
        network.FlowLog(
            self.name("flow-log"),
            # Azure creates one network watcher per region and subscription, and rejects a second one.
            resource_group_name=WATCHERS_GROUP,
            network_watcher_name=f"NetworkWatcher_{spec.region}",
            location=spec.region,
            target_resource_id=net.vnet.id,
            storage_id=account.id,
            identity={
                "type": network.ResourceIdentityType.USER_ASSIGNED,
                "user_assigned_identities": [identity.flow_logs.id],
            },
            enabled=True,
            format={"type": "JSON", "version": 2},
            retention_policy={"enabled": True, "days": days},
            flow_analytics_configuration=flow_analytics(workspace, spec.region),
            tags=self.tags("flow-log"),
            opts=self.options(depends_on=[write]),
        )
        self.register_outputs({})
