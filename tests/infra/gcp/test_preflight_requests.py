"""What `trainfleet preflight` finds in a right and in wrong projects, through google-auth, on a simulated API."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.infra.preflight_rows import by_topic, statuses
from tests.infra.simulated_api import Request, serving
from tests.infra.simulated_gcp_api import SimulatedGcp
from trainfleet.errors import MissingToolError
from trainfleet.infra.catalog.machines import machine_for_pool
from trainfleet.infra.clouds import Cloud
from trainfleet.infra.gcp import account as module
from trainfleet.infra.gcp.account import connect
from trainfleet.infra.gcp.layout import pool_zones
from trainfleet.infra.gcp.preflight_answers import PERMISSIONS
from trainfleet.infra.preflight import preflight_checks
from trainfleet.infra.preflight_requests import Answered, answer_checks
from trainfleet.infra.spec.load import load_stack
from trainfleet.infra.spec.node_groups import node_groups
from trainfleet.infra.spec.schema import PlatformSpec

SPEC = load_stack("gcp-prod")
CALLER = "ci@simulated.iam.gserviceaccount.com"
PROJECT = f"/compute/compute/v1/projects/{SPEC.account}"
REGION = f"{PROJECT}/regions/{SPEC.region}"
HOME = f"/container/v1/projects/{SPEC.account}/locations/{SPEC.region}"
CLUSTER = f"{HOME}/clusters/trainfleet-prod"
NODES = f"/iam/v1/projects/{SPEC.account}/serviceAccounts/prod-nodes@{SPEC.account}.iam.gserviceaccount.com"
MEMBERS = f"/cloudresourcemanager/v1/projects/{SPEC.account}:getEffectiveOrgPolicy"
METRICS = ("NVIDIA_A100_GPUS", "NVIDIA_A100_80GB_GPUS", "NVIDIA_L4_GPUS", "PREEMPTIBLE_NVIDIA_L4_GPUS")
Check = Callable[[SimulatedGcp], dict[str, list[Answered]]]


def a_spec(admins: tuple[str, ...] = (CALLER,)) -> PlatformSpec:
    kubernetes = SPEC.kubernetes.model_copy(update={"admins": admins})
    return SPEC.model_copy(update={"kubernetes": kubernetes})


def quotas(limit: float, *metrics: str) -> dict[str, Any]:
    return {"quotas": [{"metric": each, "limit": limit, "usage": 0.0} for each in metrics]}


def right() -> SimulatedGcp:
    documents: dict[str, dict[str, Any]] = {
        MEMBERS: {"constraint": "constraints/iam.allowedPolicyMemberDomains"},
        PROJECT: quotas(1000, "GPUS_ALL_REGIONS"),
        REGION: quotas(1000, *METRICS),
        f"{HOME}/serverConfig": {
            "channels": [{"channel": "REGULAR", "validVersions": [f"{SPEC.kubernetes.version}.3-gke.100"]}]
        },
    }
    for api in ("cloudresourcemanager", "serviceusage"):
        path = f"/serviceusage/v1/projects/{SPEC.account}/services/{api}.googleapis.com"
        documents[path] = {"state": "ENABLED"}
    for pool in node_groups(SPEC):
        machine = machine_for_pool(Cloud.GCP, pool).instance_type
        for zone in pool_zones(SPEC, pool):
            documents[f"{PROJECT}/zones/{zone}/machineTypes/{machine}"] = {"name": machine}
            held = {"count": str(pool.max_nodes), "instanceProperties": {"machineType": machine}}
            if pool.reservation:
                path = f"{PROJECT}/zones/{zone}/reservations/{pool.reservation}"
                documents[path] = {"status": "READY", "specificReservation": held}
    return SimulatedGcp(documents, list(PERMISSIONS))


def key_file(folder: Path, url: str) -> Path:
    """The key of a service account, whose tokens come from the simulated endpoint."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file = folder / "key.json"
    document = {
        "type": "service_account", "client_email": CALLER, "token_uri": f"{url}/token",
        "private_key": pem.decode(), "private_key_id": "1", "project_id": SPEC.account,
    }  # fmt: skip
    file.write_text(json.dumps(document))
    return file


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Check]:
    """Answers the checks with a project. Whatever the project, only reads are sent."""
    sent: list[Request] = []

    def asked(project: SimulatedGcp, spec: PlatformSpec | None = None) -> dict[str, list[Answered]]:
        spec = spec or a_spec()
        with serving(project) as (url, requests):
            monkeypatch.setattr(module, "HOST", url + "/{service}")
            monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key_file(tmp_path, url)))
            rows = answer_checks(spec, preflight_checks(spec), "ci", connect(spec, {}))
        sent.extend(requests)
        return by_topic(rows)

    yield asked
    assert sent
    for each in sent:
        assert each.verb == "GET" or each.path == "/token" or each.path.endswith(module.READING_POSTS), each


def test_a_right_project_has_no_problem(check: Check) -> None:
    found = check(right())
    assert {topic: statuses(rows) for topic, rows in found.items() if topic != "quota"} == {
        topic: ["ok"]
        for topic in ("api-server", "version", "caller", "apis", "members", "zones", "reservation", "names")
    }
    by_family = [row for row in found["quota"] if row.check.status == "not checked"]
    assert by_family
    assert all("GPUS-PER-GPU-FAMILY" in row.found for row in by_family)
    assert {row.check.status for row in found["quota"]} == {"ok", "not checked"}


def without(project: SimulatedGcp, part: str) -> SimulatedGcp:
    kept = {path: document for path, document in project.documents.items() if part not in path}
    return replace(project, documents=kept)


def with_document(project: SimulatedGcp, path: str, document: dict[str, Any]) -> SimulatedGcp:
    return replace(project, documents=project.documents | {path: document})


def every_reservation(project: SimulatedGcp, change: dict[str, Any]) -> SimulatedGcp:
    changed = {path: row | change for path, row in project.documents.items() if "/reservations/" in path}
    return replace(project, documents=project.documents | changed)


SERVICE = f"/serviceusage/v1/projects/{SPEC.account}/services/serviceusage.googleapis.com"
OTHER = {"specificReservation": {"count": "9", "instanceProperties": {"machineType": "n2-standard-4"}}}
WRONG: dict[str, tuple[Callable[[SimulatedGcp], SimulatedGcp], str, str, str]] = {
    "no right to set policies": (
        lambda p: replace(p, permissions=list(PERMISSIONS[:3])),
        "caller",
        "problem",
        "lacks resourcemanager.projects.setIamPolicy, serviceusage.services.enable",
    ),
    "a disabled API": (
        lambda p: with_document(p, SERVICE, {"state": "DISABLED"}),
        "apis",
        "problem",
        "disabled",
    ),
    "an organization that limits members to its domain": (
        lambda p: with_document(p, MEMBERS, {"listPolicy": {"allowedValues": ["C0123abc"]}}),
        "members",
        "warning",
        "members are limited to C0123abc",
    ),
    "an organization that allows no member": (
        lambda p: with_document(p, MEMBERS, {"listPolicy": {"allValues": "DENY"}}),
        "members",
        "problem",
        "no member may be granted a role",
    ),
    "Compute Engine is disabled": (
        lambda p: replace(p, disabled=("compute",)),
        "zones",
        "not checked",
        "compute.googleapis.com is disabled",
    ),
    "no right to read a region": (
        lambda p: replace(p, denied=(SPEC.region,)),
        "quota",
        "not checked",
        "the caller may not",
    ),
    "no GPU quota": (
        lambda p: with_document(p, PROJECT, quotas(0, "GPUS_ALL_REGIONS")),
        "quota",
        "problem",
        "quota 0",
    ),
    "quota in use": (
        lambda p: with_document(
            p, PROJECT, {"quotas": [{"metric": "GPUS_ALL_REGIONS", "limit": 1000, "usage": 999}]}
        ),
        "quota",
        "warning",
        "999 in use",
    ),
    "a machine that no zone offers": (lambda p: without(p, "/machineTypes/"), "zones", "problem", "not in"),
    "no reservation": (lambda p: without(p, "/reservations/"), "reservation", "problem", "no such"),
    "a reservation that is being created": (
        lambda p: every_reservation(p, {"status": "CREATING"}),
        "reservation",
        "problem",
        "is creating",
    ),
    "a reservation of another machine": (
        lambda p: every_reservation(p, OTHER),
        "reservation",
        "problem",
        "is for n2-standard-4",
    ),
    "another cluster of that name": (
        lambda p: with_document(p, CLUSTER, {"name": "trainfleet-prod"}),
        "names",
        "problem",
        "exists",
    ),
    "a service account of that name": (
        lambda p: with_document(p, NODES, {"email": "x"}),
        "names",
        "problem",
        "import or delete it",
    ),
    "a version that is not offered": (
        lambda p: with_document(
            p,
            f"{HOME}/serverConfig",
            {"channels": [{"channel": "REGULAR", "validVersions": ["1.40.1-gke.1"]}]},
        ),
        "version",
        "problem",
        "offered: 1.40",
    ),
    "a token that is not accepted": (
        lambda p: replace(p, tokens=[]),
        "zones",
        "not checked",
        "UNAUTHENTICATED",
    ),
    "a document without what it must have": (
        lambda p: with_document(p, REGION, {"quotas": [{}]}),
        "quota",
        "not checked",
        "metric",
    ),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_one_row_with_the_reason(check: Check, name: str) -> None:
    change, topic, status, says = WRONG[name]
    rows = check(change(right()))[topic]
    assert [row for row in rows if row.check.status == status and says in row.found], [
        (row.check.status, row.found) for row in rows
    ]


def test_names_of_the_platform_itself_are_not_in_its_way(check: Check) -> None:
    own = {"name": "trainfleet-prod", "resourceLabels": {"trainfleet-platform": "prod"}}
    project = with_document(with_document(right(), CLUSTER, own), NODES, {"email": "x"})
    assert statuses(check(project)["names"]) == ["ok"]


def test_an_existing_dns_endpoint_is_tried(check: Check) -> None:
    """Nothing listens at port 1."""
    dns = {"dnsEndpointConfig": {"endpoint": "127.0.0.1:1", "allowExternalTraffic": True}}
    project = with_document(right(), CLUSTER, {"controlPlaneEndpointsConfig": dns})
    (row,) = check(project)["api-server"]
    assert (row.check.status, "no TLS connection to 127.0.0.1:1" in row.found) == ("problem", True)


@pytest.mark.parametrize(
    ("admins", "says"),
    [(("group:ml@example.com",), "groups are not read"), (("you@example.com",), "is none of them")],
)
def test_an_administrator_that_is_not_found_is_a_warning(
    check: Callable[..., dict[str, list[Answered]]], admins: tuple[str, ...], says: str
) -> None:
    (row,) = check(right(), a_spec(admins))["caller"]
    assert (row.check.status, says in row.found) == ("warning", True)


def test_a_method_that_may_write_is_never_sent() -> None:
    with pytest.raises(ValueError, match="may write"):
        module.Account(SPEC, None).read("iam", "/v1/projects/p/serviceAccounts", {"accountId": "x"})


def test_no_credentials_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nonexistent/key.json")
    with pytest.raises(MissingToolError, match="gcloud auth application-default login"):
        connect(SPEC, {})
