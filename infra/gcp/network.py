"""Network: the VPC, one regional subnet with ranges for nodes, pods and services, NAT, firewall and flow
logs.

Nodes need NAT from start to drain, so whatever starts nodes depends on `ready`.
"""

from __future__ import annotations

import pulumi
import pulumi_gcp as gcp

from trainfleet.infra.component import Existing, PlatformComponent
from trainfleet.infra.gcp import layout
from trainfleet.infra.gcp.apis import Apis
from trainfleet.infra.spec.schema import Hub, PlatformSpec

PODS, SERVICES = "pods", "services"
"""Names of the subnet's secondary ranges."""
LUSTRE_PORT = "988"
LAST = 65534
"""The last priority before the default rules of every network."""


class Network(PlatformComponent):
    """The network of a platform."""

    TYPE = "trainfleet:gcp:Network"

    def __init__(self, spec: PlatformSpec, apis: Apis, *, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__(spec, "network", opts)
        self.apis = apis
        self.ready: list[pulumi.Resource] = []
        """Must exist before a node starts and outlive the last one: NAT and firewall."""
        self.vpc: gcp.compute.Network | Existing
        self.subnet: gcp.compute.Subnetwork | Existing
        self.secondary_ranges = {name: name for name in (PODS, SERVICES)}
        """The names of the subnet's secondary ranges for pods and services."""
        if spec.network.existing:
            # An existing network brings its own firewall and egress.
            self.vpc = Existing(spec.network.existing.id)
            self.subnet = Existing(spec.network.existing.subnets["nodes"])
            self.secondary_ranges = spec.network.existing.ranges
        else:
            self._create()
        self.register_outputs({"vpc_id": self.vpc.id})

    def _create(self) -> None:
        spec = self.spec
        self.plan = layout.plan(spec)
        self.vpc = vpc = gcp.compute.Network(
            self.name("vpc"),
            auto_create_subnetworks=False,
            routing_mode="REGIONAL",
            # Avoids fragmentation; the default of 1460 wastes a tenth of the link.
            mtu=8896,
            description=f"Trainfleet {spec.name}",
            opts=self.options(depends_on=self.apis.ready),
        )
        self.subnet = gcp.compute.Subnetwork(
            self.name("subnet"),
            network=self.vpc.id,
            region=spec.region,
            ip_cidr_range=str(self.plan.nodes),
            secondary_ip_ranges=[
                {"range_name": PODS, "ip_cidr_range": str(self.plan.pods)},
                {"range_name": SERVICES, "ip_cidr_range": str(self.plan.services)},
            ],
            # Nodes without a public address reach the registry, the bucket and the logs.
            private_ip_google_access=True,
            log_config={
                "aggregation_interval": "INTERVAL_10_MIN",
                "flow_sampling": 0.5,
                "metadata": "INCLUDE_ALL_METADATA",
            }
            if spec.network.flow_logs
            else None,
            opts=self.options(),
        )
        self._firewall()
        if spec.network.hub:
            self._hub(spec.network.hub, vpc)
        self._egress()

    def private_service_access(self) -> tuple[gcp.compute.GlobalAddress, gcp.servicenetworking.Connection]:
        """Reserve the range for Google's services, and peer the network with them."""
        reserved = gcp.compute.GlobalAddress(
            self.name("google-range"),
            purpose="VPC_PEERING",
            address_type="INTERNAL",
            address=str(self.plan.google_services.network_address),
            prefix_length=self.plan.google_services.prefixlen,
            network=self.vpc.id,
            labels=self.labels("google-range"),
            opts=self.options(),
        )
        peering = gcp.servicenetworking.Connection(
            self.name("google-peering"),
            network=self.vpc.id,
            service="servicenetworking.googleapis.com",
            reserved_peering_ranges=[reserved.name],
            # NOTE: Google keeps its side for days after the last service is deleted, which would block the
            # network's deletion.
            deletion_policy="REMOVE_PEERING",
            opts=self.options(depends_on=self.apis.ready),
        )
        return reserved, peering

    def lustre_servers(self) -> gcp.compute.Firewall:
        """Let the servers of Managed Lustre, which are in the range for Google's services, call clients back
        (Managed Lustre documentation, configure a VPC network: a firewall rule for the range).
        """
        return gcp.compute.Firewall(
            self.name("lustre-servers"),
            network=self.vpc.id,
            description="From the servers of Managed Lustre to their clients",
            direction="INGRESS",
            priority=1000,
            source_ranges=[str(self.plan.google_services)],
            destination_ranges=[str(self.plan.nodes)],
            allows=[{"protocol": "tcp", "ports": [LUSTRE_PORT]}],
            opts=self.options(),
        )

    def _hub(self, hub: Hub, vpc: gcp.compute.Network) -> None:
        """Peer with another network. Its owner adds the other half of the peering."""
        self.ready.append(
            gcp.compute.NetworkPeering(
                self.name("hub"),
                network=vpc.self_link,
                peer_network=f"https://www.googleapis.com/compute/v1/{hub.id}",
                # The routes of VPNs and interconnects that end in the hub.
                import_custom_routes=True,
                export_custom_routes=True,
                opts=self.options(),
            )
        )

    def _firewall(self) -> None:
        """Allow traffic from inside only. GKE adds rules for its control plane and load balancers."""
        inside = [str(self.plan.nodes), str(self.plan.pods)]
        self.ready.append(
            gcp.compute.Firewall(
                self.name("inside"),
                network=self.vpc.id,
                description="Among nodes and pods",
                direction="INGRESS",
                priority=1000,
                source_ranges=inside,
                destination_ranges=inside,
                allows=[{"protocol": "all"}],
                opts=self.options(),
            )
        )
        gcp.compute.Firewall(
            self.name("nothing-else"),
            network=self.vpc.id,
            description="What no other rule lets in is refused, and written down",
            direction="INGRESS",
            priority=LAST,
            source_ranges=["0.0.0.0/0"],
            denies=[{"protocol": "all"}],
            log_config={"metadata": "INCLUDE_ALL_METADATA"},
            opts=self.options(),
        )

    def _egress(self) -> None:
        router = gcp.compute.Router(
            self.name("router"),
            network=self.vpc.id,
            region=self.spec.region,
            description=f"Trainfleet {self.spec.name}: the way out",
            opts=self.options(),
        )
        self.ready.append(
            gcp.compute.RouterNat(
                self.name("nat"),
                router=router.name,
                region=self.spec.region,
                nat_ip_allocate_option="AUTO_ONLY",
                source_subnetwork_ip_ranges_to_nat="LIST_OF_SUBNETWORKS",
                subnetworks=[{"name": self.subnet.id, "source_ip_ranges_to_nats": ["ALL_IP_RANGES"]}],
                # A node needs more than the 64 connections of a fixed share.
                enable_dynamic_port_allocation=True,
                min_ports_per_vm=64,
                max_ports_per_vm=16384,
                enable_endpoint_independent_mapping=False,
                log_config={"enable": True, "filter": "ERRORS_ONLY"},
                opts=self.options(),
            )
        )
