"""How an EC2 node is configured: disk, metadata service, fabric interfaces, user data; and the launch
template.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_aws as aws

from trainfleet.infra.aws import layout
from trainfleet.infra.catalog.machines import Machine
from trainfleet.infra.component import PlatformComponent
from trainfleet.infra.spec.schema import Capacity

ENA_FIRST = frozenset({"p6-b300.48xlarge"})
"""Machines whose network card 0 has no EFA: it is for IP only, and the fabric starts at card 1 (EC2 user
guide, EFA).
"""
TAGGED = ("instance", "volume", "network-interface")
BOUNDARY = "==TRAINFLEET=="
OPEN_FILES = {"type": "RLIMIT_NOFILE", "soft": 65536, "hard": 1048576}
"""EKS's own limit of open files, which a list with another limit would replace."""
LOCKED_MEMORY = {"type": "RLIMIT_MEMLOCK", "soft": 1 << 50, "hard": 1 << 50}
"""As good as unlimited. EFA locks the memory of its buffers, and containerd's default is 8 MiB. The
capability IPC_LOCK has no effect for a user other than root (NVIDIA/nvidia-container-toolkit#2037).

NOTE: not the largest number of 64 bits, which nodeadm's JSON cannot carry (util/merge.go reads numbers as
floats).
"""


@dataclass(frozen=True)
class NetworkCard:
    """One network interface of a node."""

    card: int
    device: int
    kind: str
    """efa: fabric and IP; efa-only: fabric without an address; interface: IP without fabric."""


def network_cards(machine: Machine) -> tuple[NetworkCard, ...]:
    """One fabric interface per network card: with IP on card 0 (device 0), without addresses on the others.

    Device 1 was tried on P4 and P5 (aws/aws-k8s-tester#531, eksctl-io/eksctl#7643): such a card has devices 0
    and 1 (eksctl-io/eksctl#7520). On P6-B300, AWS names device 0 (aws/aws-parallelcluster#7143). The EC2 user
    guide (efa-acc-inst-types) now recommends device 0 on all machines, and on card 0 an ENA interface next to
    an EFA-only one; no report was found of managed node groups that are configured so.
    """
    if machine.instance_type in ENA_FIRST:
        return (
            NetworkCard(0, 0, "interface"),
            *(NetworkCard(card, 0, "efa-only") for card in range(1, machine.rdma_nics + 1)),
        )
    return tuple(
        NetworkCard(card, 0 if card == 0 else 1, "efa" if card == 0 else "efa-only")
        for card in range(machine.rdma_nics)
    )


def user_data(machine: Machine, *, fabric: bool = False, fast_image_pull: bool = False) -> str | None:
    """User data (base64) that joins the machine's NVMe disks into one array for containers, with a fabric
    lets containers lock memory, and selects SOCI's parallel pull; None for none of them.

    EKS merges this NodeConfig with its own, which has the cluster's name and certificate. Source:
    awslabs/amazon-eks-ami nodeadm/doc/examples.md (modifying container RLIMITs).
    """
    spec: dict[str, Any] = {}
    if machine.local_nvme_gb:
        spec["instance"] = {"localStorage": {"strategy": "RAID0"}}
    if fabric:
        spec["containerd"] = {"baseRuntimeSpec": {"process": {"rlimits": [OPEN_FILES, LOCKED_MEMORY]}}}
    if fast_image_pull:
        # nodeadm/internal/api/feature_gates.go. The array, if there is one, also holds SOCI's folder.
        spec["featureGates"] = {"FastImagePull": True}
    if not spec:
        return None
    config = {"apiVersion": "node.eks.aws/v1alpha1", "kind": "NodeConfig", "spec": spec}
    lines = [
        "MIME-Version: 1.0",
        f'Content-Type: multipart/mixed; boundary="{BOUNDARY}"',
        "",
        f"--{BOUNDARY}",
        "Content-Type: application/node.eks.aws",
        "",
        # JSON is valid YAML and has a stable form.
        json.dumps(config),
        f"--{BOUNDARY}--",
        "",
    ]
    return base64.b64encode("\n".join(lines).encode()).decode()


def purchase_options(capacity: Capacity, reservation: str) -> tuple[str, str | None, str | None]:
    """EKS's capacity type, EC2's market type and the targeted reservation of a pool."""
    if capacity is Capacity.SPOT:
        # EKS sets the market option itself and rejects both at once.
        return "SPOT", None, None
    if capacity is Capacity.CAPACITY_BLOCK:
        return "CAPACITY_BLOCK", "capacity-block", reservation
    return "ON_DEMAND", None, reservation or None


def node_config(
    component: PlatformComponent,
    what: str,
    machine: Machine,
    disk_gib: int,
    disk_key: pulumi.Input[str],
    *,
    capacity: Capacity = Capacity.ON_DEMAND,
    reservation: str = "",
    fabric: tuple[pulumi.Input[str], pulumi.Input[str]] | None = None,
    fast_image_pull: bool = False,
    placement: aws.ec2.LaunchTemplatePlacementArgsDict | None = None,
) -> aws.ec2.LaunchTemplate:
    """The launch template of a node group.

    Args:
        component: the component that creates the node group.
        what: the pool's name within the platform.
        machine: the machine type, with its network cards.
        disk_gib: size of the root volume.
        disk_key: ARN of the key that encrypts the root volume.
        capacity: on demand, spot or a reservation.
        reservation: ID of the reservation or capacity block; empty for none.
        fabric: the cluster's and the fabric's security group, for nodes with EFA.
        fast_image_pull: whether nodes pull and unpack layers in parallel.
        placement: the placement group, by name or id; None for none.
    """
    _, market_type, target = purchase_options(capacity, reservation)
    tags = component.tags(what)
    return aws.ec2.LaunchTemplate(
        component.name(f"{what}-template"),
        description=f"Nodes of {component.spec.name}/{what}",
        update_default_version=True,
        # EKS requires it here for capacity blocks, and rejects it here and on the group at once.
        instance_type=machine.instance_type if capacity is Capacity.CAPACITY_BLOCK else None,
        block_device_mappings=[_root_disk(machine, disk_gib, disk_key, fast=fast_image_pull)],
        metadata_options={
            "http_endpoint": "enabled",
            "http_tokens": "required",
            # With one hop, no pod can take the node's role.
            "http_put_response_hop_limit": 1,
        },
        monitoring={"enabled": True},
        # NOTE: with interfaces in the template, EKS does not add the cluster's security group, without which
        # a node never joins.
        network_interfaces=_interfaces(machine, *fabric) if fabric else None,
        placement=placement,
        instance_market_options={"market_type": market_type} if market_type else None,
        capacity_reservation_specification={
            "capacity_reservation_target": {"capacity_reservation_id": target}
        }
        if target
        else None,
        user_data=user_data(machine, fabric=fabric is not None, fast_image_pull=fast_image_pull),
        tag_specifications=[{"resource_type": kind, "tags": tags} for kind in TAGGED],
        tags=component.tags(f"{what}-template"),
        # NOTE: a node group follows the template's latest version. Without this, a new owner or team tag
        # would drain and replace every node. New nodes keep the tags with which the pool was created.
        opts=component.options(ignore_changes=["tagSpecifications"]),
    )


def _root_disk(
    machine: Machine, gib: int, key: pulumi.Input[str], *, fast: bool
) -> aws.ec2.LaunchTemplateBlockDeviceMappingArgsDict:
    """Images are on the machine's own disks where it has any."""
    return {
        "device_name": "/dev/xvda",
        "ebs": _root_volume(gib, key, fast=fast and not machine.local_nvme_gb),
    }


def _root_volume(
    gib: int, key: pulumi.Input[str], *, fast: bool
) -> aws.ec2.LaunchTemplateBlockDeviceMappingEbsArgsDict:
    chosen = layout.root_volume(gib, fast=fast)
    volume: aws.ec2.LaunchTemplateBlockDeviceMappingEbsArgsDict = {
        "volume_type": chosen.kind,
        "volume_size": chosen.gib,
        "throughput": chosen.throughput,
        "encrypted": "true",
        "kms_key_id": key,
        "delete_on_termination": "true",
    }
    return volume if chosen.iops is None else {**volume, "iops": chosen.iops}


def _interfaces(
    machine: Machine, cluster_group: pulumi.Input[str], fabric_group: pulumi.Input[str]
) -> list[aws.ec2.LaunchTemplateNetworkInterfaceArgsDict]:
    return [
        {
            "network_card_index": card.card,
            "device_index": card.device,
            "interface_type": card.kind,
            "security_groups": [fabric_group] if card.kind == "efa-only" else [cluster_group, fabric_group],
            "delete_on_termination": "true",
        }
        for card in network_cards(machine)
    ]
