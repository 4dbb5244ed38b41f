"""What a platform and its planned resources are billed as on AWS: rows of prices.toml and machines.
Imports no Pulumi.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from trainfleet.infra.aws.layout import KEYS, SYSTEM_DISK_GIB, endpoint_services, platform_zones, root_volume
from trainfleet.infra.catalog.cost import nat_costs, shared_filesystem_cost
from trainfleet.infra.catalog.machines import Machine
from trainfleet.infra.catalog.planned import Charge, Charges, Nodes, Plan, Planned, QuantityUnknown, one
from trainfleet.infra.cloud_support import StandingCost
from trainfleet.infra.spec.schema import PlatformSpec

GP3_THROUGHPUT, GP3_IOPS = 125, 3000
"""What a gp3 volume has at no charge: MiB/s and IOPS (EBS guide, gp3 volumes)."""
DEFAULT_DISK = ("gp2", 20)
"""The root volume of a node group without a launch template (EKS API, diskSize; Infracost eks_node_group)."""
IOPS_BILLED = ("io1", "io2")


def standing_costs(spec: PlatformSpec) -> Iterator[StandingCost]:
    """The control plane, NAT, interface endpoints, keys, secrets, the shared filesystem."""
    zones = len(platform_zones(spec))
    yield StandingCost("control-plane", 1)
    yield from nat_costs(spec, zones)
    if spec.network.existing is None:
        yield StandingCost("endpoint", len(endpoint_services(spec)) * zones)
    yield StandingCost("key", len(KEYS))
    if spec.secrets.provider == "cloud" and spec.secrets.names:
        yield StandingCost("secret", len(spec.secrets.names))
    yield from shared_filesystem_cost(spec)


def node_disk(machine: Machine, gib: int | None, fast: bool) -> Iterator[StandingCost]:
    """The root volume of a node."""
    if machine.kind == "hyperpod":
        yield StandingCost("disk-hyperpod", gib or 0)
        return
    volume = root_volume(gib or SYSTEM_DISK_GIB, fast=fast and not machine.local_nvme_gb)
    yield from _volume(volume.kind, volume.gib, volume.throughput, volume.iops or 0)


def _volume(kind: str, gib: float, throughput: float, iops: float) -> Iterator[StandingCost]:
    yield StandingCost(f"disk-{kind}", gib)
    if kind == "gp3" and throughput > GP3_THROUGHPUT:
        yield StandingCost("disk-gp3-throughput", throughput - GP3_THROUGHPUT)
    if kind == "gp3" and iops > GP3_IOPS:
        yield StandingCost("disk-gp3-iops", iops - GP3_IOPS)
    if kind in IOPS_BILLED and iops:
        yield StandingCost(f"disk-{kind}-iops", iops)


def _node_group(group: Planned, plan: Plan) -> Iterator[Charge | Nodes]:
    template = plan.linked(group, "launchTemplate", "launchTemplate.id", "launchTemplate.name")
    kinds = group.get("instanceTypes", [])
    kind = kinds[0] if kinds else template.get("instanceType") if template else None
    least, most = group.number("scalingConfig.minSize"), group.number("scalingConfig.maxSize")
    spot = group.get("capacityType") == "SPOT"
    yield Nodes(group.name, _instance_type(kind, "instanceTypes"), least, most, spot)
    if template is None and group.get("launchTemplate"):
        raise QuantityUnknown("launchTemplate")
    if template is None or not template.items("blockDeviceMappings"):
        kind, gib = DEFAULT_DISK
        yield from _times(_volume(kind, group.number("diskSize", gib), 0, 0), least, most)
    else:
        yield from _mapped(template, least, most)


def _scaling_group(group: Planned, plan: Plan) -> Iterator[Charge | Nodes]:
    mixed = "mixedInstancesPolicy.launchTemplate"
    template = plan.linked(
        group, "launchTemplate", "launchTemplate.id", "launchTemplate.name"
    ) or plan.linked(group, "mixedInstancesPolicy", f"{mixed}.launchTemplateSpecification.launchTemplateId")
    kind = group.get(f"{mixed}.overrides.instanceType") or (
        template.get("instanceType") if template else None
    )
    least, most = group.number("minSize"), group.number("maxSize")
    market = template.get("instanceMarketOptions.marketType") if template else None
    on_demand = group.get("mixedInstancesPolicy.instancesDistribution.onDemandPercentageAboveBaseCapacity")
    spot = market == "spot" or on_demand == 0
    yield Nodes(group.name, _instance_type(kind, "launchTemplate"), least, most, spot)
    if template is not None:
        yield from _mapped(template, least, most)


def _instance(instance: Planned, plan: Plan) -> Iterator[Charge | Nodes]:
    template = plan.linked(instance, "launchTemplate", "launchTemplate.id", "launchTemplate.name")
    kind = instance.get("instanceType") or (template.get("instanceType") if template else None)
    market = instance.get("instanceMarketOptions.marketType")
    yield Nodes(instance.name, _instance_type(kind, "instanceType"), 1, 1, market == "spot")
    for disk in (*instance.items("rootBlockDevice"), *instance.items("ebsBlockDevices")):
        yield from _disk(instance.inner(disk), 1, 1)
    if template is not None:
        yield from _mapped(template, 1, 1)


def _instance_type(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise QuantityUnknown(path)
    return value


def _mapped(template: Planned, least: float, most: float) -> Iterator[Charge]:
    for mapping in template.items("blockDeviceMappings"):
        for disk in template.inner(mapping).items("ebs"):
            yield from _disk(template.inner(disk), least, most)


def _disk(disk: Planned, least: float, most: float) -> Iterator[Charge]:
    kind = disk.get("volumeType", DEFAULT_DISK[0])
    gib = disk.number("volumeSize", disk.number("size", DEFAULT_DISK[1]))
    yield from _times(_volume(kind, gib, disk.number("throughput"), disk.number("iops")), least, most)


def _times(costs: Iterator[StandingCost], least: float, most: float) -> Iterator[Charge]:
    for cost in costs:
        yield Charge(cost.row, cost.count * least, cost.count * most)


def _volume_resource(volume: Planned, _plan: Plan) -> Iterator[Charge]:
    kind = volume.get("type", DEFAULT_DISK[0])
    costs = _volume(kind, volume.number("size", 0), volume.number("throughput"), volume.number("iops"))
    yield from _times(costs, 1, 1)


def _endpoint(endpoint: Planned, _plan: Plan) -> Iterator[Charge]:
    if endpoint.get("vpcEndpointType", "Gateway") == "Gateway":
        return
    subnets = endpoint.get("subnetIds", [])
    configured = endpoint.get("subnetConfigurations", [])
    zones = max(len(subnets), len(configured), 1)
    yield Charge("endpoint", zones, zones)


def _lustre(system: Planned, _plan: Plan) -> Iterator[Charge]:
    gib = system.number("storageCapacity")
    speed = system.get("perUnitStorageThroughput")
    kind = system.get("storageType", "SSD")
    row = f"lustre-{speed:g}" if isinstance(speed, int | float) and kind == "SSD" else f"lustre-{kind}"
    yield Charge(row, gib, gib, system.name)


def _by_size(row: str, path: str) -> Charges:
    """A file system that is billed by its capacity in GiB, with a line of its own."""

    def charges(system: Planned, _plan: Plan) -> Iterator[Charge]:
        yield Charge(row, system.number(path), system.number(path), system.name)

    return charges


def _cloud_control(resource: Planned, _plan: Plan) -> Iterator[Charge | Nodes]:
    if resource.get("typeName") != "AWS::SageMaker::Cluster":
        yield Charge(f"{resource.get('typeName')}", 1, 1, resource.name)
        return
    try:
        desired: Mapping[str, Any] = json.loads(resource.get("desiredState", "{}"))
    except ValueError:
        raise QuantityUnknown("desiredState") from None
    for group in desired.get("InstanceGroups") or ():
        count, name = group["InstanceCount"], f"{resource.name}/{group['InstanceGroupName']}"
        yield Nodes(name, group["InstanceType"], 0, count)
        for disk in group.get("InstanceStorageConfigs") or ():
            gib = disk.get("EbsVolumeConfig", {}).get("VolumeSizeInGB", 0)
            yield Charge("disk-hyperpod", 0, gib * count)


CHARGES: Mapping[str, Charges] = {
    "aws:eks/cluster:Cluster": one("control-plane"),
    "aws:eks/nodeGroup:NodeGroup": _node_group,
    "aws:autoscaling/group:Group": _scaling_group,
    "aws:ec2/instance:Instance": _instance,
    "aws:ebs/volume:Volume": _volume_resource,
    "aws:ec2/natGateway:NatGateway": one("nat"),
    "aws:ec2/eip:Eip": one("address"),
    "aws:ec2/vpcEndpoint:VpcEndpoint": _endpoint,
    "aws:lb/loadBalancer:LoadBalancer": one("load-balancer"),
    "aws:alb/loadBalancer:LoadBalancer": one("load-balancer"),
    "aws:fsx/lustreFileSystem:LustreFileSystem": _lustre,
    "aws:fsx/openZfsFileSystem:OpenZfsFileSystem": _by_size("openzfs", "storageCapacity"),
    "aws:fsx/ontapFileSystem:OntapFileSystem": _by_size("ontap", "storageCapacity"),
    "aws:fsx/windowsFileSystem:WindowsFileSystem": _by_size("windows-files", "storageCapacity"),
    "aws:kms/key:Key": one("key"),
    "aws:secretsmanager/secret:Secret": one("secret"),
    "aws:route53/zone:Zone": one("dns-zone"),
    "aws:cloudcontrol/resource:Resource": _cloud_control,
    "aws:rds/instance:Instance": one("database"),
    "aws:rds/cluster:Cluster": one("database-cluster"),
    "aws:elasticache/replicationGroup:ReplicationGroup": one("cache"),
    "aws:elasticache/cluster:Cluster": one("cache"),
    "aws:ec2/capacityBlockReservation:CapacityBlockReservation": one("capacity-block"),
    "aws:ec2/capacityReservation:CapacityReservation": one("capacity-reservation"),
    "aws:ec2transitgateway/vpcAttachment:VpcAttachment": one("transit-gateway-attachment"),
    "aws:ec2transitgateway/transitGateway:TransitGateway": one("transit-gateway"),
    "aws:ec2/vpnConnection:VpnConnection": one("vpn"),
}
"""Type to how it is billed. A row that prices.toml does not have is reported as without a price."""


def _budget(budget: Planned) -> float:
    """The monthly amount of a budget in USD; 0 if it is in another unit or for another time."""
    monthly = budget.get("timeUnit") == "MONTHLY" and budget.get("limitUnit") == "USD"
    return budget.number("limitAmount") if monthly and budget.get("budgetType") == "COST" else 0


BUDGETS = {"aws:budgets/budget:Budget": _budget}
"""Type to its monthly amount in USD."""
