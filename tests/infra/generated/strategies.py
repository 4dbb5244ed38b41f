"""Strategies for valid platform specs, cloud by cloud, as the documents of stack files.

What a cloud sells and rejects is stated a second time here, independently of the rules.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from trainfleet.infra.aws.layout import HYPERPOD_REGIONS
from trainfleet.infra.aws.layout import REGIONS as AWS_REGIONS
from trainfleet.infra.azure.layout import REGIONS, has_zones
from trainfleet.infra.azure.sizes import LUSTRE_STEPS_TIB, reservable
from trainfleet.infra.azure.validation import NOT_INTEGRATED
from trainfleet.infra.catalog.machines import Machine, catalogue, machine_for_pool
from trainfleet.infra.catalog.regions import known_in
from trainfleet.infra.clouds import Cloud
from trainfleet.infra.gcp.layout import ZONE_LETTERS, zones
from trainfleet.infra.gcp.machine_zones import sold_in
from trainfleet.infra.gcp.validation import LUSTRE_STEP_GIB
from trainfleet.infra.gcp.validation_pools import NO_ON_DEMAND, SPOT_OR_FLEX
from trainfleet.infra.spec.schema import GpuPool

Document = dict[str, Any]
Draw = Callable[[st.SearchStrategy[Any]], Any]

PROJECT, SUBSCRIPTION = "my-project-123456", "11111111-2222-3333-4444-555555555555"
GUIDS = [f"aaaaaaaa-0000-4000-8000-{index:012d}" for index in range(4)]
ROLES = [f"arn:aws:iam::111122223333:role/team-{index}" for index in range(4)]
EMAILS = [f"team-{index}@example.com" for index in range(4)]
PEOPLE = {
    Cloud.AWS: ROLES,
    Cloud.GCP: EMAILS,
    Cloud.AZURE: GUIDS,
    Cloud.LOCAL: ["ml-engineers", "research", "interns", "ops"],
}
VERSIONS = {
    Cloud.AWS: ["1.34", "1.35", "1.36"],
    Cloud.GCP: ["1.34", "1.35", "1.36"],
    Cloud.AZURE: ["1.34", "1.35", "1.36"],
}
LOG_DAYS = [30, 60, 90, 365]
"""What all three log stores keep."""
BLOCKS = ("p4", "p5", "p6")
NAMES = ["a", "prod", "lab-2", "a1b2c3", "research-platform-europe", "x" * 24]
POOL_NAMES = ["b", "h100", "l4-spot", "big-ones", "a-pool-with-a-long-nam-1", "y" * 24]


def names() -> st.SearchStrategy[str]:
    """Names of platforms, also the shortest and the longest."""
    return st.sampled_from(NAMES)


def gpu_machines(cloud: Cloud) -> list[Machine]:
    """Every machine of the catalogue that a pool of this cloud can be made of."""
    return [machine for machine in catalogue() if machine.cloud is cloud and machine.accelerator]


def regions_of(cloud: Cloud, machine: Machine | None = None) -> list[str]:
    """Where the catalogue has a machine (all regions, where that is not known)."""
    return [name for name in _regions(cloud, machine) if machine is None or known_in(machine, name)]


def _regions(cloud: Cloud, machine: Machine | None) -> list[str]:
    if cloud is Cloud.AWS:
        return list(HYPERPOD_REGIONS) if machine and machine.kind == "hyperpod" else list(AWS_REGIONS)
    if cloud is Cloud.AZURE:
        return [name for name in REGIONS if name not in NOT_INTEGRATED]
    if machine is None or (first := sold_in(machine.instance_type, "us-central1")) is None:
        return list(ZONE_LETTERS)
    return [
        region
        for region in ZONE_LETTERS
        if (first if region == "us-central1" else sold_in(machine.instance_type, region))
    ]


RECEIVERS: list[dict[str, Any]] = [
    {"name": "chat", "kind": "slack", "secret": "alerts-slack", "channel": "#ml"},
    {"name": "pager", "kind": "pagerduty", "secret": "alerts-pager", "severities": ["critical"]},
    {
        "name": "mail",
        "kind": "email",
        "to": ["ml@example.com"],
        "sender": "alerts@example.com",
        "smarthost": "smtp.example.com:587",
    },
]


@st.composite
def _monitoring(draw: st.DrawFn) -> dict[str, Any]:
    enabled = draw(st.booleans())
    receivers = draw(st.lists(st.sampled_from(RECEIVERS), unique_by=lambda each: str(each["name"])))
    return {
        "enabled": enabled,
        "retention_days": draw(st.integers(1, 90)),
        **({"receivers": receivers} if enabled else {}),
    }


@st.composite
def specs(
    draw: Draw,
    cloud: Cloud,
    *,
    machine: Machine | None = None,
    environments: tuple[str, ...] = ("dev", "staging", "prod"),
) -> Document:
    """A valid platform on this cloud. `machine`: one that it must have a pool of."""
    if cloud is Cloud.LOCAL:
        return draw(local_specs(environments))
    region = draw(st.sampled_from(regions_of(cloud, machine)))
    document = _common(draw, cloud, environments)
    document |= {
        "region": region,
        "network": _network(draw, cloud, region),
        "system_pool": _system_pool(draw),
    }
    if cloud is Cloud.AWS:
        document["account"] = draw(st.sampled_from(["", "111122223333"]))
    else:
        document["account"] = PROJECT if cloud is Cloud.GCP else SUBSCRIPTION
    machines = [machine] if machine else []
    there = [each for each in gpu_machines(cloud) if region in regions_of(cloud, each)]
    machines += draw(st.lists(st.sampled_from(there), max_size=3 - len(machines)))
    pool_names = draw(st.permutations(POOL_NAMES))
    document["gpu_pools"] = [
        _pool(draw, document, name, each, first=not index)
        for index, (name, each) in enumerate(zip(pool_names, machines, strict=False))
    ]
    if any(pool.get("kind") == "hyperpod" for pool in document["gpu_pools"]):
        document["kubernetes"]["version"] = draw(st.sampled_from(["1.34", "1.35"]))
    document["kubernetes"]["access"] = {
        "public_ranges": draw(st.sampled_from([["203.0.113.0/24"], ["203.0.113.0/24", "198.51.100.7/32"]]))
    }
    document["storage"] = _storage(draw, cloud)
    if draw(st.booleans()):
        document["budget"] = {
            "monthly_usd": 10_000_000,
            "alert_at": draw(st.sampled_from([[1.0], [0.5, 0.8, 1.0], [0.25, 0.5, 0.75, 1.0, 1.5]])),
        }
    return document


@st.composite
def local_specs(draw: Draw, environments: tuple[str, ...] = ("dev", "staging", "prod")) -> Document:
    """A valid platform on an existing cluster."""
    document = _common(draw, Cloud.LOCAL, environments)
    for key in ("version", "log_retention_days", "admins"):
        document["kubernetes"].pop(key, None)
    document["storage"] = {
        "bucket_url": draw(
            st.sampled_from(["s3://runs", "gs://runs/here", "az://c/runs", "file:///srv/runs"])
        )
    }
    document["secrets"] = {"provider": "none", "names": document["secrets"]["names"]}
    accelerators = sorted({machine.accelerator or "" for machine in catalogue()} - {""})
    document["gpu_pools"] = [
        {
            "name": name,
            "accelerator": draw(st.sampled_from(accelerators)),
            "per_node": draw(st.integers(1, 16)),
            "max_nodes": draw(st.integers(1, 4)),
            "labels": {"gpu": name},
        }
        for name in draw(st.lists(st.sampled_from(POOL_NAMES), unique=True, max_size=3))
    ]
    return document


def _common(draw: Draw, cloud: Cloud, environments: tuple[str, ...]) -> Document:
    """What every cloud has, with switches that do not contradict one another."""
    people = draw(st.permutations(PEOPLE[cloud]))
    admins = people[: draw(st.integers(1 if cloud is Cloud.AZURE else 0, 2))]
    launchers = people[2 : 2 + draw(st.integers(0, 2))]
    tls, queue = draw(st.booleans()), draw(st.booleans())
    switches = (
        "gpu_plugin",
        "rdma_plugin",
        "gpu_metrics",
        "autoscaler",
        "network_policies",
        "priority_classes",
        "storage_classes",
        "logs",
        "node_problems",
    )
    layer: Document = {switch: draw(st.booleans()) for switch in switches}
    layer["kuberay"] = queue or draw(st.booleans())
    layer["launcher_access"] = bool(launchers) or draw(st.booleans())
    layer["certificates"] = draw(
        st.sampled_from(["own-ca", "cert-manager"] if tls else ["own-ca", "cert-manager", "none"])
    )
    kubernetes: Document = {
        "admins": admins,
        "launchers": launchers,
        "log_retention_days": draw(st.sampled_from(LOG_DAYS)),
    }
    if cloud in VERSIONS:
        kubernetes["version"] = draw(st.sampled_from(VERSIONS[cloud]))
    return {
        "name": draw(names()),
        "cloud": cloud.value,
        "owner": "ml-platform@example.com",
        "environment": draw(st.sampled_from(environments)),
        "kubernetes": kubernetes,
        "ray": {"tls": tls, "token_auth": draw(st.booleans())},
        "queue": {"enabled": queue},
        "secrets": {
            "names": draw(st.lists(st.sampled_from(["hf-token", "wandb-key", "x" * 24]), unique=True))
        },
        "layer": layer,
        "monitoring": draw(_monitoring()),
        "tags": draw(
            st.dictionaries(st.sampled_from(["team", "cost-center"]), st.sampled_from(["ml", "1234", ""]))
        ),
    }


def _network(draw: Draw, cloud: Cloud, region: str) -> Document:
    least = 2 if cloud is Cloud.AWS else 1
    most = {
        Cloud.AWS: lambda: AWS_REGIONS[region],
        Cloud.GCP: lambda: len(zones(region)),
        Cloud.AZURE: lambda: max(REGIONS[region], 1),
    }[cloud]()
    return {
        "cidr": draw(
            st.sampled_from(
                [
                    "10.40.0.0/16",
                    "10.0.0.0/17",
                    "192.168.0.0/16",
                    "172.20.0.0/16",
                    "100.64.0.0/16" if cloud is Cloud.AWS else "10.9.0.0/16",
                ]
            )
        ),
        "zones": draw(st.integers(least, most)),
        "nat": draw(st.sampled_from(["per-zone", "single"])),
        "flow_logs": draw(st.booleans()),
        "encryption": draw(st.booleans()) if cloud is not Cloud.AZURE else False,
    }


def _system_pool(draw: Draw) -> Document:
    least = draw(st.integers(1, 2))
    return {
        "size": draw(st.sampled_from(["small", "medium", "large"])),
        "min_nodes": least,
        "max_nodes": draw(st.integers(least, 4)),
    }


def capacities(machine: Machine) -> list[str]:
    """How a machine can be bought."""
    kind, spot, demand = machine.instance_type, machine.usd_per_hour_spot, machine.usd_per_hour_on_demand
    if machine.kind == "hyperpod":
        return ["on-demand", "reserved"]
    if machine.cloud is Cloud.AWS:
        found = ["reserved", *(["on-demand"] if demand else []), *(["spot"] if spot else [])]
        return [*found, "capacity-block"] if kind.startswith(BLOCKS) else found
    if machine.cloud is Cloud.AZURE:
        return ["on-demand", "spot", "reserved"] if reservable(machine) else ["on-demand", "spot"]
    found = ["spot", "flex-start", "queued"]
    if not kind.startswith(SPOT_OR_FLEX):
        found += ["reserved"] if kind.startswith(NO_ON_DEMAND) else ["reserved", "on-demand"]
    return found


def _reservation(cloud: Cloud, name: str, hyperpod: bool) -> str:
    """A reservation of its own for each pool."""
    if hyperpod:
        return f"arn:aws:sagemaker:us-east-2:111122223333:training-plan/{name}"
    if cloud is Cloud.AWS:
        return f"cr-{name.encode().hex()[-17:]:0>17}"
    if cloud is Cloud.GCP:
        return f"for-{name}"
    return f"/subscriptions/{SUBSCRIPTION}/resourceGroups/gpus/providers/Microsoft.Compute/capacityReservationGroups/{name}"


def _pool(draw: Draw, document: Document, name: str, machine: Machine, *, first: bool) -> Document:
    """A pool of this machine. Only the first has a fabric: an RDMA network is in one zone for all its
    pools.
    """
    cloud, hyperpod = machine.cloud, machine.kind == "hyperpod"
    capacity = draw(st.sampled_from(capacities(machine)))
    most = draw(st.integers(1, 4))
    pool: Document = {
        "name": name,
        "accelerator": machine.accelerator,
        "per_node": machine.accelerators_per_node,
        "max_nodes": most,
        "capacity": capacity,
        "disk_gib": draw(st.sampled_from([50, 200, 1024])),
        "labels": draw(
            st.dictionaries(st.sampled_from(["team", "example.com/tier"]), st.sampled_from(["ml", "gold"]))
        ),
    }
    if hyperpod:
        pool |= {"kind": "hyperpod", "min_nodes": most}
    elif capacity not in ("capacity-block", "flex-start", "queued"):
        pool["min_nodes"] = draw(st.integers(0, min(most, 1)))
    if capacity in ("reserved", "capacity-block"):
        pool["reservation"] = _reservation(cloud, name, hyperpod)
    if capacity == "queued":
        document["queue"] = {"enabled": True}
        document["layer"]["kuberay"] = True
    if capacity in ("flex-start", "queued"):
        pool["max_run_hours"] = draw(st.integers(1, 168))
    fabric = first and machine.rdma != "none" and draw(st.booleans())
    pool["interconnect"] = "best" if fabric else "none"
    placed = capacity == "queued" or (cloud is Cloud.AZURE and capacity == "reserved")
    pool["compact"] = (fabric and cloud is Cloud.AWS) or (not placed and draw(st.booleans()))
    _put_in_a_zone(draw, document, pool, machine)
    chosen = GpuPool.model_validate(pool)
    if machine_for_pool(cloud, chosen).instance_type != machine.instance_type or draw(st.booleans()):
        pool["instance_type"] = machine.instance_type
    return pool


def _put_in_a_zone(draw: Draw, document: Document, pool: Document, machine: Machine) -> None:
    region = document["region"]
    if machine.cloud is Cloud.GCP:
        sold = sold_in(machine.instance_type, region)
        choice = list(zones(region)[: document["network"]["zones"]] if sold is None else sold)
        if sold is not None or draw(st.booleans()):
            pool["zone"] = draw(st.sampled_from(choice))
    elif machine.cloud is Cloud.AZURE:
        if has_zones(region) and draw(st.booleans()):
            pool["zone"] = draw(st.sampled_from(["1", "2", "3"]))
    elif draw(st.booleans()):
        pool["zone"] = f"{region}{draw(st.sampled_from('ab'))}"


def _storage(draw: Draw, cloud: Cloud) -> Document:
    storage: Document = {"retention_days": draw(st.integers(1, 365)), "versioning": draw(st.booleans())}
    if not draw(st.booleans()):
        return storage
    kind = "lustre" if cloud is Cloud.AWS else draw(st.sampled_from(["lustre", "nfs"]))
    speeds = {
        Cloud.AWS: [125, 250, 500, 1000],
        Cloud.GCP: list(LUSTRE_STEP_GIB),
        Cloud.AZURE: list(LUSTRE_STEPS_TIB),
    }[cloud]
    speed = draw(st.sampled_from(speeds))
    if kind == "nfs":
        size = draw(st.sampled_from([1024, 2560]))
    elif cloud is Cloud.AWS:
        size = draw(st.sampled_from([1200, 2400, 4800]))
    else:
        size = LUSTRE_STEP_GIB[speed] if cloud is Cloud.GCP else LUSTRE_STEPS_TIB[speed] * 1024
    storage["shared_filesystem"] = {"kind": kind, "capacity_gib": size, "throughput_mbps_per_tib": speed}
    return storage


def sample(
    cloud: Cloud, count: int, *, environments: tuple[str, ...] = ("dev", "staging"), start: int = 7
) -> list[Document]:
    """The same `count` specs whenever it is asked: the largest of many drawn ones, and ever smaller ones."""
    drawn: list[Document] = []

    @seed(start)
    @settings(
        max_examples=10 * count + 20,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(specs(cloud, environments=environments))
    def collect(document: Document) -> None:
        drawn.append(document)

    collect()
    drawn.sort(key=lambda document: len(json.dumps(document)), reverse=True)
    return [drawn[index * len(drawn) // (2 * count)] for index in range(count)]
