"""Workspace: the Log Analytics workspace of a platform.

A service logs nothing until a diagnostic setting enables it. A customer-managed key would require a dedicated
cluster of 100 GB a day.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pulumi
from pulumi_azure_native import monitor, operationalinsights

from trainfleet.infra.azure import layout
from trainfleet.infra.azure.group import Group
from trainfleet.infra.component import PlatformComponent, SpecComponent
from trainfleet.infra.spec.schema import PlatformSpec


class Workspace(PlatformComponent):
    """The workspace of a platform, and how components send their resources' logs there."""

    TYPE = "trainfleet:azure:Workspace"

    def __init__(
        self, spec: PlatformSpec, group: Group, *, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__(spec, "log-store", opts)
        self.workspace = operationalinsights.Workspace(
            self.name("logs"),
            resource_group_name=group.platform.name,
            location=spec.region,
            sku={"name": "PerGB2018"},
            retention_in_days=layout.log_retention(spec.kubernetes.log_retention_days),
            # No shared keys: all access has an identity.
            features={"disable_local_auth": True, "enable_log_access_using_only_resource_permissions": True},
            public_network_access_for_ingestion="Enabled",
            public_network_access_for_query="Enabled",
            tags=self.tags("logs"),
            opts=self.options(),
        )
        self.register_outputs({})

    def send_diagnostics(
        self, component: PlatformComponent, what: str, resource: pulumi.Input[str], categories: Sequence[str]
    ) -> monitor.DiagnosticSetting:
        """Send log categories of another component's resource to the workspace."""
        return diagnostics(component, what, resource, categories, self.workspace.id)


def diagnostics(
    component: SpecComponent[Any],
    what: str,
    resource: pulumi.Input[str],
    categories: Sequence[str],
    workspace_id: pulumi.Input[str],
) -> monitor.DiagnosticSetting:
    """Send log categories of a resource to a workspace, into dedicated tables if they exist."""
    return monitor.DiagnosticSetting(
        component.name(f"{what}-logging"),
        resource_uri=resource,
        workspace_id=workspace_id,
        log_analytics_destination_type="Dedicated",
        logs=[{"category": category, "enabled": True} for category in categories],
        opts=component.options(),
    )
