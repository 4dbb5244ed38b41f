"""AWS as the rest of the code sees it. Imports no Pulumi."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from trainfleet.infra.aws.allocatable import node_allocatable
from trainfleet.infra.aws.costs import node_disk, standing_costs
from trainfleet.infra.aws.layout import (
    ROLE_PURPOSES,
    group_zones,
    role_purposes,
)
from trainfleet.infra.aws.validation import RULES
from trainfleet.infra.catalog.machines import Machine
from trainfleet.infra.cloud_support import (
    AccountId,
    CloudSupport,
    HubId,
    IdentityIds,
    NetworkIds,
    RegistryLogin,
    ReservationId,
    SettingProblem,
)
from trainfleet.infra.clouds import Cloud
from trainfleet.infra.spec.schema import Capacity, PlatformSpec

ALLOWED_ACCOUNTS = "aws:allowedAccountIds"
CAPACITY_RESERVATION = ReservationId(
    "capacity reservation",
    r"cr-([0-9a-f]{8}|[0-9a-f]{17})",
    "its id: cr- and 17 digits or letters a to f, for example cr-0123456789abcdef0",
    in_placement_group=True,
)
TRAINING_PLAN = ReservationId(
    "training plan",
    r"arn:aws[a-z-]*:sagemaker:[a-z0-9-]*:\d{12}:training-plan/\S+",
    "its ARN, for example arn:aws:sagemaker:us-east-2:111122223333:training-plan/my-plan",
)
"""AWS::SageMaker::Cluster, TrainingPlanArn."""


LAYER_LABEL = "topology.k8s.aws/network-node-layer-"
LAYERED = re.compile(r"(ml\.)?((g6e|g7e|p4d|p4de|p5e|p5en)\.\w+|p5\.48xlarge|(?P<four>p6-b[23]00\.48xlarge))")


def check_settings(spec: PlatformSpec, config: Mapping[str, Any]) -> Iterator[SettingProblem]:
    """Pulumi's AWS provider rejects every account that is not in its list of allowed accounts."""
    written = config.get(ALLOWED_ACCOUNTS)
    allowed = written if isinstance(written, list) else re.findall(r"\d{12}", str(written or ""))
    if spec.account and spec.account not in map(str, allowed):
        what = "is missing" if written is None else f"lacks the platform's account `{spec.account}`"
        yield SettingProblem(ALLOWED_ACCOUNTS, what, f'write {ALLOWED_ACCOUNTS}: ["{spec.account}"]')


def topology_levels(machine: Machine) -> tuple[str, ...]:
    """The labels of the layers of EC2's network, which EKS sets on nodes of these machines (EKS user guide,
    network topology labels; EC2 user guide, prerequisites for instance topology).
    """
    found = LAYERED.fullmatch(machine.instance_type)
    layers = 0 if found is None else 4 if found["four"] else 3
    return tuple(f"{LAYER_LABEL}{layer}" for layer in range(1, layers + 1))


def role_rights(spec: PlatformSpec) -> Mapping[str, Mapping[str, Any]]:
    """The documents of the roles that this platform needs."""
    from trainfleet.infra.aws.roles import rights

    return rights(spec)


ENCRYPTING_MACHINES = r"(g4dn|g5|g6|g6e|g7|g7e|gr6|m7i|p4d|p4de|p5|p5e|p5en|p6-b200|p6-b300)\.\w+"
"""EC2 user guide, encryption in transit: these machines encrypt traffic between them, in one VPC or in peered
ones, if no load balancer or transit gateway is between them. By type: `EncryptionInTransitSupported` of
DescribeInstanceTypes, as listed in aws/karpenter-provider-aws, instance-types.md (1d92708, 2026-08-21).
"""

SUPPORT = CloudSupport(
    cloud=Cloud.AWS,
    encrypting_machines=ENCRYPTING_MACHINES,
    hub=HubId("transit gateway", r"tgw-[0-9a-f]{8,17}", "its id: tgw-0123456789abcdef0"),
    existing_network=NetworkIds(
        network=r"vpc-[0-9a-f]{8,17}",
        network_example="vpc-0123456789abcdef0",
        subnet=r"subnet-[0-9a-f]{8,17}",
        subnet_example="subnet-0123456789abcdef0",
    ),
    identities=IdentityIds(
        noun="role",
        # IAM identifiers, ARNs; the path is part of a role's ARN.
        pattern=r"arn:aws[a-z-]*:iam::(?P<account>\d{12}):role/[\w+=,.@/-]+",
        example="arn:aws:iam::111122223333:role/training-platform-nodes",
        purposes=ROLE_PURPOSES,
        needed=role_purposes,
        rights=role_rights,
        boundary=r"arn:aws[a-z-]*:iam::(?P<account>\d{12}|aws):policy/[\w+=,.@/-]+",
    ),
    extra="aws",
    modules=("pulumi", "pulumi_aws", "pulumi_kubernetes"),
    tools=("aws",),
    # ECR user guide, private registry authentication.
    registry_login=RegistryLogin(
        r"\d{12}\.dkr\.ecr(?:-fips)?\.(?P<region>[a-z0-9-]+)\.amazonaws\.com(?:\.cn)?",
        ("aws", "ecr", "get-login-password", "--region", "{region}"),
        user="AWS",
    ),
    packages=("aws", "aws-native"),
    provider_settings=(("aws:region", "region"),),
    check_settings=check_settings,
    settings_schema={
        ALLOWED_ACCOUNTS: {
            "description": "Accounts that the AWS provider may use; must contain the platform's `account`."
        }
    },
    region_example="us-east-2",
    account=AccountId("account", r"\d{12}", "twelve digits in quotes", required=False),
    capacities=(Capacity.ON_DEMAND, Capacity.SPOT, Capacity.RESERVED, Capacity.CAPACITY_BLOCK),
    pool_kinds=("nodes", "hyperpod"),
    reservations={"nodes": CAPACITY_RESERVATION, "hyperpod": TRAINING_PLAN},
    group_zones=group_zones,
    unpriced_is_unsold=True,
    # EKS user guide, Kubernetes versions, FAQ; EKS API, UpdateNodegroupVersion, releaseVersion
    pool_skew=3,
    drain_minutes=15,  # EKS user guide, managed node update behavior: PodEvictionFailure
    fast_image_pull=True,
    image_release=r"(1\.\d{2})\.\d+-\d{8}",
    allocatable=node_allocatable,
    topology_levels=topology_levels,
    rules=RULES,
    standing_costs=standing_costs,
    node_disk=node_disk,
)
