"""The cycle on the platforms that `trainfleet init` declares for AWS: networks, clusters, node pools and charts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.ci.clouds import Clouds
from tests.ci.conftest import STACKS, on_github, pulumi, repository
from tests.ci.forge import Forge
from tests.ci.runner import Host, Run, run_workflow
from tests.ci.test_cycle import applied, logs, results, review
from trainfleet.ci.approval import LABEL
from trainfleet.training.launch.platform_outputs import load_platform

pytestmark = [pytest.mark.deep, pytest.mark.timeout(3000)]
SECRET = "s3cret-of-the-adopter"
OWN_RESOURCE = """
import pulumi
import pulumi_aws as aws

aws.ssm.Parameter(
    "alerts-token",
    type="SecureString",
    value=pulumi.Config("acme").require_secret("alertsToken"),
    tags={"trainfleet:platform": "acme", "trainfleet:environment": "prod", "trainfleet:owner": "ml"},
)
"""


@pytest.fixture
def platforms(simulated: Clouds, tmp_path: Path) -> Host:
    """The repository as `trainfleet init` makes it, with a secret of the adopter in each stack."""
    clone = repository(simulated, tmp_path)
    program = clone / "stacks" / "__main__.py"
    program.write_text(program.read_text() + OWN_RESOURCE)
    for stack in STACKS:
        pulumi(simulated, clone, "config", "set", "--secret", "acme:alertsToken", SECRET, "--stack", stack)
    return on_github(simulated, tmp_path, clone)


def existing(found: Clouds, stack: str) -> dict[str, str]:
    """Token and URN of everything of a stack that exists."""
    records = found.cloud.everything()
    return {each.urn: each.token for each in records if each.urn.startswith(f"urn:pulumi:{stack}::")}


def node_groups(found: Clouds, stack: str) -> set[str]:
    return {
        urn.rsplit("::", 1)[-1]
        for urn, token in existing(found, stack).items()
        if token.endswith(":NodeGroup")
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


def require_no_secret(simulated: Clouds, forge: Forge, first: Run) -> None:
    """The adopter's secret is in no state, plan, contract or log; the states are of whole platforms."""
    for stack in STACKS:
        state = pulumi(simulated, forge.clone, "stack", "export", "--stack", stack)
        assert len(json.loads(state)["deployment"]["resources"]) > len(existing(simulated, stack)) > 180
        plan = (first.artifacts[f"plan-{stack}"] / "plan.json").read_text()
        contract = simulated.store.folder / "runs" / "contracts" / f"{stack}.json"
        for text in (state, plan, contract.read_text(), logs(first)):
            assert SECRET not in text
        assert {
            pool.name for pool in load_platform(f"{simulated.store.url}/contracts/{stack}.json").outputs.pools
        }


def require_repair_of_drift(platforms: Host, simulated: Clouds) -> None:
    """Change by hand a pool, which is larger then, and lose an object of the cluster: an issue, then repaired."""
    forge = platforms.forge
    quiet = run_workflow(platforms, "drift", "schedule")
    assert set(results(quiet).values()) == {"success"}, logs(quiet)
    assert forge.read()["issues"] == []
    pool = urn_of(simulated, "prod", "acme-prod-h100")
    simulated.cloud.drift(pool, lambda found: found["scalingConfig"].update(maxSize=50))
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
    assert repaired.inputs["scalingConfig"]["maxSize"] == 2
    assert urn_of(simulated, "prod", "acme-prod-ray-tls") == lost
    last = run_workflow(platforms, "drift", "schedule")
    assert set(results(last).values()) == {"success"}, logs(last)
    assert [each["state"] for each in forge.read()["issues"]] == ["closed"]


def test_a_pool_is_removed_from_production_and_drift_is_repaired(
    platforms: Host, simulated: Clouds, monkeypatch: pytest.MonkeyPatch
) -> None:
    forge = platforms.forge
    first = applied(platforms)
    assert node_groups(simulated, "dev") == {"acme-dev-l4", "acme-dev-system"}
    assert node_groups(simulated, "prod") == {"acme-prod-h100", "acme-prod-l4", "acme-prod-system"}
    for name, value in simulated.store.environment(simulated.store.port).items():
        monkeypatch.setenv(name, value)
    require_no_secret(simulated, forge, first)

    # Reviewed: destructive for prod, nothing for dev.
    remove_pool(forge.clone, "prod", "l4")
    number = forge.open_pull_request("no-l4", "Remove the L4 pool")
    refused = review(platforms, number)
    assert results(refused)["destructive"] == "failure", logs(refused)
    (comment,) = forge.pull(number)["comments"]
    assert "LOSES WORK: acme-prod-l4" in comment
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
    assert "LOSES WORK: acme-prod-l4" in summary
    assert "known after the apply" not in summary
    assert "approved by grace" in second.jobs["prod / plan"].log
    assert node_groups(simulated, "prod") == {"acme-prod-h100", "acme-prod-system"}
    gone = {each.urn for each in before} - {each.urn for each in simulated.cloud.everything()}
    assert {urn.split("::")[0] for urn in gone} == {"urn:pulumi:prod"}
    assert all("l4" in urn.rsplit("::", 1)[-1] for urn in gone), gone
    contract = load_platform(f"{simulated.store.url}/contracts/prod.json")
    assert [pool.name for pool in contract.outputs.pools] == ["h100"]
    require_repair_of_drift(platforms, simulated)
