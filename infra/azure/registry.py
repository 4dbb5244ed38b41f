"""Registry: the registry of training images. No admin user, no anonymous pull; nodes pull with their own
identity.

Only the Premium tier has private endpoints and retention. Azure cannot make all tags of a registry immutable,
and cannot use a key from a vault without public access (Container Registry, customer-managed keys).
"""

from __future__ import annotations

import pulumi
from pulumi_azure_native import containerregistry

from trainfleet.infra.azure import layout
from trainfleet.infra.azure.group import Group
from trainfleet.infra.azure.identity import Identity
from trainfleet.infra.azure.network import Network
from trainfleet.infra.azure.permissions import grant
from trainfleet.infra.azure.workspace import Workspace
from trainfleet.infra.component import PlatformComponent
from trainfleet.infra.spec.schema import PlatformSpec

UNTAGGED_DAYS = 7
LOGGED = ("ContainerRegistryLoginEvents", "ContainerRegistryRepositoryEvents")
REPOSITORY = "training"


class Registry(PlatformComponent):
    """The image registry of a platform, as `url`."""

    TYPE = "trainfleet:azure:Registry"

    def __init__(
        self,
        spec: PlatformSpec,
        *,
        group: Group,
        network: Network,
        identity: Identity,
        workspace: Workspace,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(spec, "registry", opts)
        ranges = layout.open_to(spec)
        self.registry = containerregistry.Registry(
            self.name("images"),
            resource_group_name=group.data.name,
            registry_name=group.global_name("imgs"),
            location=spec.region,
            sku={"name": "Premium"},
            admin_user_enabled=False,
            anonymous_pull_enabled=False,
            # Layers are served by the registry's own address, so that the private endpoint is enough.
            data_endpoint_enabled=True,
            public_network_access="Enabled" if ranges else "Disabled",
            network_rule_bypass_options="AzureServices",
            network_rule_set={
                "default_action": "Deny",
                "ip_rules": [{"i_p_address_or_range": cidr, "action": "Allow"} for cidr in ranges],
            },
            zone_redundancy="Enabled" if layout.has_zones(spec.region) else "Disabled",
            policies={
                "retention_policy": {"status": "enabled", "days": UNTAGGED_DAYS},
                "quarantine_policy": {"status": "disabled"},
                # Exports bypass the private endpoint. Azure can disable them only without public access.
                "export_policy": {"status": "enabled" if ranges else "disabled"},
            },
            tags=self.tags("images"),
            opts=self.options(retain=True),
        )
        network.endpoint(self, "images", "registry", self.registry.id)
        workspace.send_diagnostics(self, "images", self.registry.id, LOGGED)
        self.ready: list[pulumi.Resource] = [
            grant(self, "nodes-pull-images", "AcrPull", self.registry.id, identity.kubelet)
        ]
        """NOTE: a node cannot pull images without these."""
        self.url = pulumi.Output.concat(self.registry.login_server, "/", REPOSITORY)
        self.register_outputs({"url": self.url})
