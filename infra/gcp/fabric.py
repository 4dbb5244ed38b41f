"""Fabric: the extra networks between GPUs of different nodes, and their names in the cluster.

GPUDirect over TCP uses one network per interface (four on A3 High, eight on A3 Mega). RDMA uses one for a
second ordinary interface, and one of the zone's RoCE profile with a subnet per GPU.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import pulumi
import pulumi_gcp as gcp
import pulumi_kubernetes as k8s

from trainfleet.infra.catalog.machines import Machine
from trainfleet.infra.component import PlatformComponent
from trainfleet.infra.gcp import layout
from trainfleet.infra.gcp.network import Network
from trainfleet.infra.spec.schema import PlatformSpec

TCP_MTU = 8244
"""The MTU of GPUDirect over TCP (GKE guide, GPUDirect-TCPX)."""
RDMA_MTU = 8896
RDMA_ENVIRONMENT = {
    "NCCL_NET": "gIB",
    "NCCL_CROSS_NIC": "0",
    "NCCL_NET_GDR_LEVEL": "PIX",
    "NCCL_P2P_NET_CHUNKSIZE": "131072",
    "NCCL_NVLS_CHUNKSIZE": "524288",
    "NCCL_IB_ADAPTIVE_ROUTING": "1",
    "NCCL_IB_QPS_PER_CONNECTION": "4",
    "NCCL_IB_TC": "52",
    "NCCL_IB_FIFO_TC": "84",
}
"""NCCL over GPUDirect RDMA (GKE guide, A3 Ultra and A4). A named network that NCCL does not find ends the
run. Over TCP, NCCL needs a daemon in every pod.
"""
GIB_MOUNT = f"{layout.DRIVER_MOUNT}/gib"
"""Where pods see the gIB plugin that the cluster layer copies to the node: in the folder of the driver, which
is mounted into every container with a GPU. Google's examples mount a folder of its own at /usr/local/gib, as
a host path, which Pod Security `baseline` rejects.
"""
TUNERS = {"a3-ultragpu-8g": "a3u", "a4-highgpu-8g": "a4"}


@dataclass(frozen=True)
class Link:
    """One extra interface of a node: its name in the cluster, its network and its subnet."""

    name: str
    network: gcp.compute.Network
    subnet: gcp.compute.Subnetwork
    mode: str
    """NetDevice or RDMA, as GKE calls it."""


def link_names(machine: Machine) -> tuple[str, ...]:
    """The names of a machine's extra interfaces, in their order. SkyPilot writes the same names into pods."""
    if machine.rdma == "roce":
        return ("gvnic-1", *(f"rdma-{index}" for index in range(layout.RDMA_SUBNETS)))
    return tuple(f"vpc{index + 1}" for index in range(layout.TCP_FABRIC_NETWORKS.get(machine.rdma, 0)))


def pod_annotations(machine: Machine) -> dict[str, str]:
    """Annotations that give a pod the machine's interfaces (GKE guide, multi-network pods)."""
    links = [
        {"interfaceName": f"eth{index}", "network": name}
        for index, name in enumerate(("default", *link_names(machine)))
    ]
    return {
        "networking.gke.io/default-interface": "eth0",
        "networking.gke.io/interfaces": json.dumps(links, separators=(",", ":")),
    }


def environment(machine: Machine) -> dict[str, str]:
    """NCCL's environment variables for this machine."""
    if machine.rdma != "roce":
        return {}
    tuner = TUNERS.get(machine.instance_type)
    return RDMA_ENVIRONMENT | (
        {"NCCL_TUNER_CONFIG_PATH": f"{GIB_MOUNT}/configs/tuner_config_{tuner}.txtpb"} if tuner else {}
    )


class Fabric(PlatformComponent):
    """The fabric networks of a platform, as `links` by their name in the cluster."""

    TYPE = "trainfleet:gcp:Fabric"

    def __init__(
        self, spec: PlatformSpec, network: Network, *, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__(spec, "fabric", opts)
        self.apis = network.apis
        self.network = network
        self.links: dict[str, Link] = {}
        self.ready: list[pulumi.Resource] = []
        """NOTE: the firewall rules. Without them a node waits for its peers forever."""
        for index in range(layout.tcp_fabric_networks(spec)):
            self._tcp(f"vpc{index + 1}", index, TCP_MTU)
        if zone := layout.rdma_zone(spec):
            self._tcp("gvnic-1", max(layout.TCP_FABRIC_NETWORKS.values()), RDMA_MTU)
            self._rdma(zone, max(layout.TCP_FABRIC_NETWORKS.values()) + 1)
        self.register_outputs({})

    def of(self, machine: Machine) -> list[Link]:
        """The links of a machine, in the order of its interfaces."""
        return [self.links[name] for name in link_names(machine)]

    def _tcp(self, name: str, place: int, mtu: int) -> None:
        network = gcp.compute.Network(
            self.name(name),
            auto_create_subnetworks=False,
            # Only traffic between GPUs.
            delete_default_routes_on_create=True,
            mtu=mtu,
            description=f"Trainfleet {self.spec.name}: GPU traffic, {name}",
            opts=self.options(depends_on=self.apis.ready),
        )
        subnet = self._subnet(name, network, place)
        self.ready.append(
            gcp.compute.Firewall(
                self.name(f"{name}-inside"),
                network=network.id,
                description="Among GPU nodes",
                direction="INGRESS",
                source_ranges=[str(self.network.plan.fabric[place])],
                allows=[{"protocol": "all"}],
                opts=self.options(),
            )
        )
        self.links[name] = Link(name, network, subnet, "NetDevice")

    def _rdma(self, zone: str, first: int) -> None:
        network = gcp.compute.Network(
            self.name("rdma"),
            auto_create_subnetworks=False,
            # The profile makes the network lossless in this zone. It fixes the MTU and allows no firewall
            # rules.
            network_profile=f"projects/{self.spec.account}/global/networkProfiles/{zone}-vpc-roce",
            mtu=RDMA_MTU,
            description=f"Trainfleet {self.spec.name}: GPU traffic by RDMA",
            opts=self.options(depends_on=self.apis.ready),
        )
        for index in range(layout.RDMA_SUBNETS):
            name = f"rdma-{index}"
            self.links[name] = Link(name, network, self._subnet(name, network, first + index), "RDMA")

    def _subnet(self, name: str, network: gcp.compute.Network, place: int) -> gcp.compute.Subnetwork:
        # No flow logs: the volume is too high, and only GPUs of one team are inside.
        return gcp.compute.Subnetwork(
            self.name(f"{name}-subnet"),
            network=network.id,
            region=self.spec.region,
            ip_cidr_range=str(self.network.plan.fabric[place]),
            opts=self.options(),
        )


class FabricNetworks(PlatformComponent):
    """The networks as cluster resources, so that pods can refer to them. Created after the pools' nodes."""

    TYPE = "trainfleet:gcp:FabricNetworks"

    def __init__(
        self,
        spec: PlatformSpec,
        fabric: Fabric,
        cluster: k8s.Provider,
        nodes: Sequence[pulumi.Resource],
        *,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        below = pulumi.ResourceOptions(providers=[cluster], depends_on=list(nodes))
        super().__init__(spec, "fabric-networks", pulumi.ResourceOptions.merge(below, opts))
        for link in fabric.links.values():
            parameters = k8s.apiextensions.CustomResource(
                self.name(f"{link.name}-parameters"),
                api_version="networking.gke.io/v1",
                kind="GKENetworkParamSet",
                metadata=k8s.meta.v1.ObjectMetaArgs(name=link.name),
                spec={"vpc": link.network.name, "vpcSubnet": link.subnet.name, "deviceMode": link.mode},
                opts=self.options(delete_before_replace=True),
            )
            k8s.apiextensions.CustomResource(
                self.name(f"{link.name}-network"),
                api_version="networking.gke.io/v1",
                kind="Network",
                metadata=k8s.meta.v1.ObjectMetaArgs(name=link.name),
                spec={
                    "type": "Device",
                    "parametersRef": {
                        "group": "networking.gke.io",
                        "kind": "GKENetworkParamSet",
                        "name": link.name,
                    },
                },
                opts=self.options(depends_on=[parameters], delete_before_replace=True),
            )
        self.register_outputs({})
