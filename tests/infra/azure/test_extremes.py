"""Platforms at the edges of what a spec may say, previewed on the real engine: everything off, the longest
names, no zones.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.infra.azure.platforms import SMALL, SUBSCRIPTION
from trainfleet.rehearsal.engine import language
from trainfleet.rehearsal.engine.engine_cli import Runner
from trainfleet.rehearsal.engine.find import find_engine
from trainfleet.rehearsal.engine.sandbox import read_project, sandbox
from trainfleet.rehearsal.simulation.provider import serve
from trainfleet.rehearsal.simulation.state import Cloud

# The simulated provider reads every class of the SDK, the old ones too, and those warn.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

LONGEST = "abcdefgh-jklmnop-rstuvwx"
BARE: dict[str, Any] = {
    **SMALL,
    "region": "westus",
    "network": {"cidr": "10.0.0.0/20", "zones": 1, "nat": "single", "flow_logs": False},
    "storage": {"versioning": False},
    "layer": {"logs": False},
    "monitoring": {"enabled": False},
    "secrets": {"provider": "none"},
    "gpu_pools": [{"name": "a10", "accelerator": "A10", "compact": True}],
}
LONG: dict[str, Any] = {
    **SMALL,
    "name": LONGEST,
    "region": "eastus2",
    "environment": "prod",
    "network": {"cidr": "172.20.0.0/16", "zones": 3},
    "kubernetes": {**SMALL["kubernetes"], "access": {"public_ranges": ["203.0.113.7/32", "198.51.100.0/24"]}},
    "gpu_pools": [
        {
            "name": LONGEST,
            "accelerator": "H200",
            "per_node": 8,
            "interconnect": "best",
            "compact": True,
            "capacity": "spot",
        }
    ],
    "storage": {
        "shared_filesystem": {"kind": "lustre", "capacity_gib": 4096, "throughput_mbps_per_tib": 500}
    },
    "secrets": {"names": [LONGEST]},
    "budget": {"monthly_usd": 50000},
    "tags": {f"team-{number}": "x" for number in range(40)},
}


@pytest.mark.deep
@pytest.mark.parametrize("document", [BARE, LONG], ids=["bare", "long"])
def test_the_edges_of_a_spec_are_previewed_without_a_mistake(root: Path, document: dict[str, Any]) -> None:
    config = {
        "azure-native:location": document["region"],
        "azure-native:subscriptionId": SUBSCRIPTION,
        "trainfleet:platform": document,
    }
    with (
        sandbox(read_project(root, "azure-dev"), {"config": config}) as box,
        serve(Cloud()) as providers,
        language.serve(language.Programs(root=root)) as host,
    ):
        runner = Runner(
            find_engine().path, box, {"PULUMI_DEBUG_PROVIDERS": providers, "PULUMI_DEBUG_LANGUAGES": host}
        )
        runner.init()
        previewed = runner.run("preview")
    assert previewed.ok, previewed.output[-3000:]
