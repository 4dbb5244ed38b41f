"""What `trainfleet preflight` finds in a right and in wrong Azure subscriptions, on a simulated API."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.infra.preflight_rows import by_topic, statuses
from tests.infra.simulated_api import Request, serving
from tests.infra.simulated_azure_api import SECRET, SimulatedAzure, token
from trainfleet.errors import MissingToolError
from trainfleet.infra import preflight_requests
from trainfleet.infra.azure import account as module
from trainfleet.infra.azure.account import Account, connect
from trainfleet.infra.azure.layout import pool_zones
from trainfleet.infra.azure.preflight import ENCRYPTION_AT_HOST, INFINIBAND, PROVIDERS
from trainfleet.infra.catalog.machines import machine_for_pool, system_machine
from trainfleet.infra.clouds import Cloud
from trainfleet.infra.preflight import preflight_checks
from trainfleet.infra.preflight_requests import Answered, answer_checks
from trainfleet.infra.spec.load import load_stack
from trainfleet.infra.spec.node_groups import node_groups

SPEC = load_stack("azure-prod")
HOME = f"/manager/subscriptions/{SPEC.account}/providers"
CLUSTERS = f"{HOME}/Microsoft.ContainerService/managedClusters"
VERSIONS = f"{HOME}/Microsoft.ContainerService/locations/{SPEC.region}/kubernetesVersions"
USAGES = f"{HOME}/Microsoft.Compute/locations/{SPEC.region}/usages"
SKUS = f"{HOME}/Microsoft.Compute/skus"
PERMISSIONS = f"{HOME}/Microsoft.Authorization/permissions"
VAULTS = f"{HOME}/Microsoft.KeyVault/deletedVaults"
FEATURES = f"{HOME}/Microsoft.Features/providers"
Check = Callable[[SimulatedAzure], dict[str, list[Answered]]]


def size_row(name: str, family: str) -> dict[str, Any]:
    return {
        "name": name, "resourceType": "virtualMachines", "family": family,
        "locationInfo": [{"location": SPEC.region, "zones": ["1", "2", "3"]}], "restrictions": [],
    }  # fmt: skip


def right() -> SimulatedAzure:
    machines = {pool.name: machine_for_pool(Cloud.AZURE, pool).instance_type for pool in node_groups(SPEC)}
    sizes = sorted({system_machine(SPEC).instance_type, *machines.values()})
    limits = ["lowPriorityCores", "cores", *(f"family of {each}" for each in sizes)]
    documents: dict[str, Any] = {
        PERMISSIONS: [{"actions": ["*/read"], "notActions": []}, {"actions": ["*"], "notActions": []}],
        SKUS: [size_row(each, f"family of {each}") for each in sizes],
        USAGES: [{"name": {"value": each}, "limit": 10000, "currentValue": 0} for each in limits],
        VAULTS: [],
        CLUSTERS: [],
        VERSIONS: {
            "values": [
                {"version": SPEC.kubernetes.version, "capabilities": {"supportPlan": ["KubernetesOfficial"]}}
            ]
        },
    }
    for provider in (*PROVIDERS, "Microsoft.Monitor", "Microsoft.StorageCache"):
        documents[f"{HOME}/{provider}"] = {"registrationState": "Registered"}
    for feature in (ENCRYPTION_AT_HOST, INFINIBAND):
        namespace, _, name = feature.partition("/")
        documents[f"{FEATURES}/{namespace}/features/{name}"] = {"properties": {"state": "Registered"}}
    for pool in node_groups(SPEC):
        if pool.reservation:
            zones = [zone.rpartition("-")[2] for zone in pool_zones(SPEC, pool)]
            row = {"sku": {"name": machines[pool.name], "capacity": pool.max_nodes}, "zones": zones}
            documents[f"/manager{pool.reservation}/capacityReservations"] = [row]
    return SimulatedAzure(documents, list(SPEC.kubernetes.admins))


def simulate(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setattr(module, "MANAGER", f"{url}/manager")
    monkeypatch.setattr(module, "GRAPH", f"{url}/graph")
    monkeypatch.setattr(module, "LOGIN_HOST", f"{url}/login")


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("ARM_CLIENT_ID", "app"), ("ARM_TENANT_ID", "t"), ("ARM_CLIENT_SECRET", SECRET)):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("ARM_OIDC_TOKEN", raising=False)
    inside = SPEC.kubernetes.access.public_ranges[0][1]
    monkeypatch.setattr(preflight_requests, "public_address", lambda: IPv4Address(inside))


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Iterator[Check]:
    """Answers the checks with a subscription. Whatever the subscription, only reads are sent."""
    sent: list[Request] = []

    def asked(subscription: SimulatedAzure) -> dict[str, list[Answered]]:
        with serving(subscription) as (url, requests):
            simulate(monkeypatch, url)
            rows = answer_checks(SPEC, preflight_checks(SPEC), "ci", connect(SPEC, {}))
        sent.extend(requests)
        return by_topic(rows)

    yield asked
    assert sent
    for each in sent:
        assert each.verb == "GET" or each.path.endswith(("/oauth2/v2.0/token", "/checkMemberGroups")), each


def test_a_right_subscription_has_no_problem(check: Check) -> None:
    account = right()
    found = check(account)
    assert {topic: statuses(rows) for topic, rows in found.items()} == {
        topic: ["ok"]
        for topic in (
            "api-server", "version", "caller", "apis", "quota", "zones", "reservation", "names",
        )
    }  # fmt: skip
    assert [each.rpartition("/")[2] for each in account.audiences] == ["manager", "graph"]


def changed(path: str, value: Any) -> Callable[[SimulatedAzure], SimulatedAzure]:
    def change(subscription: SimulatedAzure) -> SimulatedAzure:
        return replace(subscription, documents=subscription.documents | {path: value})

    return change


def every_size(**change: Any) -> Callable[[SimulatedAzure], SimulatedAzure]:
    return lambda s: changed(SKUS, [row | change for row in s.documents[SKUS]])(s)


def every_reservation(rows: list[dict[str, Any]] | None) -> Callable[[SimulatedAzure], SimulatedAzure]:
    def change(subscription: SimulatedAzure) -> SimulatedAzure:
        paths = [path for path in subscription.documents if path.endswith("/capacityReservations")]
        return replace(subscription, documents=subscription.documents | dict.fromkeys(paths, rows))

    return change


CLOSED = {"type": "Location", "reasonCode": "NotAvailableForSubscription"}
OTHER_CLUSTER = {"name": "trainfleet-prod", "location": SPEC.region}
DELETED = {"name": "prodkeys01234567", "properties": {"location": SPEC.region}}
PREVIEW = {"values": [{"version": SPEC.kubernetes.version, "isPreview": True}]}
LTS = {
    "values": [{"version": SPEC.kubernetes.version, "capabilities": {"supportPlan": ["AKSLongTermSupport"]}}]
}
SMALL = {"sku": {"name": "Standard_D4s_v5", "capacity": 4}, "zones": ["1"]}
WRONG: dict[str, tuple[Callable[[SimulatedAzure], SimulatedAzure], str, str, str]] = {
    "a contributor, who may not assign roles": (
        changed(PERMISSIONS, [{"actions": ["*"], "notActions": ["Microsoft.Authorization/*/Write"]}]),
        "caller", "problem", "may not assign roles",
    ),
    "no member of the administrators": (
        lambda s: replace(s, groups=[]), "caller", "problem", "a member of none",
    ),
    "a directory that does not tell": (
        lambda s: replace(s, denied=("/checkMemberGroups",)), "caller", "warning", "AuthorizationFailed",
    ),
    "a provider that is never registered by itself": (
        changed(f"{HOME}/Microsoft.Insights", {"registrationState": "NotRegistered"}),
        "apis", "problem", "notregistered",
    ),
    "a provider that is registered by the first resource": (
        changed(f"{HOME}/Microsoft.Network", {"registrationState": "NotRegistered"}),
        "apis", "warning", "notregistered",
    ),
    "a feature that is not registered": (
        changed(f"{FEATURES}/Microsoft.Compute/features/EncryptionAtHost", None), "apis", "problem", "unknown",
    ),
    "no quota": (
        lambda s: changed(USAGES, [row | {"limit": 0} for row in s.documents[USAGES]])(s),
        "quota", "problem", "quota 0",
    ),
    "no right to read quotas": (
        lambda s: replace(s, denied=("/usages",)), "quota", "not checked", "the caller may not",
    ),
    "sizes that the region lacks": (changed(SKUS, []), "zones", "problem", f"not in {SPEC.region}"),
    "sizes that are closed to the subscription": (
        every_size(restrictions=[CLOSED]), "zones", "problem", "NotAvailableForSubscription",
    ),
    "zones that are closed to the subscription": (
        every_size(restrictions=[{"type": "Zone", "restrictionInfo": {"zones": ["1"]}}]),
        "zones", "problem", "offered in 2, 3",
    ),
    "no reservation group": (every_reservation(None), "reservation", "problem", "no such group"),
    "a group for another size": (every_reservation([SMALL]), "reservation", "problem", "Standard_D4s_v5"),
    "another cluster of that name": (
        changed(CLUSTERS, [OTHER_CLUSTER]), "names", "warning", "without this platform's tag",
    ),
    "a deleted vault": (changed(VAULTS, [DELETED]), "names", "warning", "prodkeys01234567"),
    "a preview version": (changed(VERSIONS, PREVIEW), "version", "problem", "is a preview"),
    "a version in long-term support": (changed(VERSIONS, LTS), "version", "problem", "long-term support"),
}  # fmt: skip


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_one_row_with_the_reason(check: Check, name: str) -> None:
    change, topic, status, says = WRONG[name]
    rows = check(change(right()))[topic]
    assert [row for row in rows if row.check.status == status and says in row.found], [
        (row.check.status, row.found) for row in rows
    ]


def test_an_existing_api_server_is_tried(check: Check) -> None:
    """Nothing listens at port 1."""
    row = OTHER_CLUSTER | {"tags": {"trainfleet:platform": "prod"}, "properties": {"fqdn": "127.0.0.1:1"}}
    found = check(changed(CLUSTERS, [row])(right()))
    assert "no TLS connection to 127.0.0.1:1" in found["api-server"][0].found
    assert statuses(found["names"]) == ["ok"]


def test_a_token_of_a_ci_system_is_exchanged(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ARM_CLIENT_SECRET")
    monkeypatch.setenv("ARM_OIDC_TOKEN", SECRET)
    assert statuses(check(right())["caller"]) == ["ok"]


def test_a_job_of_github_requests_its_token(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    """azure/login of the generated workflow leaves ARM_USE_OIDC and what GitHub sets."""
    asked = list[tuple[str, dict[str, str], str]]()

    def get(url: str, query: dict[str, str], headers: dict[str, str], timeout: float) -> requests.Response:
        asked.append((url, query, headers["Authorization"]))
        answer = requests.Response()
        answer._content = json.dumps({"value": SECRET}).encode()
        return answer

    monkeypatch.delenv("ARM_CLIENT_SECRET")
    monkeypatch.setenv("ARM_USE_OIDC", "true")
    monkeypatch.setenv("ACTIONS_ID_TOKEN_REQUEST_URL", "https://github.test/token?api-version=2")
    monkeypatch.setenv("ACTIONS_ID_TOKEN_REQUEST_TOKEN", "of-the-job")
    monkeypatch.setattr(requests, "get", get)
    assert statuses(check(right())["caller"]) == ["ok"]
    question = {"audience": "api://AzureADTokenExchange"}
    assert set(map(str, asked)) == {
        str(("https://github.test/token?api-version=2", question, "Bearer of-the-job"))
    }


def simulated_cli(folder: Path, script: str) -> None:
    """A simulated Azure CLI, which is only asked for tokens."""
    az = folder / "az"
    az.write_text(f"#!/bin/sh\n{script}\n")
    az.chmod(0o755)


def test_the_token_of_the_azure_cli_is_used(
    check: Check, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("ARM_CLIENT_ID")
    answer = '{"accessToken": "' + token("any") + '"}'
    simulated_cli(tmp_path, f"[ \"$1 $2\" = 'account get-access-token' ] && echo '{answer}'")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert statuses(check(right())["caller"]) == ["ok"]


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("echo \"ERROR: Please run 'az login' to setup account.\" >&2; exit 1", "Please run 'az login'"),
        ("echo '{}'", "accessToken"),
        (None, "az. is not installed"),
    ],
)
def test_no_credentials_is_one_message(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str | None, says: str
) -> None:
    monkeypatch.delenv("ARM_CLIENT_ID")
    monkeypatch.setenv("PATH", str(tmp_path))
    if script:
        simulated_cli(tmp_path, script)
    with pytest.raises(MissingToolError, match=says) as refused:
        connect(SPEC, {})
    assert "az login" in str(refused.value)


def test_a_wrong_secret_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARM_CLIENT_SECRET", "wrong")
    with serving(right()) as (url, _):
        simulate(monkeypatch, url)
        with pytest.raises(MissingToolError, match="AADSTS7000215"):
            connect(SPEC, {})


def test_a_method_that_may_write_is_never_sent() -> None:
    with pytest.raises(ValueError, match="may write"):
        Account(SPEC, {})._request("PUT", f"{module.MANAGER}/x", module.MANAGER)


def test_a_token_is_never_sent_to_another_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of an answer may name any next link."""
    rows = {"value": [], "nextLink": "https://elsewhere.example/x"}
    with serving(changed(VERSIONS, rows)(right())) as (url, _):
        simulate(monkeypatch, url)
        account = connect(SPEC, {})
        path = VERSIONS.removeprefix(f"/manager/subscriptions/{SPEC.account}/")
        with pytest.raises(preflight_requests.NotAnsweredError, match="another host"):
            account.read(path, "1")
