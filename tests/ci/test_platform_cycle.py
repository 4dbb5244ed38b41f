"""The cycle on the platforms that `trainfleet init` declares: networks, clusters, node pools and charts."""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.ci.clouds import Clouds
from tests.ci.conftest import STACKS, on_github, pulumi, repository
from tests.ci.forge import Forge
from tests.ci.runner import Host, Run, run_workflow
from tests.ci.test_cycle import applied, logs, results, review
from tests.ci.test_other_clouds import OPTIONS, own_bootstrap
from tests.ci.test_other_clouds import on_github as on_github_of
from trainfleet.ci.approval import LABEL
from trainfleet.training.launch.platform_outputs import load_platform

pytestmark = [pytest.mark.deep, pytest.mark.timeout(3000)]
SECRET = "s3cret-of-the-adopter"
AWS = """
import pulumi
import pulumi_aws as aws

aws.ssm.Parameter(
    "alerts-token",
    type="SecureString",
    value=pulumi.Config("acme").require_secret("alertsToken"),
    tags={"trainfleet:platform": "acme", "trainfleet:environment": "prod", "trainfleet:owner": "ml"},
)
"""
GCP = """
import pulumi
import pulumi_gcp as gcp

PLATFORM = f"acme-{pulumi.get_stack()}"
alerts = gcp.secretmanager.Secret(
    f"{PLATFORM}-alerts-token",
    secret_id=f"{PLATFORM}-alerts-token",
    replication={"user_managed": {"replicas": [{"location": "us-central1", "customer_managed_encryption": {
        "kms_key_name": "projects/acme-ml-123456/locations/us-central1/keyRings/acme/cryptoKeys/secrets",
    }}]}},
    version_destroy_ttl="1209600s",
    labels={"trainfleet-platform": PLATFORM, "trainfleet-environment": "prod", "trainfleet-owner": "ml"},
)
gcp.secretmanager.SecretVersion(
    f"{PLATFORM}-alerts-token-value", secret=alerts.id, secret_data=pulumi.Config("acme").require_secret("alertsToken")
)
"""
AZURE = """
import pulumi
import pulumi_azure_native as azure

azure.keyvault.Secret(
    "alerts-token",
    secret_name=f"{pulumi.get_stack()}-alerts-token",
    resource_group_name="acme-secrets",
    vault_name="acme-secrets",
    properties={"value": pulumi.Config("acme").require_secret("alertsToken")},
    tags={"trainfleet:platform": "acme", "trainfleet:environment": "prod", "trainfleet:owner": "ml"},
)
"""


@dataclass(frozen=True)
class Case:
    """The platforms of a cloud, and what happens to them."""

    own: str
    """A resource of the adopter with a secret."""
    dev_pool: str
    lost_pool: str
    """The pool of prod that a pull request removes."""
    largest: tuple[str, ...]
    """Where the largest size of a node pool is, which is 2 in the pool h100 of prod."""
    least: int
    """Fewer resources than this is not a whole platform."""
    pool: str = ""
    """A second pool of prod, for a cloud where `trainfleet init` declares one only."""


CASES = {
    "aws": Case(AWS, "l4", "l4", ("scalingConfig", "maxSize"), 180),
    "gcp": Case(
        GCP, "l4", "l4", ("autoscaling", "totalMaxNodeCount"), 100,
        "{name: h100, accelerator: H100, per_node: 8, max_nodes: 2, capacity: spot}",
    ),
    "azure": Case(
        AZURE, "a10", "a100-spot", ("maxCount",), 100,
        "{name: h100, accelerator: H100, per_node: 8, max_nodes: 2, zone: '1'}",
    ),
}  # fmt: skip


@pytest.fixture(params=CASES)
def cloud(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def case(cloud: str) -> Case:
    return CASES[cloud]


@pytest.fixture
def platforms(simulated: Clouds, tmp_path: Path, cloud: str, case: Case) -> Iterator[Host]:
    """The repository as `trainfleet init` makes it, with a secret of the adopter in each stack."""
    clone = repository(simulated, tmp_path, "--cloud", cloud, *OPTIONS.get(cloud, ()))
    program, prod = clone / "stacks" / "__main__.py", clone / "stacks" / "Pulumi.prod.yaml"
    program.write_text(program.read_text() + case.own)
    if case.pool:
        text = prod.read_text()
        assert text.count("gpu_pools:\n") == 1
        prod.write_text(text.replace("gpu_pools:\n", f"gpu_pools:\n      - {case.pool}\n"))
    for stack in STACKS:
        pulumi(simulated, clone, "config", "set", "--secret", "acme:alertsToken", SECRET, "--stack", stack)
    if cloud == "aws":
        yield on_github(simulated, tmp_path, clone)
        return
    with on_github_of(simulated, tmp_path, clone, own_bootstrap(clone)) as host:
        yield host


def existing(found: Clouds, stack: str) -> dict[str, str]:
    """Token and URN of everything of a stack that exists."""
    records = found.cloud.everything()
    return {each.urn: each.token for each in records if each.urn.startswith(f"urn:pulumi:{stack}::")}


def node_groups(found: Clouds, stack: str) -> set[str]:
    return {
        urn.rsplit("::", 1)[-1]
        for urn, token in existing(found, stack).items()
        if token.endswith((":NodeGroup", ":NodePool", ":AgentPool"))
    }


def urn_of(found: Clouds, stack: str, name: str) -> str:
    (urn,) = [urn for urn in existing(found, stack) if urn.endswith(f"::{name}")]
    return urn


def remove_pool(clone: Path, stack: str, pool: str) -> None:
    file = clone / "stacks" / f"Pulumi.{stack}.yaml"
    lines = file.read_text().splitlines(keepends=True)
    rest = [line for line in lines if f"{{name: {pool}," not in line]
    assert len(rest) == len(lines) - 1
    file.write_text("".join(rest))


def require_no_secret(simulated: Clouds, forge: Forge, first: Run, least: int) -> None:
    """The adopter's secret is in no state, plan, contract or log; the states are of whole platforms."""
    for stack in STACKS:
        state = pulumi(simulated, forge.clone, "stack", "export", "--stack", stack)
        assert len(json.loads(state)["deployment"]["resources"]) > len(existing(simulated, stack)) > least
        plan = (first.artifacts[f"plan-{stack}"] / "plan.json").read_text()
        contract = simulated.store.folder / "runs" / "contracts" / f"{stack}.json"
        for text in (state, plan, contract.read_text(), logs(first)):
            assert SECRET not in text
        assert {
            pool.name for pool in load_platform(f"{simulated.store.url}/contracts/{stack}.json").outputs.pools
        }


def resize(found: dict[str, Any], path: tuple[str, ...]) -> None:
    for key in path[:-1]:
        found = found[key]
    found[path[-1]] = 50


def require_repair_of_drift(platforms: Host, simulated: Clouds, largest: tuple[str, ...]) -> None:
    """Change by hand a pool, which is larger then, and lose an object of the cluster: an issue, then repaired."""
    forge = platforms.forge
    quiet = run_workflow(platforms, "drift", "schedule")
    assert set(results(quiet).values()) == {"success"}, logs(quiet)
    assert forge.read()["issues"] == []
    pool = urn_of(simulated, "prod", "acme-prod-h100")
    simulated.cloud.drift(pool, lambda found: resize(found, largest))
    lost = urn_of(simulated, "prod", "acme-prod-ray-tls")
    (key,) = [key for key, each in simulated.cloud.records.items() if each.urn == lost]
    del simulated.cloud.records[key]
    night = run_workflow(platforms, "drift", "schedule")
    assert set(results(night).values()) == {"success"}, logs(night)
    (issue,) = forge.read()["issues"]
    assert (issue["title"], issue["state"]) == ("Drift in prod", "open")
    assert "acme-prod-h100" in issue["body"]
    assert "acme-prod-ray-tls" in issue["body"]
    applied(platforms)
    repaired = simulated.cloud.of_urn(pool)
    assert repaired is not None
    assert functools.reduce(operator.getitem, largest, repaired.inputs) == 2
    assert urn_of(simulated, "prod", "acme-prod-ray-tls") == lost
    last = run_workflow(platforms, "drift", "schedule")
    assert set(results(last).values()) == {"success"}, logs(last)
    assert [each["state"] for each in forge.read()["issues"]] == ["closed"]


def test_a_pool_is_removed_from_production_and_drift_is_repaired(
    platforms: Host, simulated: Clouds, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    forge, lost = platforms.forge, case.lost_pool
    first = applied(platforms)
    assert node_groups(simulated, "dev") == {f"acme-dev-{case.dev_pool}", "acme-dev-system"}
    assert node_groups(simulated, "prod") == {"acme-prod-h100", f"acme-prod-{lost}", "acme-prod-system"}
    for name, value in simulated.store.environment(simulated.store.port).items():
        monkeypatch.setenv(name, value)
    require_no_secret(simulated, forge, first, case.least)
    if platforms.tokens:
        assert {identity for identity, _ in platforms.tokens.assumed} == {"plan", "apply"}

    # Reviewed: destructive for prod, nothing for dev.
    remove_pool(forge.clone, "prod", lost)
    number = forge.open_pull_request("no-pool", "Remove a pool")
    refused = review(platforms, number)
    assert results(refused)["destructive"] == "failure", logs(refused)
    (comment,) = forge.pull(number)["comments"]
    assert f"LOSES WORK: acme-prod-{lost}" in comment
    assert "1 affected stack, 2 skipped" in comment
    forge.label(number, LABEL)
    forge.approve(number, "grace")
    agreed = review(platforms, number)
    assert set(results(agreed).values()) == {"success"}, logs(agreed)

    # Merged: the real plans say the same, and exactly they are applied.
    before = simulated.cloud.everything()
    forge.merge(number)
    second = applied(platforms)
    unchanged = second.jobs["dev / plan"].summary
    assert "nothing changes in the cloud; cost unchanged" in unchanged, unchanged
    summary = second.jobs["prod / plan"].summary
    assert f"LOSES WORK: acme-prod-{lost}" in summary
    assert "known after the apply" not in summary
    assert "approved by grace" in second.jobs["prod / plan"].log
    assert node_groups(simulated, "prod") == {"acme-prod-h100", "acme-prod-system"}
    gone = {each.urn for each in before} - {each.urn for each in simulated.cloud.everything()}
    assert {urn.split("::")[0] for urn in gone} == {"urn:pulumi:prod"}
    assert all(lost in urn.rsplit("::", 1)[-1] for urn in gone), gone
    contract = load_platform(f"{simulated.store.url}/contracts/prod.json")
    assert [pool.name for pool in contract.outputs.pools] == ["h100"]
    require_repair_of_drift(platforms, simulated, case.largest)
