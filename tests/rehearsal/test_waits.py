"""Roles that take minutes until they have effect: each rule with a wrong and a right program."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.rehearsal.relation_cases import record
from trainfleet.rehearsal.engine.find import Engine
from trainfleet.rehearsal.engine.sandbox import read_project
from trainfleet.rehearsal.rehearse import rehearse
from trainfleet.rehearsal.simulation.cloud_object import CloudObject
from trainfleet.rehearsal.simulation.state import Cloud, RefusedError
from trainfleet.rehearsal.simulation.stateful_rules import rules
from trainfleet.rehearsal.simulation.waits import Waits, seconds
from trainfleet.rehearsal.steps.session import RehearsalOptions

VAULT, ZONE, IDENTITY = "/s/vaults/keys", "/s/privateDnsZones/private", "/s/identities/a"
GROUP = "/s/capacityReservationGroups/a"
NODES = "/s/identities/nodes"
WHO = {"identity": {"type": "UserAssigned", "userAssignedIdentities": [IDENTITY]}}
THERE = [
    record(
        "azure-native:keyvault:Vault",
        VAULT,
        {"properties": {"vaultUri": "https://keys.vault.azure.net/"}},
        properties={},
    ),
    record("azure-native:managedidentity:UserAssignedIdentity", IDENTITY, {"principalId": "p-1"}),
    record("azure-native:managedidentity:UserAssignedIdentity", NODES, {"principalId": "p-2"}),
]


def role(scope: str, who: str = "p-1") -> CloudObject:
    token = "azure-native:authorization:RoleAssignment"
    return record(token, f"{scope}/roles/{who}", scope=scope, principalId=who)


AKS = "azure-native:containerservice:ManagedCluster"
USERS = {
    "a disk encryption set": (
        record(
            "azure-native:compute:DiskEncryptionSet",
            "/s/set",
            activeKey={"sourceVault": {"id": VAULT}},
            **WHO,
        ),
        f"{VAULT}/keys/disks",
    ),
    "a storage account": (
        record(
            "azure-native:storage:StorageAccount",
            "/s/account",
            encryption={"keyVaultProperties": {"keyVaultUri": "https://keys.vault.azure.net/"}},
            **WHO,
        ),
        VAULT,
    ),
    "a file system": (
        record(
            "azure-native:storagecache:AmlFilesystem",
            "/s/lustre",
            encryptionSettings={"keyEncryptionKey": {"sourceVault": {"id": VAULT}}},
            **WHO,
        ),
        VAULT,
    ),
    "a control plane and its key": (
        record(AKS, "/s/aks", securityProfile={"azureKeyVaultKms": {"keyVaultResourceId": VAULT}}, **WHO),
        VAULT,
    ),
    "a control plane and its zone": (
        record(AKS, "/s/aks", apiServerAccessProfile={"privateDNSZone": ZONE}, **WHO),
        ZONE,
    ),
    "a control plane and the identity of its nodes": (
        record(AKS, "/s/aks", identityProfile={"kubeletidentity": {"resourceId": NODES}}, **WHO),
        NODES,
    ),
    "a pool and its reservation": (
        record("azure-native:containerservice:AgentPool", "/s/pool", capacityReservationGroupID=GROUP),
        GROUP,
    ),
}


@pytest.fixture
def cloud(tmp_path: Path) -> Cloud:
    """A cloud with a vault and an identity, which reads waits from waits.txt."""
    return Cloud(records={each.key: each for each in THERE}, waits=Waits(tmp_path / "waits.txt"))


def wait(cloud: Cloud, duration: float) -> None:
    assert cloud.waits is not None
    with cloud.waits.file.open("a") as lines:
        lines.write(f"{duration}\n")


@pytest.mark.parametrize("name", USERS)
def test_a_role_that_has_no_effect_yet_is_refused(cloud: Cloud, name: str) -> None:
    user, scope = USERS[name]
    cloud.create(role(scope))
    with pytest.raises(RefusedError, match="may take 10 minutes until it has effect"):
        cloud.create(user)


@pytest.mark.parametrize("name", USERS)
def test_a_role_in_effect_is_accepted(cloud: Cloud, name: str) -> None:
    user, scope = USERS[name]
    cloud.create(role(scope))
    wait(cloud, 601.0)
    cloud.create(user)


def test_every_rule_on_time_has_a_wrong_program() -> None:
    timed = [row for rows in rules()["granted"].values() for row in rows if "minutes" in row]
    assert len(timed) == len(USERS)
    assert {row["type"] for row in timed} == {user.token for user, _ in USERS.values()}


def test_a_wait_before_the_role_does_not_count(cloud: Cloud) -> None:
    user, scope = USERS["a storage account"]
    wait(cloud, 601.0)
    cloud.create(role(scope))
    with pytest.raises(RefusedError, match="until it has effect"):
        cloud.create(user)


def test_short_waits_do_not_add_up(cloud: Cloud) -> None:
    user, scope = USERS["a storage account"]
    cloud.create(role(scope))
    for _ in range(4):
        wait(cloud, 200.0)
    with pytest.raises(RefusedError, match="until it has effect"):
        cloud.create(user)


def test_every_role_of_the_identity_must_be_in_effect(cloud: Cloud) -> None:
    user, scope = USERS["a control plane and its key"]
    cloud.create(role(scope))
    wait(cloud, 601.0)
    cloud.create(role(f"{scope}/keys/cluster"))
    with pytest.raises(RefusedError, match="until it has effect"):
        cloud.create(user)


def test_roles_of_others_may_be_new(cloud: Cloud) -> None:
    user, scope = USERS["a control plane and its key"]
    cloud.create(role(scope))
    wait(cloud, 601.0)
    cloud.create(role(f"{scope}/keys/data", "p-2"))
    cloud.create(user)


def test_a_zone_of_azure_needs_no_role(cloud: Cloud) -> None:
    cloud.create(role("/s/other"))
    cloud.create(record(AKS, "/s/aks", apiServerAccessProfile={"privateDNSZone": "system"}, **WHO))


def test_an_identity_of_nodes_must_have_a_role(cloud: Cloud) -> None:
    cloud.create(role("/s/other"))
    with pytest.raises(RefusedError, match="no role is assigned on identityProfile"):
        cloud.create(USERS["a control plane and the identity of its nodes"][0])


def test_an_identity_outside_the_program_may_have_its_role_from_elsewhere(cloud: Cloud) -> None:
    cloud.create(role("/s/other"))
    profile = {"kubeletidentity": {"resourceId": "/s/identities/existing"}}
    cloud.create(record(AKS, "/s/aks", identityProfile=profile, **WHO))


def test_a_resource_that_sleeps_is_a_wait(cloud: Cloud) -> None:
    user, scope = USERS["a storage account"]
    cloud.create(role(scope))
    cloud.create(record("time:index/sleep:Sleep", "2100-01-01", createDuration="10m"))
    cloud.create(user)


@pytest.mark.parametrize(("text", "expected"), [("90s", 90), ("1h30m", 5400), ("500ms", 0.5), ("", 0)])
def test_durations(text: str, expected: float) -> None:
    assert seconds(text) == expected


PROGRAM = """
import asyncio, time
import pulumi_azure_native as azure
from datetime import UTC, datetime

group = azure.resources.ResourceGroup("group", location="eastus")
who = azure.managedidentity.UserAssignedIdentity("who", resource_group_name=group.name)
vault = azure.keyvault.Vault("vault", resource_group_name=group.name, properties={
    "tenant_id": "72f988bf-86f1-41af-91ab-2d7cd011db47", "sku": {"family": "A", "name": "standard"},
    "enable_purge_protection": True})
role = azure.authorization.RoleAssignment("role", scope=vault.id, principal_id=who.principal_id,
    principal_type="ServicePrincipal", role_definition_id="/subscriptions/00000000-1111-2222-3333-444444444444"
    "/providers/Microsoft.Authorization/roleDefinitions/e147488a-f6f5-4113-8e2d-b22465e65bf6")

async def wait_by_the_clock(known):
    if not pulumi.runtime.is_dry_run():
        assigned = datetime.fromisoformat(known[1][:19]).replace(tzinfo=UTC)
        await asyncio.sleep(600 + (assigned - datetime.now(UTC)).total_seconds())
    return known[0]

def wait_once(known):
    if not pulumi.runtime.is_dry_run():
        time.sleep(600)
    return known[0]

uri = pulumi.Output.all(vault.properties.vault_uri, role.created_on).apply({wait})
azure.storage.StorageAccount("data", resource_group_name=group.name, kind="StorageV2",
    sku={{"name": "Standard_LRS"}}, identity={{"type": "UserAssigned", "user_assigned_identities": [who.id]}},
    encryption={{"key_source": "Microsoft.Keyvault", "encryption_identity":
        {{"encryption_user_assigned_identity": who.id}},
        "key_vault_properties": {{"key_name": "data", "key_vault_uri": uri}}}},
    opts=pulumi.ResourceOptions(depends_on=[role]))
"""


@pytest.mark.deep
@pytest.mark.parametrize(
    ("wait", "ok"),
    [("lambda known: known[0]", False), ("wait_by_the_clock", True), ("wait_once", True)],
    ids=["no wait", "until the role has effect", "ten minutes"],
)
def test_a_program_that_uses_a_key_after_its_role(
    engine: Engine, program: Callable[[str], Path], wait: str, ok: bool
) -> None:
    code: Any = PROGRAM.replace("{wait}", wait).replace("{{", "{").replace("}}", "}")
    report = rehearse(read_project(program(code)), engine, RehearsalOptions(until="no-op", fault="one"))
    assert report.ok == ok, report.problems
    assert any("wait between them" in str(problem) for problem in report.problems) == (not ok)
