"""Network: the virtual network, its subnets with a security group each, NAT gateways, and private endpoints.

A subnet has one NAT gateway, which is in one zone. Nodes need egress and endpoints from start to drain, so
whatever starts nodes depends on `ready`.
"""

from __future__ import annotations

from collections.abc import Mapping

import pulumi
from pulumi_azure_native import network as net
from pulumi_azure_native import privatedns

from trainfleet.infra.azure import firewall, layout
from trainfleet.infra.azure.group import Group
from trainfleet.infra.component import Existing, PlatformComponent
from trainfleet.infra.spec.schema import ExistingNetwork, Hub, PlatformSpec

CONTROL_PLANE_DELEGATION = "Microsoft.ContainerService/managedClusters"


class Network(PlatformComponent):
    """The network of a platform."""

    TYPE = "trainfleet:azure:Network"

    def __init__(
        self, spec: PlatformSpec, group: Group, *, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__(spec, "network", opts)
        self.group = group
        self.ready: list[pulumi.Resource] = []
        """Must exist before a node starts and outlive the last one: DNS zones and private endpoints."""
        self.vnet: net.VirtualNetwork | Existing
        self.nodes: net.Subnet | Existing
        self.zonal: Mapping[str, net.Subnet | Existing]
        """Subnets of pools with a single zone, behind that zone's NAT gateway if there is one per zone."""
        self.endpoints: net.Subnet | Existing
        self.control_plane: net.Subnet | Existing
        self.zones: dict[str, privatedns.PrivateZone | Existing] = {}
        if spec.network.existing:
            self._use(spec.network.existing)
        else:
            self._create()
        for kind in layout.endpoint_kinds(spec):
            self.zones[kind] = self.zones.get(kind) or self._zone(kind)
        self.register_outputs({"vnet_id": self.vnet.id})

    def _use(self, existing: ExistingNetwork) -> None:
        """An existing network brings its own security groups and egress, and maybe DNS zones."""
        self.vnet = Existing(existing.id)
        self.nodes = Existing(existing.subnets["nodes"])
        self.zonal = dict.fromkeys(layout.platform_zones(self.spec), self.nodes)
        self.endpoints = Existing(existing.subnets["endpoints"])
        self.control_plane = Existing(existing.subnets["control-plane"])
        self.zones |= {kind: Existing(zone) for kind, zone in existing.dns_zones.items()}

    def _create(self) -> None:
        spec, group = self.spec, self.group
        self.plan = layout.plan(spec)
        self.vnet = self._own = net.VirtualNetwork(
            self.name("vnet"),
            resource_group_name=group.platform.name,
            location=spec.region,
            address_space={"address_prefixes": [str(spec.network.cidr)]},
            # Rules of a subnet apply to its private endpoints as well.
            private_endpoint_v_net_policies="Disabled",
            # Nodes that run already encrypt after they were stopped and started (Virtual Network encryption).
            encryption={"enabled": True, "enforcement": "AllowUnencrypted"}
            if spec.network.encryption
            else None,
            tags=self.tags("vnet"),
            # Azure cannot remove a range that is in use, so another range is another network. Without this,
            # the provider reports Azure's error in the middle of an apply.
            opts=self.options(replace_on_changes=["addressSpace"]),
        )
        self._last: list[pulumi.Resource] = []
        pods = layout.pod_cidr(spec.network.cidr)
        nodes_in = [
            firewall.pods_and_nodes(spec.network.cidr, pods),
            firewall.balancer(),
            firewall.deny_all(),
        ]
        self._egress = self._nat("nodes", None)
        self.nodes = self._subnet("nodes", str(self.plan.nodes), nodes_in, nat=self._egress)
        per_zone = spec.network.nat == "per-zone"
        self.zonal = {
            zone: self._subnet(f"nodes-{zone}", str(cidr), nodes_in, nat=self._nat(f"nodes-{zone}", zone))
            if per_zone
            else self.nodes
            for zone, cidr in self.plan.zonal.items()
        }
        self.endpoints = self._subnet(
            "endpoints",
            str(self.plan.endpoints),
            [firewall.https(spec.network.cidr, pods, layout.clients(spec)), firewall.deny_all()],
        )
        self.control_plane = self._subnet(
            "control-plane",
            str(self.plan.control_plane),
            [
                firewall.control_plane(spec.network.cidr, pods, layout.clients(spec)),
                firewall.balancer(),
                firewall.deny_all(),
            ],
            delegation=CONTROL_PLANE_DELEGATION,
        )
        if spec.network.hub:
            self._hub(spec.network.hub)

    def _hub(self, hub: Hub) -> None:
        """Peer with another network. Its owner adds the other half of the peering, first if it has a
        gateway (Virtual Network documentation, gateway transit).
        """
        self.ready.append(
            net.VirtualNetworkPeering(
                self.name("hub"),
                resource_group_name=self.group.platform.name,
                virtual_network_name=self._own.name,
                remote_virtual_network={"id": hub.id},
                allow_virtual_network_access=True,
                allow_forwarded_traffic=True,
                allow_gateway_transit=False,
                use_remote_gateways=hub.gateway,
                # One after the other: Azure rejects concurrent changes of one network.
                opts=self.options(depends_on=self._last),
            )
        )

    def nodes_subnet(self, zones: tuple[str, ...]) -> net.Subnet | Existing:
        """The subnet of nodes in these zones: the zone's own, or the one that spans all."""
        return self.zonal.get(zones[0], self.nodes) if len(zones) == 1 else self.nodes

    def nodes_range(self, zones: tuple[str, ...]) -> str:
        """The range of that subnet. Nodes cannot move to another, so their pool's name depends on it."""
        if self.spec.network.existing:
            return self.spec.network.existing.subnets["nodes"]
        own = self.spec.network.nat == "per-zone" and len(zones) == 1
        return str(self.plan.zonal[zones[0]] if own else self.plan.nodes)

    def lustre_subnet(self) -> net.Subnet:
        """Create the subnet of the shared filesystem, whose servers call Azure's services (Managed Lustre
        documentation, configure a network security group).
        """
        rules = [
            firewall.lustre_servers(str(self.plan.lustre)),
            firewall.lustre_clients(str(self.plan.nodes), *map(str, self.plan.zonal.values())),
            firewall.monitor(),
            firewall.deny_all(),
        ]
        return self._subnet("lustre", str(self.plan.lustre), rules, nat=self._egress)

    def endpoint(
        self,
        component: PlatformComponent,
        what: str,
        kind: str,
        resource: pulumi.Input[str],
        *,
        nodes_need_it: bool = True,
    ) -> None:
        """A private way to a resource of another component, and the name under which the network finds it.
        `kind`: blob, vault, registry …
        """
        endpoint = net.PrivateEndpoint(
            component.name(f"{what}-endpoint"),
            resource_group_name=self.group.platform.name,
            location=self.spec.region,
            subnet={"id": self.endpoints.id},
            private_link_service_connections=[
                {"name": what, "private_link_service_id": resource, "group_ids": [kind]}
            ],
            tags=component.tags(f"{what}-endpoint"),
            opts=component.options(),
        )
        named = net.PrivateDnsZoneGroup(
            component.name(f"{what}-endpoint-name"),
            resource_group_name=self.group.platform.name,
            private_endpoint_name=endpoint.name,
            private_dns_zone_configs=[{"name": kind, "private_dns_zone_id": self.zones[kind].id}],
            opts=component.options(),
        )
        if nodes_need_it:
            self.ready.append(named)

    def _subnet(
        self,
        what: str,
        cidr: str,
        rules: list[firewall.Rule],
        *,
        nat: net.NatGateway | None = None,
        delegation: str = "",
    ) -> net.Subnet:
        group = net.NetworkSecurityGroup(
            self.name(f"{what}-nsg"),
            resource_group_name=self.group.platform.name,
            location=self.spec.region,
            security_rules=firewall.in_order(rules),
            tags=self.tags(f"{what}-nsg"),
            opts=self.options(),
        )
        subnet = net.Subnet(
            self.name(f"{what}-subnet"),
            resource_group_name=self.group.platform.name,
            virtual_network_name=self._own.name,
            address_prefix=cidr,
            network_security_group={"id": group.id},
            nat_gateway={"id": nat.id} if nat else None,
            delegations=[{"name": "delegation", "service_name": delegation}] if delegation else None,
            # No implicit access to the internet.
            default_outbound_access=False,
            # By default, rules of the security group do not apply to private endpoints.
            private_endpoint_network_policies="NetworkSecurityGroupEnabled",
            # One after the other: Azure rejects concurrent changes of one network.
            opts=self.options(
                depends_on=self._last,
                replace_on_changes=["addressPrefix"],
                delete_before_replace=True,
            ),
        )
        self._last = [subnet]
        return subnet

    def _nat(self, what: str, zone: str | None) -> net.NatGateway:
        zones = [zone] if zone else None
        address = net.PublicIPAddress(
            self.name(f"nat-{what}-address"),
            resource_group_name=self.group.platform.name,
            location=self.spec.region,
            sku={"name": "Standard", "tier": "Regional"},
            public_ip_allocation_method="Static",
            public_ip_address_version="IPv4",
            zones=zones or (list(layout.ZONES) if layout.has_zones(self.spec.region) else None),
            tags=self.tags(f"nat-{what}"),
            opts=self.options(),
        )
        return net.NatGateway(
            self.name(f"nat-{what}"),
            resource_group_name=self.group.platform.name,
            location=self.spec.region,
            sku={"name": "Standard"},
            public_ip_addresses=[{"id": address.id}],
            idle_timeout_in_minutes=10,
            zones=zones,
            tags=self.tags(f"nat-{what}"),
            opts=self.options(),
        )

    def _zone(self, kind: str) -> privatedns.PrivateZone:
        zone = privatedns.PrivateZone(
            self.name(f"dns-{kind}"),
            resource_group_name=self.group.platform.name,
            # The name that Azure's clients resolve.
            private_zone_name=layout.PRIVATE_ZONES[kind],
            location="Global",
            tags=self.tags(f"dns-{kind}"),
            opts=self.options(delete_before_replace=True),
        )
        self.ready.append(
            privatedns.VirtualNetworkLink(
                self.name(f"dns-{kind}-link"),
                resource_group_name=self.group.platform.name,
                private_zone_name=zone.name,
                virtual_network={"id": self.vnet.id},
                registration_enabled=False,
                location="Global",
                tags=self.tags(f"dns-{kind}-link"),
                # A link cannot change its network.
                opts=self.options(replace_on_changes=["virtualNetwork"], delete_before_replace=True),
            )
        )
        return zone
