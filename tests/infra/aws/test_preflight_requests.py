"""What `trainfleet preflight` finds in a right and in wrong AWS accounts, through botocore, on a simulated API."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from ipaddress import IPv4Address
from typing import Any

import pytest

from tests.infra.preflight_rows import by_topic, statuses
from tests.infra.simulated_api import Request, serving
from tests.infra.simulated_aws_api import KEY, SimulatedAws
from trainfleet.errors import MissingToolError
from trainfleet.infra import preflight_requests
from trainfleet.infra.aws.account import connect
from trainfleet.infra.aws.layout import pool_zones
from trainfleet.infra.catalog.machines import machine_for_pool
from trainfleet.infra.clouds import Cloud
from trainfleet.infra.preflight import NotAnsweredError, preflight_checks
from trainfleet.infra.preflight_requests import Answered, answer_checks
from trainfleet.infra.spec.load import load_stack
from trainfleet.infra.spec.node_groups import node_groups
from trainfleet.infra.spec.schema import PlatformSpec

SPEC = load_stack("aws-prod")
ROLE = "arn:aws:iam::111122223333:role/teams/platform-admin"
SESSION = "arn:aws:sts::111122223333:assumed-role/platform-admin/ci"
RESERVED = [pool for pool in node_groups(SPEC) if pool.reservation]
Check = Callable[[SimulatedAws], dict[str, list[Answered]]]


def a_spec() -> PlatformSpec:
    kubernetes = SPEC.kubernetes.model_copy(update={"admins": (ROLE,)})
    return SPEC.model_copy(update={"kubernetes": kubernetes, "account": ""})


def right() -> SimulatedAws:
    offered: dict[str, list[str]] = {}
    for pool in node_groups(SPEC):
        machine = machine_for_pool(Cloud.AWS, pool).instance_type
        offered.setdefault(machine, []).extend(pool_zones(SPEC, pool))
    reservations = {
        pool.reservation: {
            "instanceType": machine_for_pool(Cloud.AWS, pool).instance_type,
            "availabilityZone": pool_zones(SPEC, pool)[0],
            "totalInstanceCount": pool.max_nodes,
            "state": "active",
        }
        for pool in RESERVED
    }
    versions = {SPEC.kubernetes.version: "STANDARD_SUPPORT"}
    return SimulatedAws(SESSION, offered, reservations=reservations, versions=versions)


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent/config")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent/credentials")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "simulated")
    inside = SPEC.kubernetes.access.public_ranges[0][1]
    monkeypatch.setattr(preflight_requests, "public_address", lambda: IPv4Address(inside))


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Iterator[Check]:
    """Answers the checks with an account. Whatever the account, only reads are sent."""
    sent: list[Request] = []

    def asked(account: SimulatedAws) -> dict[str, list[Answered]]:
        spec = a_spec()
        with serving(account) as (url, requests):
            monkeypatch.setenv("AWS_ENDPOINT_URL", url)
            rows = answer_checks(spec, preflight_checks(spec), "laptop", connect(spec, {}))
        sent.extend(requests)
        return by_topic(rows)

    yield asked
    assert sent
    operations = {SimulatedAws.operation(each) for each in sent}
    assert all(name.startswith(("Get", "Describe", "List")) for name in operations), operations


def reserved(account: SimulatedAws, **change: object) -> SimulatedAws:
    rows = {name: row | change for name, row in account.reservations.items()}
    return replace(account, reservations=rows)


def test_a_right_account_has_no_problem(check: Check) -> None:
    found = check(right())
    assert {topic: statuses(rows) for topic, rows in found.items()} == {
        topic: ["ok"]
        for topic in ("api-server", "version", "caller", "quota", "zones", "reservation", "budget", "names")
    }
    assert len(found["quota"]) == 4


OWN = {"name": "trainfleet-prod", "tags": {"trainfleet:platform": "prod"}}
WRONG: dict[str, tuple[Callable[[SimulatedAws], SimulatedAws], str, str, str]] = {
    "another role": (
        lambda a: replace(a, arn="arn:aws:sts::111122223333:assumed-role/developer/me"),
        "caller",
        "problem",
        "is none of them",
    ),
    "the same role in another account": (
        lambda a: replace(a, arn="arn:aws:sts::999922223333:assumed-role/platform-admin/me"),
        "caller",
        "problem",
        "is none of them",
    ),
    "no GPU quota": (
        lambda a: replace(a, quotas=a.quotas | {"Running On-Demand P instances": 0.0}),
        "quota",
        "problem",
        "quota 0",
    ),
    "a zone without the machine": (
        lambda a: replace(a, offered=a.offered | {"p5.48xlarge": ["us-east-2f"]}),
        "zones",
        "problem",
        "offered in us-east-2f",
    ),
    "an account without a zone of the network": (
        lambda a: replace(a, zones={"us-east-2a": "use2-az1", "us-east-2c": "use2-az3"}),
        "zones",
        "problem",
        "not us-east-2b; the account has us-east-2a, us-east-2c",
    ),
    "a zone without control planes": (
        lambda a: replace(a, zones=a.zones | {"us-east-2b": "use1-az3"}),
        "zones",
        "problem",
        "us-east-2b is use1-az3, where EKS places none",
    ),
    "an expired reservation": (
        lambda a: reserved(a, state="expired"),
        "reservation",
        "problem",
        "is expired",
    ),
    "a reservation of another machine": (
        lambda a: reserved(a, instanceType="p4d.24xlarge"),
        "reservation",
        "problem",
        "is for p4d.24xlarge",
    ),
    "a reservation elsewhere": (
        lambda a: reserved(a, availabilityZone="us-east-2f"),
        "reservation",
        "problem",
        "is in us-east-2f",
    ),
    "a small reservation": (
        lambda a: reserved(a, totalInstanceCount=0),
        "reservation",
        "warning",
        "active: 0",
    ),
    "no reservation": (lambda a: replace(a, reservations={}), "reservation", "problem", "no such"),
    "another cluster of that name": (
        lambda a: replace(a, cluster={"name": "trainfleet-prod"}),
        "names",
        "problem",
        "trainfleet-prod exists",
    ),
    "a log group of a destroyed platform": (
        lambda a: replace(a, log_groups=["/aws/eks/trainfleet-prod/cluster"]),
        "names",
        "problem",
        "import or delete it",
    ),
    "a deleted secret": (
        lambda a: replace(a, secrets=[{"Name": "trainfleet/prod/hf-token", "DeletedDate": 1790000000}]),
        "names",
        "problem",
        "scheduled for deletion",
    ),
    "a version in extended support": (
        lambda a: replace(a, versions={SPEC.kubernetes.version: "EXTENDED_SUPPORT"}),
        "version",
        "problem",
        "extended support",
    ),
    "a version that is not offered": (
        lambda a: replace(a, versions={"1.40": "STANDARD_SUPPORT"}),
        "version",
        "problem",
        "offered: 1.40",
    ),
    "a cost tag that is not active": (
        lambda a: replace(a, cost_tags={"trainfleet:platform": "Inactive"}),
        "budget",
        "warning",
        "is inactive",
    ),
    "a cost tag that nobody used": (
        lambda a: replace(a, cost_tags={}),
        "budget",
        "warning",
        "activate it after the first apply",
    ),
    "a member account": (
        lambda a: replace(a, denied=("ListCostAllocationTags",)),
        "budget",
        "not checked",
        "may not ce:ListCostAllocationTags",
    ),
    "no permission for quotas": (
        lambda a: replace(a, denied=("ListServiceQuotas",)),
        "quota",
        "not checked",
        "may not service-quotas:ListServiceQuotas",
    ),
    "no permission in EC2": (
        lambda a: replace(a, denied=("DescribeInstanceTypeOfferings",)),
        "zones",
        "not checked",
        "may not ec2:DescribeInstanceTypeOfferings",
    ),
}


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_one_row_with_the_reason(check: Check, name: str) -> None:
    change, topic, status, says = WRONG[name]
    rows = check(change(right()))[topic]
    wrong = [row for row in rows if row.check.status == status and says in row.found]
    assert wrong, [(row.check.status, row.found) for row in rows]


def test_names_of_the_platform_itself_are_not_in_its_way(check: Check) -> None:
    account = replace(right(), cluster=OWN, log_groups=["/aws/eks/trainfleet-prod/cluster"])
    assert statuses(check(account)["names"]) == ["ok"]


def test_an_address_outside_the_ranges_is_a_problem(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight_requests, "public_address", lambda: IPv4Address("192.0.2.1"))
    (row,) = check(right())["api-server"]
    assert (row.check.status, "192.0.2.1" in row.found) == ("problem", True)


def test_an_existing_api_server_is_tried(check: Check) -> None:
    """Nothing listens at port 1."""
    (row,) = check(replace(right(), cluster=OWN | {"endpoint": "https://127.0.0.1:1"}))["api-server"]
    assert (row.check.status, "no TLS connection to 127.0.0.1:1" in row.found) == ("problem", True)


def test_an_unknown_key_answers_no_check(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAUNKNOWN")
    found = check(right())
    assert statuses(found["quota"]) == ["not checked"]
    assert "aws sso login" in found["caller"][0].found


def test_without_a_network_every_request_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    rows = answer_checks(a_spec(), preflight_checks(a_spec()), "laptop", connect(a_spec(), {}))
    asked = [row for row in rows if row.check.answer]
    assert {row.check.status for row in asked} == {"not checked"}
    assert all("127.0.0.1:1" in row.found for row in asked)


def test_an_operation_that_may_write_is_never_sent() -> None:
    with pytest.raises(ValueError, match="CreateCluster may write"):
        connect(a_spec(), {}).read("eks", "CreateCluster", name="x")


def test_no_credentials_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(MissingToolError, match="aws sso login"):
        connect(a_spec(), {})


def test_a_profile_of_the_stack_that_does_not_exist_is_one_message() -> None:
    with pytest.raises(MissingToolError, match="theirs"):
        connect(a_spec(), {"aws:profile": "theirs"})


def test_the_role_that_the_stack_assumes_is_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    account = replace(right(), arn="arn:aws:iam::111122223333:user/me")
    role = "arn:aws:iam::111122223333:role/platform-admin"
    with serving(account) as (url, _):
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        assumed = connect(a_spec(), {"aws:assumeRoles": [{"roleArn": role}]})
        found = answer_checks(a_spec(), preflight_checks(a_spec()), "laptop", assumed)
    assert [row.check.status for row in found if row.check.topic == "caller"] == ["ok"]
    assert assumed.who() == "arn:aws:sts::111122223333:assumed-role/platform-admin/preflight"


def test_a_role_that_cannot_be_assumed_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(replace(right(), denied=("AssumeRole",))) as (url, _):
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        with pytest.raises(MissingToolError, match="AssumeRole"):
            connect(a_spec(), {"aws:assumeRole": {"roleArn": "arn:aws:iam::111122223333:role/x"}})


def test_an_address_service_that_answers_nonsense_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with serving(lambda _: (200, "text/html", "<html>")) as (url, _):
        monkeypatch.setattr(preflight_requests, "ADDRESS_SERVICE", url)
        with pytest.raises(NotAnsweredError, match="public address"):
            preflight_requests.public_address()
    with serving(lambda _: (200, "text/plain", "192.0.2.7\n")) as (url, _):
        monkeypatch.setattr(preflight_requests, "ADDRESS_SERVICE", url)
        assert str(preflight_requests.public_address()) == "192.0.2.7"


def test_the_command_prints_what_it_found(
    trainfleet: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(replace(right(), quotas={"Running On-Demand P instances": 0.0})) as (url, _):
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        # A runner reads its own interfaces: no request leaves this machine.
        done = trainfleet("preflight", "aws-prod", "--json", "--from", "runner")
    assert done.returncode == 1, done.stderr
    rows = json.loads(done.stdout)["checks"]
    assert [row["found"] for row in rows if "On-Demand P" in row["needs"]] == ["quota 0"]
    assert {row["status"] for row in rows} >= {"ok", "problem", "not checked"}
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    refused = trainfleet("preflight", "aws-prod")
    assert (refused.returncode, "Traceback" in refused.stderr) == (3, False)
    assert "aws sso login" in refused.stderr
