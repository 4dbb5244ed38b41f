"""Cases of the rules: for each, what breaks it, where it must say so and how, and what keeps it. Data for
test_rules.py.
"""

from __future__ import annotations

from typing import Any, NamedTuple

OWNER = "ml-platform@example.com"
POOL = {"name": "l4", "accelerator": "L4", "per_node": 4, "max_nodes": 2}
AWS: dict[str, Any] = {
    "name": "demo",
    "cloud": "aws",
    "region": "us-east-2",
    "owner": OWNER,
    "kubernetes": {"access": {"public_ranges": ["203.0.113.0/24"]}},
    "gpu_pools": [POOL],
}
LOCAL: dict[str, Any] = {
    "name": "demo",
    "cloud": "local",
    "owner": OWNER,
    "storage": {"bucket_url": "s3://runs"},
}
BASES = {"aws": AWS, "local": LOCAL}
CR = "cr-0123456789abcdef0"
FABRIC = {
    "gpu_pools[0].accelerator": "H100",
    "gpu_pools[0].per_node": 8,
    "gpu_pools[0].interconnect": "best",
    "gpu_pools[0].compact": True,
}
FACTS = {"vcpu": 48, "memory_gib": 192, "gpu_memory_gib": 24}
P5E = {
    "gpu_pools[0].accelerator": "H200",
    "gpu_pools[0].per_node": 8,
    "gpu_pools[0].instance_type": "p5e.48xlarge",
}
TOPOLOGY = {
    "queue.enabled": True,
    "gpu_pools[0].accelerator": "H100",
    "gpu_pools[0].per_node": 8,
    "gpu_pools[0].min_nodes": 2,
    "gpu_pools[0].topology": {},
}
HYPERPOD = {"gpu_pools[0].kind": "hyperpod", "gpu_pools[0].min_nodes": 2}
PLAN = "arn:aws:sagemaker:us-east-2:111122223333:training-plan/my-plan"
LAUNCHER = "arn:aws:iam::111122223333:role/ml-engineer"
PUBLIC, PRIVATE = "kubernetes.access.public_ranges", "kubernetes.access.private_ranges"
CLOSED = {"kubernetes.access": {"endpoint": "private"}}
HUB = {"network.hub": {"id": "tgw-0123456789abcdef0"}}
SUBNET = "subnet-0123456789abcdef0"
VPC: dict[str, Any] = {
    "id": "vpc-0123456789abcdef0",
    "subnets": {"us-east-2a": SUBNET, "us-east-2b": "subnet-0123456789abcdef1"},
}
GOOGLE = {
    "cloud": "gcp",
    "region": "us-central1",
    "account": "my-project-123456",
    "gpu_pools[0].per_node": 1,
}
IDENTITIES, BOUNDARY = "identities.existing", "identities.permission_boundary"
ROLE = "arn:aws:iam::111122223333:role/{}"
ROLES = {
    purpose: ROLE.format(purpose)
    for purpose in ("cluster", "nodes", "cni", "csi-disk", "autoscaler", "training", "logs", "flow-logs")
}
SHARED_VPC = {
    "id": "projects/my-host/global/networks/shared",
    "subnets": {"nodes": "projects/my-host/regions/us-central1/subnetworks/training"},
    "ranges": {"pods": "training-pods", "services": "training-services"},
}
LUSTRE = "storage.shared_filesystem"
TWO_POOLS = [POOL, {"name": "a10g", "accelerator": "A10G"}]
SLACK = {"name": "chat", "kind": "slack", "secret": "alerts-slack"}
PAGER = {"name": "pager", "kind": "pagerduty", "secret": "alerts-pager", "severities": ["critical"]}
HOOK = {"name": "hook", "kind": "webhook", "secret": "alerts-hook"}
MAIL = {
    "name": "mail",
    "kind": "email",
    "to": ["a@example.com", "b@example.com"],
    "sender": "alerts@example.com",
    "smarthost": "smtp.example.com:587",
    "username": "alerts",
    "secret": "alerts-mail",
}


class Case(NamedTuple):
    """A rule, changes that break it, where it must say so, a part of what it must say or advise, and changes
    that keep it.
    """

    rule: str
    bad: dict[str, Any]
    where: str
    says: str
    good: dict[str, Any] = {}
    base: str = "aws"


CASES = [
    *(
        Case(
            "capacity_is_sold",
            {"cloud": "azure", "gpu_pools[0].capacity": capacity},
            "gpu_pools[0].capacity",
            f"azure does not sell `{capacity}` -> one of on-demand, spot, reserved",
            {"cloud": "azure", "gpu_pools[0].capacity": "spot"},
        )
        for capacity in ("flex-start", "queued", "capacity-block")
    ),
    *(
        Case(
            "network_has_egress",
            {**cloud, "network.nat": "none"},
            "network.nat",
            "the images of the cluster layer are in public registries -> per-zone or single",
            {**cloud, "network.nat": "single"},
        )
        for cloud in ({}, GOOGLE, {"cloud": "azure"})
    ),
    *(
        Case(
            "placement_group_belongs",
            {**other, "gpu_pools[0].placement_group": "near"},
            "gpu_pools[0].placement_group",
            says,
            {"gpu_pools[0].capacity": "reserved", "gpu_pools[0].reservation": CR}
            | {"gpu_pools[0].placement_group": "near"},
        )
        for other, says in (
            ({}, "has no effect with capacity `on-demand` of kind `nodes` on aws"),
            (
                {"gpu_pools[0].capacity": "capacity-block", "gpu_pools[0].reservation": CR},
                "has no effect with capacity `capacity-block`",
            ),
            ({"cloud": "azure", "gpu_pools[0].capacity": "reserved"}, "of kind `nodes` on azure"),
        )
    ),
    *(
        Case(
            "fast_image_pull_belongs",
            {**other, "gpu_pools[0].fast_image_pull": True},
            "gpu_pools[0].fast_image_pull",
            f"has no effect on pools of kind `nodes` on {cloud} -> leave it out",
            {"gpu_pools[0].fast_image_pull": True},
        )
        for cloud, other in (("gcp", GOOGLE), ("azure", {"cloud": "azure"}))
    ),
    Case("region_is_named", {"region": ""}, "region", "is missing", {"region": "eu-west-1"}),
    *(
        Case("aws_region_is_known", {"region": region}, "region", f"is in {partition}")
        for region, partition in (
            ("cn-north-1", "AWS China (partition `aws-cn`), which this release does not support"),
            ("us-gov-west-1", "AWS GovCloud"),
            ("eusc-de-east-1", "the AWS European Sovereign Cloud"),
        )
    ),
    Case("aws_region_is_known", {"region": "us-eas-2"}, "region", "did you mean `us-east-2`?"),
    Case("aws_region_has_zones", {"network.zones": 1}, "network.zones", "at least 2", {"network.zones": 2}),
    Case(
        "aws_region_has_zones",
        {"region": "us-west-1", "network.zones": 3},
        "network.zones",
        "at most 2",
        {"region": "us-west-1", "network.zones": 2},
    ),
    Case(
        "aws_region_has_zones",
        {"network.zones": 4},
        "network.zones",
        "at most 3",
        {"region": "us-west-2", "network.zones": 4},
    ),
    Case(
        "aws_zones_are_in_the_region",
        {"gpu_pools[0].zone": "us-east-1a"},
        "gpu_pools[0].zone",
        "us-east-2a",
        {"gpu_pools[0].zone": "us-east-2c"},
    ),
    Case(
        "aws_zones_are_in_the_region",
        {"gpu_pools[0].zone": "us-east-2a,us-east-2b"},
        "gpu_pools[0].zone",
        "one zone",
    ),
    Case("local_has_no_cloud", {"region": "us-east-2"}, "region", "leave it out", base="local"),
    Case("local_has_no_cloud", {"network.zones": 2}, "network", "leave it out", base="local"),
    Case("local_has_no_cloud", {"system_pool.size": "large"}, "system_pool", "leave it out", base="local"),
    Case("local_has_no_cloud", {"budget": {"monthly_usd": 5}}, "budget", "leave it out", base="local"),
    Case(
        "local_has_no_cloud",
        {"storage.shared_filesystem": {}},
        "storage.shared_filesystem",
        "leave it out",
        base="local",
    ),
    Case(
        "local_has_no_cloud",
        {"kubernetes.admins": ["me"]},
        "kubernetes.admins",
        "leave it out",
        {"kubernetes.context": "kind"},
        base="local",
    ),
    Case(
        "local_has_no_cloud",
        {"gpu_pools": [{**POOL, "capacity": "spot"}]},
        "gpu_pools[0].capacity",
        "leave it out",
        {"gpu_pools": [POOL]},
        "local",
    ),
    Case(
        "local_has_no_cloud",
        {"gpu_pools": [{**POOL, "compact": True}]},
        "gpu_pools[0].compact",
        "leave it out",
        base="local",
    ),
    Case(
        "local_has_a_store",
        {"storage.bucket_url": ""},
        "storage.bucket_url",
        "is missing",
        {"storage.bucket_url": "file:///runs"},
        "local",
    ),
    Case(
        "local_has_a_store",
        {"storage.bucket_url": "ftp://x"},
        "storage.bucket_url",
        "s3://",
        {"storage.bucket_url": "az://c/runs"},
        "local",
    ),
    Case("existing_cluster_settings", {"storage.bucket_url": "s3://x"}, "storage.bucket_url", "local only"),
    Case("existing_cluster_settings", {"storage.secret": "keys"}, "storage.secret", "local only"),
    Case("existing_cluster_settings", {"storage.port": 9000}, "storage.port", "local only"),
    Case("existing_cluster_settings", {"kubernetes.context": "kind"}, "kubernetes.context", "local only"),
    Case("existing_cluster_settings", {"kubernetes.kubeconfig": "x"}, "kubernetes.kubeconfig", "local only"),
    Case(
        "local_has_no_secret_store",
        {"secrets.names": ["a"]},
        "secrets.provider",
        "none",
        {"secrets": {"provider": "none", "names": ["a"]}},
        "local",
    ),
    Case(
        "aws_vpc_size",
        {"network.cidr": "10.0.0.0/8"},
        "network.cidr",
        "a /16 to a /20",
        {"network.cidr": "10.0.0.0/16"},
    ),
    Case(
        "aws_vpc_size",
        {"network.cidr": "10.0.0.0/28"},
        "network.cidr",
        "a /16 to a /20",
        {"network.cidr": "10.0.0.0/20"},
    ),
    Case(
        "aws_vpc_is_private",
        {"network.cidr": "52.0.0.0/16"},
        "network.cidr",
        "10.0.0.0/8",
        {"network.cidr": "100.64.0.0/16"},
    ),
    Case(
        "aws_pods_have_addresses",
        {"network.cidr": "10.0.0.0/20", "gpu_pools[0].max_nodes": 16},
        "network.cidr",
        "a /19 or larger",
        {"network.cidr": "10.0.0.0/20"},
    ),
    Case(
        "aws_pods_have_addresses",
        {**FABRIC, "network.cidr": "10.0.0.0/20", "gpu_pools[0].max_nodes": 4},
        "network.cidr",
        "us-east-2a needs",
        FABRIC,
    ),
    Case("aws_pods_have_addresses", {"gpu_pools[0].max_nodes": 5000}, "network.cidr", "fewer nodes"),
    Case(
        "endpoint_is_reachable",
        {"kubernetes.access": {}},
        PUBLIC,
        "nobody could reach the API server",
        {"kubernetes.access": {"public_ranges": ["203.0.113.0/24"]}},
    ),
    Case(
        "endpoint_is_reachable",
        CLOSED,
        PRIVATE,
        "no machine that could install the cluster layer is in it",
        {**HUB, "kubernetes.access": {"private_ranges": ["192.168.0.0/24"]}},
    ),
    Case(
        "endpoint_is_reachable",
        {"kubernetes.access": {"endpoint": "dns"}},
        "kubernetes.access.endpoint",
        "aws has no dns endpoint",
        {"kubernetes.access": {"endpoint": "public", "public_ranges": ["203.0.113.0/24"]}},
    ),
    Case(
        "endpoint_is_reachable",
        {
            **HUB,
            "kubernetes.access": {
                "endpoint": "private",
                "public_ranges": ["203.0.113.0/24"],
                "private_ranges": ["192.168.0.0/24"],
            },
        },
        PUBLIC,
        "has no effect on a private endpoint",
    ),
    Case(
        "private_ranges_are_connected",
        {PRIVATE: ["192.168.0.0/24"]},
        PRIVATE,
        "network.hub",
        {PRIVATE: ["192.168.0.0/24"], **HUB},
    ),
    Case(
        "existing_network_is_complete",
        {"network.existing": {**VPC, "id": "vpc-x"}},
        "network.existing.id",
        "vpc-0123456789abcdef0",
        {"network.existing": VPC},
    ),
    Case(
        "existing_network_is_complete",
        {"network.existing": {**VPC, "subnets": {"us-east-2a": SUBNET}}},
        "network.existing.subnets",
        "two zones",
    ),
    Case(
        "existing_network_is_complete",
        {"network.existing": {**VPC, "subnets": {**VPC["subnets"], "eu-west-1a": SUBNET}}},
        "network.existing.subnets.eu-west-1a",
        "is not a zone of us-east-2",
    ),
    Case(
        "existing_network_is_complete",
        {"network.existing": VPC, "gpu_pools[0].zone": "us-east-2c"},
        "gpu_pools[0].zone",
        "one of us-east-2a, us-east-2b",
        {"network.existing": VPC, "gpu_pools[0].zone": "us-east-2b"},
    ),
    Case(
        "existing_network_is_complete",
        {"network.existing": {**VPC, "control_plane_subnets": [SUBNET]}},
        "network.existing.control_plane_subnets",
        "two subnets",
    ),
    Case(
        "existing_network_is_complete",
        {"network.existing": {**VPC, "ranges": {"pods": "p"}}},
        "network.existing.ranges.pods",
        "leave it out",
    ),
    Case(
        "existing_network_has_its_own_settings",
        {"network.existing": VPC, "network.nat": "single"},
        "network.nat",
        "leave it out",
        {"network.existing": VPC},
    ),
    Case(
        "existing_network_has_its_own_settings",
        {"network.existing": VPC, **HUB, PRIVATE: ["192.168.0.0/24"]},
        "network.hub",
        "owner of the existing network",
        {"network.existing": VPC, PRIVATE: ["192.168.0.0/24"]},
    ),
    Case(
        "existing_network_has_what_pools_need",
        {**GOOGLE, "network.existing": SHARED_VPC, LUSTRE: {"kind": "nfs", "capacity_gib": 1024}},
        LUSTRE,
        "not supported in an existing network on gcp",
        {**GOOGLE, "network.existing": SHARED_VPC},
    ),
    Case(
        "existing_identities_are_complete",
        {IDENTITIES: {**ROLES, "loggs": ROLE.format("l")}},
        f"{IDENTITIES}.loggs",
        "did you mean `logs`?",
        {IDENTITIES: ROLES},
    ),
    Case(
        "existing_identities_are_complete",
        {IDENTITIES: {**ROLES, "hyperpod": ROLE.format("h")}},
        f"{IDENTITIES}.hyperpod",
        "has no effect",
    ),
    Case(
        "existing_identities_are_complete",
        {IDENTITIES: {purpose: arn for purpose, arn in ROLES.items() if purpose != "cni"}},
        f"{IDENTITIES}.cni",
        "is missing",
    ),
    Case(
        "existing_identities_are_complete",
        {IDENTITIES: {**ROLES, "cni": "cni"}},
        f"{IDENTITIES}.cni",
        "for example arn:aws:iam::111122223333:role/",
    ),
    Case(
        "existing_identities_are_complete",
        {IDENTITIES: {**ROLES, "cni": "arn:aws:iam::444455556666:role/x"}, "account": "111122223333"},
        f"{IDENTITIES}.cni",
        "a role of 111122223333",
        {IDENTITIES: ROLES, "account": "111122223333"},
    ),
    Case(
        "existing_identities_are_complete",
        {"identities": {"existing": {"nodes": "x"}}},
        IDENTITIES,
        "has no effect on local",
        base="local",
    ),
    Case(
        "identities_are_distinct",
        {IDENTITIES: {**ROLES, "cni": ROLES["nodes"]}},
        f"{IDENTITIES}.cni",
        "also the identity of `nodes`",
        {IDENTITIES: ROLES},
    ),
    Case(
        "boundary_has_an_effect",
        {BOUNDARY: "arn:aws:iam::111122223333:role/x"},
        BOUNDARY,
        "arn:aws:iam::111122223333:policy/boundary",
        {BOUNDARY: "arn:aws:iam::111122223333:policy/x"},
    ),
    Case(
        "boundary_has_an_effect",
        {IDENTITIES: ROLES, BOUNDARY: "arn:aws:iam::111122223333:policy/x"},
        BOUNDARY,
        "the platform creates none",
    ),
    Case(
        "boundary_has_an_effect",
        {**GOOGLE, BOUNDARY: "arn:aws:iam::111122223333:policy/x"},
        BOUNDARY,
        "has no effect on gcp",
        GOOGLE,
    ),
    Case(
        "boundary_has_an_effect",
        {"account": "444455556666", BOUNDARY: "arn:aws:iam::111122223333:policy/x"},
        BOUNDARY,
        "is of account 111122223333",
        {"account": "444455556666", BOUNDARY: "arn:aws:iam::aws:policy/PowerUserAccess"},
    ),
    Case("private_ranges_are_connected", HUB, "network.hub", "kubernetes.access.private_ranges"),
    Case(
        "private_ranges_are_connected",
        {**HUB, PRIVATE: ["203.0.113.0/24"]},
        f"{PRIVATE}[0]",
        "is not private",
    ),
    Case(
        "private_ranges_are_connected",
        {**HUB, PRIVATE: ["10.0.0.0/8"]},
        f"{PRIVATE}[0]",
        "overlaps the platform's own range",
    ),
    Case(
        "hub_is_well_formed",
        {"network.hub": {"id": "vpc-1"}, PRIVATE: ["192.168.0.0/24"]},
        "network.hub.id",
        "tgw-0123456789abcdef0",
        {**HUB, PRIVATE: ["192.168.0.0/24"]},
    ),
    Case(
        "hub_is_well_formed",
        {"network.hub": {"id": "tgw-0123456789abcdef0", "gateway": True}, PRIVATE: ["192.168.0.0/24"]},
        "network.hub.gateway",
        "does not exist on aws",
    ),
    Case(
        "public_ranges_are_narrow",
        {PUBLIC: ["0.0.0.0/0"]},
        f"{PUBLIC}[0]",
        "to the internet",
    ),
    Case(
        "public_ranges_are_narrow",
        {PUBLIC: ["192.0.2.0/24", "0.0.0.0/1"]},
        f"{PUBLIC}[1]",
        "to the internet",
    ),
    Case(
        "public_ranges_are_narrow",
        {PUBLIC: ["10.1.0.0/16"]},
        f"{PUBLIC}[0]",
        "private range",
    ),
    Case(
        "public_ranges_are_narrow",
        {PUBLIC: ["203.0.113.0/25", "192.0.2.0/24", "203.0.113.0/24"]},
        f"{PUBLIC}[0]",
        "is contained in 203.0.113.0/24",
        {PUBLIC: ["203.0.113.0/25", "203.0.113.128/25"]},
    ),
    Case(
        "public_ranges_are_narrow",
        {PUBLIC: ["192.0.2.0/24"] * 2},
        f"{PUBLIC}[1]",
        "twice",
        {PUBLIC: ["192.0.2.0/24"]},
    ),
    Case(
        "accelerator_is_sold",
        {"gpu_pools[0].accelerator": "H10"},
        "gpu_pools[0].accelerator",
        "did you mean `H100`? one of A100,",
    ),
    Case(
        "accelerator_is_sold",
        {"gpu_pools[0].accelerator": "H100-MEGA"},
        "gpu_pools[0].accelerator",
        "`H100-MEGA` is not in this catalogue of aws",
    ),
    Case(
        "accelerator_is_sold",
        {"gpu_pools[0].per_node": 2},
        "gpu_pools[0].per_node",
        "1 or 4 or 8 per node, or instance_type and its facts in `machine`",
        {
            "gpu_pools[0].per_node": 2,
            "gpu_pools[0].instance_type": "g6x.24xlarge",
            "gpu_pools[0].machine": FACTS,
        },
    ),
    Case(
        "instance_type_fits",
        {"gpu_pools[0].instance_type": "g6.12xlarg"},
        "gpu_pools[0].instance_type",
        "did you mean `g6.12xlarge`?",
        {"gpu_pools[0].instance_type": "g6.12xlarge"},
    ),
    Case(
        "instance_type_fits",
        {"gpu_pools[0].instance_type": "x99.12xlarge"},
        "gpu_pools[0].instance_type",
        "is not in this catalogue of aws",
        {"gpu_pools[0].instance_type": "x99.12xlarge", "gpu_pools[0].machine": FACTS},
    ),
    Case(
        "instance_type_fits",
        {"gpu_pools[0].machine": FACTS},
        "gpu_pools[0].instance_type",
        "is missing: `machine` states the facts of one",
        {"gpu_pools[0].machine": FACTS, "gpu_pools[0].instance_type": "x99.12xlarge"},
    ),
    Case(
        "instance_type_fits",
        {"gpu_pools[0].machine": {**FACTS, "rdma": "efa"}, "gpu_pools[0].instance_type": "x99.12xlarge"},
        "gpu_pools[0].machine.rdma_nics",
        "0 interfaces do not go with rdma: efa",
        {
            "gpu_pools[0].machine": {**FACTS, "rdma": "efa", "rdma_nics": 4},
            "gpu_pools[0].instance_type": "x99.12xlarge",
        },
    ),
    Case(
        "machine_is_in_the_region",
        {**FABRIC, "gpu_pools[0].accelerator": "B300", "region": "eu-west-3"},
        "gpu_pools[0].accelerator",
        "p6-b300.48xlarge in eu-west-3 is not in this catalogue -> one of us-",
        {**FABRIC, "gpu_pools[0].accelerator": "B300", "region": "us-west-2"},
    ),
    Case(
        "machine_is_in_the_region",
        {"gpu_pools[0].instance_type": "g6.12xlarge", "region": "af-south-1"},
        "gpu_pools[0].instance_type",
        "g6.12xlarge in af-south-1 is not in this catalogue",
        {"gpu_pools[0].instance_type": "g6.12xlarge", "region": "af-south-1", "gpu_pools[0].machine": FACTS},
    ),
    Case(
        "instance_type_fits",
        {"gpu_pools[0].instance_type": "g6.48xlarge"},
        "gpu_pools[0].instance_type",
        "carries 8 x L4, not 4 x L4",
    ),
    Case(
        "instance_type_fits",
        {"gpu_pools[0].instance_type": "m7i.large"},
        "gpu_pools[0].instance_type",
        "carries no GPU",
    ),
    Case(
        "fabric_exists",
        {
            "gpu_pools": [
                {"name": "a", "accelerator": "A10G", "interconnect": "best", "instance_type": "g5.xlarge"}
            ]
        },
        "gpu_pools[0].interconnect",
        "g5.48xlarge",
        FABRIC,
    ),
    Case(
        "aws_fabric_is_compact",
        {**FABRIC, "gpu_pools[0].compact": False},
        "gpu_pools[0].compact",
        "does not work across zones",
        FABRIC,
    ),
    Case(
        "nodes_are_in_order",
        {"gpu_pools[0].min_nodes": 3},
        "gpu_pools[0].max_nodes",
        "at least 3",
        {"gpu_pools[0].min_nodes": 2},
    ),
    Case(
        "nodes_are_in_order",
        {"system_pool.min_nodes": 5},
        "system_pool.max_nodes",
        "at least 5",
        {"system_pool.min_nodes": 4},
    ),
    Case(
        "names_are_unique",
        {"gpu_pools": [POOL, POOL]},
        "gpu_pools[1].name",
        "already",
        {"gpu_pools": TWO_POOLS},
    ),
    Case("names_are_unique", {"gpu_pools[0].name": "system"}, "gpu_pools[0].name", "another name"),
    Case(
        "accelerator_is_sold",
        {**HYPERPOD, "gpu_pools[0].accelerator": "RTXPRO4500"},
        "gpu_pools[0].accelerator",
        "`RTXPRO4500` is not in this catalogue of HyperPod",
        HYPERPOD,
    ),
    Case(
        "accelerator_is_sold",
        {**HYPERPOD, "gpu_pools[0].per_node": 2},
        "gpu_pools[0].per_node",
        "no machine with 2 x L4 is in this catalogue of HyperPod",
    ),
    Case(
        "instance_type_fits",
        {**HYPERPOD, "gpu_pools[0].instance_type": "g6.12xlarge"},
        "gpu_pools[0].instance_type",
        "leave it out, or ml.g6.12xlarge",
        {**HYPERPOD, "gpu_pools[0].instance_type": "ml.g6.12xlarge"},
    ),
    Case(
        "instance_type_fits",
        {"gpu_pools[0].instance_type": "ml.g6.12xlarge"},
        "gpu_pools[0].instance_type",
        "leave it out, or g6.12xlarge",
    ),
    Case(
        "kind_is_offered",
        {**HYPERPOD, "cloud": "gcp"},
        "gpu_pools[0].kind",
        "no pools of kind `hyperpod`",
        HYPERPOD,
    ),
    Case(
        "hyperpod_is_available",
        {**HYPERPOD, "region": "eu-south-2"},
        "gpu_pools[0].kind",
        "there is no HyperPod in eu-south-2",
    ),
    Case(
        "hyperpod_is_available",
        {**HYPERPOD, "kubernetes.version": "1.36"},
        "kubernetes.version",
        "one of 1.34, 1.35",
        {**HYPERPOD, "kubernetes.version": "1.34"},
    ),
    Case(
        "hyperpod_capacity",
        {**HYPERPOD, "gpu_pools[0].capacity": "spot"},
        "gpu_pools[0].capacity",
        "on-demand or reserved",
        {**HYPERPOD, "gpu_pools[0].capacity": "reserved", "gpu_pools[0].reservation": PLAN},
    ),
    Case(
        "hyperpod_capacity",
        {**HYPERPOD, "gpu_pools[0].capacity": "capacity-block"},
        "gpu_pools[0].capacity",
        "does not sell `capacity-block`",
    ),
    Case(
        "hyperpod_has_a_fixed_size",
        {**HYPERPOD, "gpu_pools[0].min_nodes": 0},
        "gpu_pools[0].min_nodes",
        "its 2 nodes always run",
        HYPERPOD,
    ),
    Case(
        "hyperpod_labels",
        {**HYPERPOD, "gpu_pools[0].labels": {"team": ""}},
        "gpu_pools[0].labels.team",
        "a value",
        {**HYPERPOD, "gpu_pools[0].labels": {"team": "ml"}},
    ),
    Case(
        "hyperpod_labels",
        {**HYPERPOD, "gpu_pools[0].labels": {f"l{i}": "x" for i in range(46)}},
        "gpu_pools[0].labels",
        "at most 45",
    ),
    Case(
        "reservation_belongs",
        {**HYPERPOD, "gpu_pools[0].capacity": "reserved", "gpu_pools[0].reservation": CR},
        "gpu_pools[0].reservation",
        "is not the id of a training plan",
        {**HYPERPOD, "gpu_pools[0].capacity": "reserved", "gpu_pools[0].reservation": PLAN},
    ),
    Case(
        "account_is_named",
        {"account": "11112222333"},
        "account",
        "twelve digits",
        {"account": "111122223333"},
    ),
    Case(
        "account_is_named",
        {"cloud": "gcp"},
        "account",
        "belongs to a project",
        {"cloud": "gcp", "account": "my-project-123456"},
    ),
    Case(
        "account_is_named",
        {"cloud": "azure", "account": "my-subscription"},
        "account",
        "is not the id of a subscription",
        {"cloud": "local"},
    ),
    Case("local_has_no_cloud", {"account": "111122223333"}, "account", "leave it out", base="local"),
    Case(
        "certificates_are_signed",
        {"layer.certificates": "none"},
        "layer.certificates",
        "ray.tls",
        {"layer.certificates": "none", "ray.tls": False},
    ),
    Case(
        "redis_is_whole",
        {"ray.redis": {"mode": "existing"}},
        "ray.redis.address",
        "is missing -> redis://HOST:PORT",
        {"ray.redis": {"mode": "existing", "address": "redis://r:6379", "password_secret": "keys"}},
    ),
    Case(
        "redis_is_whole",
        {"ray.redis": {"address": "redis://r:6379"}},
        "ray.redis.address",
        "no effect with mode: none",
        {"ray.redis": {"mode": "in-cluster", "storage_gib": 2}},
    ),
    Case(
        "redis_is_whole",
        {"ray.redis": {"mode": "existing", "address": "redis://r:6379", "storage_gib": 2}},
        "ray.redis.storage_gib",
        "no effect with mode: existing -> leave it out",
        {"ray.redis": {"mode": "existing", "address": "redis://r:6379"}},
    ),
    Case(
        "receivers_have_their_sender",
        {"monitoring": {"enabled": False, "alertmanager_secret": "alerts"}},
        "monitoring.alertmanager_secret",
        "has no effect without Alertmanager",
        {"monitoring": {"alertmanager_secret": "alerts"}},
    ),
    Case(
        "receivers_have_their_sender",
        {"monitoring": {"enabled": False, "receivers": [SLACK]}},
        "monitoring.receivers",
        "has no effect without Alertmanager",
        {"monitoring": {"receivers": [SLACK]}},
    ),
    Case(
        "receivers_have_their_sender",
        {"monitoring": {"alertmanager_secret": "alerts", "receivers": [SLACK]}},
        "monitoring.alertmanager_secret",
        "which `receivers` would replace",
        {"monitoring": {"receivers": [SLACK, PAGER, HOOK, MAIL]}},
    ),
    Case(
        "receivers_are_complete",
        {"monitoring": {"receivers": [{"name": "a", "kind": "slack"}]}},
        "monitoring.receivers[0].secret",
        "is needed by slack",
        {"monitoring": {"receivers": [SLACK]}},
    ),
    Case(
        "receivers_are_complete",
        {"monitoring": {"receivers": [SLACK, {**MAIL, "smarthost": ""}]}},
        "monitoring.receivers[1].smarthost",
        "is needed by email",
        {"monitoring": {"receivers": [MAIL]}},
    ),
    Case(
        "receivers_are_complete",
        {"monitoring": {"receivers": [{**PAGER, "channel": "#ml"}]}},
        "monitoring.receivers[0].channel",
        "has no effect on pagerduty",
        {"monitoring": {"receivers": [PAGER]}},
    ),
    Case(
        "receivers_are_complete",
        {"monitoring": {"receivers": [{**MAIL, "secret": ""}]}},
        "monitoring.receivers[0].secret",
        "a login is a `username` and a `secret`",
        {"monitoring": {"receivers": [{**MAIL, "secret": "", "username": ""}]}},
    ),
    Case(
        "receivers_are_complete",
        {"monitoring": {"receivers": [SLACK, {**HOOK, "name": "chat"}]}},
        "monitoring.receivers[1].name",
        "`chat` is taken",
        {"monitoring": {"receivers": [SLACK, HOOK]}},
    ),
    Case(
        "queue_has_its_operator",
        {"queue.enabled": True, "layer.kuberay": False},
        "layer.kuberay",
        "queue.enabled: false",
        {"queue.enabled": True},
    ),
    Case(
        "launchers_have_their_role",
        {"kubernetes.launchers": [LAUNCHER], "layer.launcher_access": False},
        "layer.launcher_access",
        "would have no permissions",
        {"layer.launcher_access": False},
    ),
    Case(
        "pods_are_changed_by_valid_patches",
        {"pod_template.workers": {"spec": {"containers": [{"name": "trainer", "image": "mine:1"}]}}},
        "pod_template.workers",
        "workers.spec.containers[0].image: is set by the launcher",
        {"pod_template.workers": {"spec": {"containers": [{"name": "trainer", "tty": True}]}}},
    ),
    Case(
        "a_launcher_token_has_its_account",
        {"layer.launcher_token": True, "layer.launcher_access": False},
        "layer.launcher_token",
        "is a token of an account that launcher_access: false does not create",
        {"layer.launcher_access": False},
    ),
    Case(
        "aws_people_are_roles",
        {"kubernetes.launchers": [OWNER]},
        "kubernetes.launchers[0]",
        "arn:aws:iam::",
        {"kubernetes.launchers": [LAUNCHER]},
    ),
    Case(
        "local_launchers_are_groups",
        {"kubernetes.launchers": ["system:masters"]},
        "kubernetes.launchers[0]",
        "not a group of yours",
        {"kubernetes.launchers": ["ml-engineers"]},
        "local",
    ),
    Case(
        "launchers_are_not_admins",
        {"kubernetes.launchers": [LAUNCHER], "kubernetes.admins": [LAUNCHER]},
        "kubernetes.launchers[0]",
        "already an administrator",
        {"kubernetes.launchers": [LAUNCHER]},
    ),
    Case(
        "lists_have_no_duplicates",
        {"kubernetes.launchers": [LAUNCHER] * 2},
        "kubernetes.launchers[1]",
        "keep one",
    ),
    Case(
        "lists_have_no_duplicates",
        {
            "exceptions": [
                {
                    "policy": "no-host-path",
                    "resource": "it",
                    "reason": "because of this",
                    "until": "9999-01-01",
                }
            ]
            * 2
        },
        "exceptions[1]",
        "keep one",
    ),
    Case(
        "capacity_is_sold",
        {"gpu_pools[0].capacity": "flex-start"},
        "gpu_pools[0].capacity",
        "on-demand, spot",
        {"gpu_pools[0].capacity": "spot"},
    ),
    Case(
        "capacity_is_sold",
        {"gpu_pools[0].capacity": "queued"},
        "gpu_pools[0].capacity",
        "aws does not sell `queued`",
    ),
    Case(
        "aws_blocks_are_sold",
        {"gpu_pools[0].capacity": "capacity-block"},
        "gpu_pools[0].capacity",
        "no capacity blocks of g6.12xlarge",
        {**FABRIC, "gpu_pools[0].capacity": "capacity-block"},
    ),
    Case(
        "capacity_is_sold",
        {"cloud": "gcp", "gpu_pools[0].capacity": "capacity-block"},
        "gpu_pools[0].capacity",
        "reserved",
        {"cloud": "gcp", "gpu_pools[0].capacity": "queued"},
    ),
    Case(
        "price_is_known",
        P5E,
        "gpu_pools[0].capacity",
        "p5en.48xlarge, or another capacity",
        {**P5E, "gpu_pools[0].capacity": "capacity-block"},
    ),
    Case(
        "price_is_known",
        {"gpu_pools": [{"name": "h", "accelerator": "H100", "capacity": "spot"}]},
        "gpu_pools[0].capacity",
        "no spot price",
        {"gpu_pools": [{"name": "h", "accelerator": "H100"}]},
    ),
    Case(
        "reservation_belongs",
        {"gpu_pools[0].capacity": "reserved"},
        "gpu_pools[0].reservation",
        "is missing",
        {"gpu_pools[0].capacity": "reserved", "gpu_pools[0].reservation": CR},
    ),
    Case(
        "reservation_belongs",
        {"gpu_pools[0].capacity": "capacity-block"},
        "gpu_pools[0].reservation",
        "is missing",
    ),
    Case(
        "reservation_belongs",
        {"gpu_pools[0].capacity": "spot", "gpu_pools[0].reservation": CR},
        "gpu_pools[0].reservation",
        "has no effect with capacity `spot`",
    ),
    Case(
        "reservation_belongs",
        {"gpu_pools[0].capacity": "reserved", "gpu_pools[0].reservation": "cr-xyz"},
        "gpu_pools[0].reservation",
        "17 digits",
    ),
    Case(
        "reservations_are_not_shared",
        {"gpu_pools": [{**pool, "capacity": "reserved", "reservation": CR} for pool in TWO_POOLS]},
        "gpu_pools[1].reservation",
        "a reservation of its own",
        {
            "gpu_pools": [
                {**pool, "capacity": "reserved", "reservation": f"cr-{index:017x}"}
                for index, pool in enumerate(TWO_POOLS)
            ]
        },
    ),
    Case(
        "blocks_start_empty",
        {"gpu_pools[0].capacity": "capacity-block", "gpu_pools[0].min_nodes": 1},
        "gpu_pools[0].min_nodes",
        "0",
        {"gpu_pools[0].capacity": "capacity-block"},
    ),
    Case(
        "capacities_are_distinct",
        {"gpu_pools[0].capacity": ["spot", "on-demand", "spot"]},
        "gpu_pools[0].capacity[2]",
        "each capacity once",
        {"gpu_pools[0].capacity": ["spot", "on-demand"]},
    ),
    Case(
        "hyperpod_has_one_capacity",
        {**HYPERPOD, "gpu_pools[0].capacity": ["on-demand", "reserved"], "gpu_pools[0].reservation": PLAN},
        "gpu_pools[0].capacity",
        "a HyperPod pool has one capacity",
        {"gpu_pools[0].capacity": ["on-demand", "spot"]},
    ),
    Case(
        "capacity_block_belongs",
        {"gpu_pools[0].capacity": ["capacity-block", "spot"], "gpu_pools[0].capacity_block": CR},
        "gpu_pools[0].capacity_block",
        "write it in `reservation`",
        {**P5E, "gpu_pools[0].capacity": ["capacity-block", "spot"], "gpu_pools[0].reservation": CR},
    ),
    Case(
        "capacity_block_belongs",
        {"gpu_pools[0].capacity": "reserved", "gpu_pools[0].capacity_block": CR},
        "gpu_pools[0].capacity_block",
        "does not list both reserved and capacity-block",
    ),
    Case(
        "reservation_belongs",
        {**P5E, "gpu_pools[0].capacity": ["reserved", "capacity-block"], "gpu_pools[0].reservation": CR},
        "gpu_pools[0].capacity_block",
        "capacity `capacity-block` requires a capacity reservation",
        {
            **P5E,
            "gpu_pools[0].capacity": ["reserved", "capacity-block"],
            "gpu_pools[0].reservation": CR,
            "gpu_pools[0].capacity_block": "cr-0fedcba9876543210",
        },
    ),
    Case(
        "reservation_belongs",
        {"gpu_pools[0].capacity": ["reserved", "spot"]},
        "gpu_pools[0].reservation",
        "capacity `reserved` requires",
        {"gpu_pools[0].capacity": ["reserved", "spot"], "gpu_pools[0].reservation": CR},
    ),
    Case(
        "reservation_belongs",
        {"gpu_pools[0].capacity": ["spot", "on-demand"], "gpu_pools[0].reservation": CR},
        "gpu_pools[0].reservation",
        "leave it out",
    ),
    Case(
        "reservations_are_not_shared",
        {
            **P5E,
            "gpu_pools[0].capacity": ["reserved", "capacity-block"],
            "gpu_pools[0].reservation": CR,
            "gpu_pools[0].capacity_block": CR,
        },
        "gpu_pools[0].capacity_block",
        "a reservation of its own",
    ),
    Case(
        "capacity_is_sold",
        {"gpu_pools[0].capacity": ["spot", "flex-start"]},
        "gpu_pools[0].capacity",
        "aws does not sell `flex-start`",
        {"gpu_pools[0].capacity": ["spot", "on-demand"]},
    ),
    Case(
        "groups_have_unique_names",
        {
            "gpu_pools": [
                {**POOL, "capacity": ["reserved", "spot"], "reservation": CR},
                {**POOL, "name": "l4-reserved"},
            ]
        },
        "gpu_pools[1].name",
        "is the name of a node group of pool `l4`",
        {
            "gpu_pools": [
                {**POOL, "capacity": ["reserved", "spot"], "reservation": CR},
                {**POOL, "name": "l4-other"},
            ]
        },
    ),
    Case(
        "labels_are_free",
        {"gpu_pools[0].labels": {"nvidia.com/gpu.product": "x"}},
        'gpu_pools[0].labels["nvidia.com/gpu.product"]',
        "nvidia.com",
        {"gpu_pools[0].labels": {"example.com/team": "ml"}},
    ),
    Case(
        "labels_are_free",
        {"gpu_pools[0].labels": {"node.kubernetes.io/x": "x"}},
        'gpu_pools[0].labels["node.kubernetes.io/x"]',
        "kubernetes.io",
    ),
    Case(
        "labels_are_free",
        {"gpu_pools[0].labels": {"skypilot.co/accelerator": "x"}},
        'gpu_pools[0].labels["skypilot.co/accelerator"]',
        "skypilot.co",
    ),
    Case(
        "labels_are_free",
        {"gpu_pools[0].labels": {"trainfleet.io/pool": "x"}},
        'gpu_pools[0].labels["trainfleet.io/pool"]',
        "trainfleet.io",
    ),
    Case(
        "labels_are_free",
        {"gpu_pools": [{**POOL, "labels": {"a/b/c": "x"}}]},
        "gpu_pools[0].labels.a/b/c",
        "key",
        {"gpu_pools": [{**POOL, "labels": {"nvidia.com/gpu.present": "true"}}]},
        "local",
    ),
    Case(
        "labels_are_free",
        {"gpu_pools[0].labels": {"a b": "x"}},
        'gpu_pools[0].labels["a b"]',
        "is not a valid label key",
    ),
    Case(
        "labels_are_free",
        {"gpu_pools[0].labels": {"team": "a b"}},
        "gpu_pools[0].labels.team",
        "is not a valid label value",
        {"gpu_pools[0].labels": {"team": ""}},
    ),
    Case(
        "kubernetes_is_supported",
        {"kubernetes.version": "1.31"},
        "kubernetes.version",
        "Kubernetes 1.31 on EKS is not in this release's support calendar -> one of 1.34, 1.35, 1.36",
        {"kubernetes.version": "1.36"},
    ),
    Case(
        "kubernetes_is_supported",
        {"kubernetes.version": "1.33"},
        "kubernetes.version",
        "EKS's standard support of Kubernetes 1.33 ended on 2026-07-29",
        {"kubernetes.version": "1.34"},
    ),
    Case(
        "pool_versions_are_in_skew",
        {"kubernetes.version": "1.35", "gpu_pools[0].version": "1.36"},
        "gpu_pools[0].version",
        "nodes of 1.36 do not work with a control plane of 1.35 -> 1.32 to 1.35",
        {"kubernetes.version": "1.35", "gpu_pools[0].version": "1.34"},
    ),
    Case(
        "pool_versions_are_in_skew",
        {"kubernetes.version": "1.36", "gpu_pools[0].version": "1.32"},
        "gpu_pools[0].version",
        "1.33 to 1.36",
        {"kubernetes.version": "1.36", "gpu_pools[0].version": "1.33"},
    ),
    Case(
        "pool_versions_are_in_skew",
        {"cloud": "gcp", "gpu_pools[0].version": "1.34"},
        "gpu_pools[0].version",
        "gcp gives a pool's nodes the version of the control plane -> leave it out",
    ),
    Case(
        "pool_versions_are_in_skew",
        {"cloud": "azure", "kubernetes.version": "1.36", "gpu_pools[0].version": "1.33"},
        "gpu_pools[0].version",
        "1.34 to 1.36",
        {"cloud": "azure", "kubernetes.version": "1.36", "gpu_pools[0].version": "1.34"},
    ),
    Case(
        "pool_versions_are_in_skew",
        {**HYPERPOD, "gpu_pools[0].version": "1.34"},
        "gpu_pools[0].version",
        "HyperPod gives a pool's nodes the version",
        HYPERPOD,
    ),
    Case(
        "image_releases_match",
        {"kubernetes.version": "1.35", "gpu_pools[0].image_release": "1.34.1-20261112"},
        "gpu_pools[0].image_release",
        "is an image of Kubernetes 1.34, and the pool has 1.35",
        {
            "kubernetes.version": "1.35",
            "gpu_pools[0].version": "1.34",
            "gpu_pools[0].image_release": "1.34.1-20261112",
        },
    ),
    Case(
        "image_releases_match",
        {"system_pool.image_release": "latest"},
        "system_pool.image_release",
        "`latest` is not a release -> for example 1.35.2-20261112",
        {"system_pool.image_release": "1.35.2-20261112"},
    ),
    Case(
        "image_releases_match",
        {"cloud": "azure", "gpu_pools[0].image_release": "202611.12.0"},
        "gpu_pools[0].image_release",
        "azure chooses the image of a pool's nodes by itself",
    ),
    Case(
        "runs_are_not_kept_longer",
        {"storage.runs_retention_days": 31},
        "storage.runs_retention_days",
        "at most 30",
        {"storage.runs_retention_days": 30},
    ),
    Case(
        "runs_are_not_kept_longer",
        {"storage.runs_retention_days": 3, "storage.versioning": False},
        "storage.runs_retention_days",
        "the bucket keeps none -> storage.versioning: true",
        {"storage.runs_retention_days": 3, "storage.versioning": True},
    ),
    Case(
        "aws_logs_are_kept_as_sold",
        {"kubernetes.log_retention_days": 200},
        "kubernetes.log_retention_days",
        "365, or another",
        {"kubernetes.log_retention_days": 180},
    ),
    Case(
        "aws_logs_are_kept_as_sold",
        {"kubernetes.log_retention_days": 9999},
        "kubernetes.log_retention_days",
        "3653",
    ),
    Case(
        "aws_people_are_roles",
        {"kubernetes.admins": [OWNER]},
        "kubernetes.admins[0]",
        "arn:aws:iam::",
        {"kubernetes.admins": ["arn:aws:iam::111122223333:role/platform-admin"]},
    ),
    Case(
        "aws_filesystem_is_sold",
        {LUSTRE: {"capacity_gib": 3600}},
        f"{LUSTRE}.capacity_gib",
        "4800",
        {LUSTRE: {"capacity_gib": 4800}},
    ),
    Case(
        "aws_filesystem_is_sold",
        {LUSTRE: {"capacity_gib": 500}},
        f"{LUSTRE}.capacity_gib",
        "1200",
        {LUSTRE: {"capacity_gib": 1200}},
    ),
    Case(
        "aws_filesystem_is_sold",
        {LUSTRE: {"capacity_gib": 240000}},
        f"{LUSTRE}.capacity_gib",
        "at most 100800",
    ),
    Case(
        "aws_filesystem_is_sold",
        {LUSTRE: {"kind": "nfs"}},
        f"{LUSTRE}.kind",
        "this release has no `nfs` on aws",
    ),
    Case(
        "network_can_be_encrypted",
        {
            "network.encryption": True,
            "gpu_pools[0].instance_type": "x99.12xlarge",
            "gpu_pools[0].machine": FACTS,
        },
        "gpu_pools[0].instance_type",
        "aws is not known to encrypt the traffic of x99.12xlarge -> another machine, for example g4dn.xlarge",
        {"network.encryption": True},
    ),
    Case("operator_is_known", {"ray.operator": "1.4.0"}, "ray.operator", "1.6.0", {"ray.operator": "1.6.0"}),
    Case(
        "ray_can_authenticate",
        {"ray.version": "2.51.0"},
        "ray.version",
        "2.52.0 or newer",
        {"ray.version": "2.51.0", "ray.token_auth": False},
    ),
    Case(
        "image_is_pinned",
        {"ray.image": "ghcr.io/example/trainfleet"},
        "ray.image",
        "a tag",
        {"ray.image": "ghcr.io/example/trainfleet:1.0"},
    ),
    Case(
        "image_is_pinned",
        {"ray.image": "localhost:5000/trainfleet:latest"},
        "ray.image",
        "a digest",
        {"ray.image": f"localhost:5000/x@sha256:{'0' * 64}"},
    ),
    Case("image_is_pinned", {"ray.image": "a b"}, "ray.image", "is not an image"),
    Case(
        "budget_alerts_are_in_order",
        {"budget": {"monthly_usd": 9, "alert_at": [1, 0.5, 0.5]}},
        "budget.alert_at",
        "[0.5, 1]",
        {"budget": {"monthly_usd": 9}},
    ),
    Case(
        "budget_alerts_are_in_order",
        {"budget": {"monthly_usd": 9, "alert_at": []}},
        "budget.alert_at",
        "is empty",
    ),
    Case(
        "budget_covers_standing_nodes",
        {"budget": {"monthly_usd": 500}},
        "budget.monthly_usd",
        "about 589 USD a month",
        {"budget": {"monthly_usd": 600}},
    ),
    Case(
        "lists_have_no_duplicates",
        {"secrets.names": ["a", "b", "a"]},
        "secrets.names[2]",
        "keep one",
        {"secrets.names": ["a", "b"]},
    ),
    Case(
        "lists_have_no_duplicates",
        {"budget": {"monthly_usd": 9, "emails": [OWNER, OWNER]}},
        "budget.emails[1]",
        "keep one",
        {"budget": {"monthly_usd": 9, "emails": [OWNER]}},
    ),
    Case(
        "tags_are_free", {"tags": {"AWS:x": "1"}}, "tags.AWS:x", "reserved by AWS", {"tags": {"team": "ml"}}
    ),
    Case(
        "tags_are_free", {"tags": {"trainfleet:owner": "1"}}, "tags.trainfleet:owner", "set by the platform"
    ),
    Case("tags_are_free", {"tags": {"Name": "1"}}, "tags.Name", "set by the platform"),
    Case("tags_are_free", {"tags": {"a?": "1"}}, 'tags["a?"]', "is not a valid tag key"),
    Case("tags_are_free", {"tags": {"a": "x" * 257}}, "tags.a", "up to 256"),
    Case(
        "tags_are_free",
        {"tags": {f"t{index}": "" for index in range(46)}},
        "tags",
        "at most 45",
        {"tags": {f"t{index}": "" for index in range(45)}},
    ),
    Case(
        "exceptions_have_not_expired",
        {
            "exceptions": [
                {
                    "policy": "no-host-path",
                    "resource": "it",
                    "reason": "because of this",
                    "until": "2020-01-01",
                }
            ]
        },
        "exceptions[0].until",
        "renew it",
        {
            "exceptions": [
                {
                    "policy": "no-host-path",
                    "resource": "it",
                    "reason": "because of this",
                    "until": "9999-01-01",
                }
            ]
        },
    ),
    Case(
        "exceptions_are_narrow",
        {
            "exceptions": [
                {
                    "policy": "no-host-path",
                    "resource": "*",
                    "reason": "because of this",
                    "until": "9999-01-01",
                }
            ]
        },
        "exceptions[0].resource",
        "a `type`",
        {
            "exceptions": [
                {
                    "policy": "no-host-path",
                    "resource": "*",
                    "type": "kubernetes:apps/v1:DaemonSet",
                    "reason": "because of this",
                    "until": "9999-01-01",
                }
            ]
        },
    ),
    Case(
        "exceptions_name_policies",
        {
            "exceptions": [
                {
                    "policy": "no-host-paths",
                    "resource": "it",
                    "reason": "because of this",
                    "until": "9999-01-01",
                }
            ]
        },
        "exceptions[0].policy",
        "did you mean `no-host-path`?",
        {
            "exceptions": [
                {
                    "policy": "no-public-bucket-everywhere",
                    "resource": "it",
                    "reason": "because of this",
                    "until": "9999-01-01",
                }
            ]
        },
    ),
    Case(
        "topology_has_its_queue",
        {**TOPOLOGY, "queue.enabled": False},
        "gpu_pools[0].topology",
        "is applied by the queue, which is off -> queue.enabled: true",
        TOPOLOGY,
    ),
    Case(
        "topology_levels_are_known",
        {"gpu_pools[0].topology": {}},
        "gpu_pools[0].topology.levels",
        "aws labels no nodes of this pool with their place in the network -> levels: labels that you set",
        {"gpu_pools[0].topology": {"levels": ["example.com/block"]}},
    ),
    Case(
        "topology_levels_are_known",
        {"cloud": "azure", "gpu_pools[0].topology": {}},
        "gpu_pools[0].topology.levels",
        "azure labels no nodes",
        {"cloud": "azure", "gpu_pools[0].topology": {"levels": ["example.com/block"]}},
    ),
    Case(
        "topology_levels_are_known",
        {**TOPOLOGY, "gpu_pools[0].topology": {"levels": ["example.com/block", "kubernetes.io/hostname"]}},
        "gpu_pools[0].topology.levels",
        "is added as the lowest level -> leave it out",
        TOPOLOGY,
    ),
    Case(
        "topology_levels_are_known",
        {"gpu_pools[0].topology": {"levels": ["example.com/block", "example.com/block"]}},
        "gpu_pools[0].topology.levels",
        "a label is listed twice",
        {"gpu_pools[0].topology": {"levels": ["example.com/block", "example.com/rack"]}},
    ),
    Case(
        "topology_levels_are_known",
        {**TOPOLOGY, "gpu_pools[0].topology": {"required": "topology.k8s.aws/network-node-layer-4"}},
        "gpu_pools[0].topology.required",
        "is not a level of this pool -> one of topology.k8s.aws/network-node-layer-1, ",
        {**TOPOLOGY, "gpu_pools[0].topology": {"required": "topology.k8s.aws/network-node-layer-3"}},
    ),
    Case(
        "topology_has_its_nodes",
        {**TOPOLOGY, "gpu_pools[0].min_nodes": 1},
        "gpu_pools[0].topology",
        "of 2 only 1 always do -> min_nodes: 2",
        TOPOLOGY,
    ),
    Case(
        "topology_has_its_nodes",
        {**TOPOLOGY, "gpu_pools[0].capacity": ["on-demand", "spot"]},
        "gpu_pools[0].topology",
        "the groups of a list get theirs on demand -> one capacity",
        {**GOOGLE, "gpu_pools[0].topology": {}, "gpu_pools[0].capacity": "queued"},
    ),
    Case(
        "topology_has_its_nodes",
        {"gpu_pools": [{**POOL, "topology": {"levels": ["example.com/block"]}}]},
        "gpu_pools[0].labels",
        "a flavor with a topology selects its nodes by labels",
        {"gpu_pools": [{**POOL, "topology": {"levels": ["example.com/block"]}, "labels": {"gpu": "yes"}}]},
        base="local",
    ),
    Case(
        "pods_are_changed_by_valid_patches",
        {"gpu_pools[0].pod_template": {"spec": {"containers": [{"name": "trainer", "image": "mine"}]}}},
        "gpu_pools[0].pod_template",
        "spec.containers[0].image",
        {"gpu_pools[0].pod_template": {"spec": {"imagePullSecrets": [{"name": "login"}]}}},
    ),
]
