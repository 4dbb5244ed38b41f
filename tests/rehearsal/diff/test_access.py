"""Access in words: tables of planned resources of each cloud, before and after, and the sentences about them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.rehearsal.diff.access_aws import AWS
from tests.rehearsal.diff.access_others import OTHERS
from tests.rehearsal.diff.access_resources import BUCKET, CONTRIBUTOR, IDENTITY, assignment
from trainfleet.infra.azure.permissions import ROLES as BUILT_IN
from trainfleet.rehearsal.diff.access import _covers, access_changes, planned_after, planned_before
from trainfleet.rehearsal.diff.grants import aws, gcp
from trainfleet.rehearsal.diff.grants.azure import ROLES
from trainfleet.rehearsal.diff.grants.model import Grant, Index, Kind, Planned, port_range, ports
from trainfleet.rehearsal.simulation.pulumi_values import UNKNOWN, secret
from trainfleet.rehearsal.simulation.schema import packages

CASES = AWS | OTHERS


@pytest.mark.parametrize(("before", "after", "texts"), CASES.values(), ids=CASES)
def test_access_in_words(before: list[Planned], after: list[Planned], texts: list[str]) -> None:
    assert [each.text for each in access_changes(before, after)] == texts


def test_each_change_has_its_parts() -> None:
    before, after, _ = CASES["aws write"]
    (found,) = access_changes(before, after)
    assert vars(found) == {
        "change": "gained",
        "who": "role train",
        "what": ("s3:PutObject",),
        "on": "bucket runs/*",
        "condition": "",
        "text": "role train can now write to bucket runs/* (s3:PutObject)",
        "resources": ("p",),
    }


def test_states_and_events_are_read() -> None:
    bucket = {
        "type": BUCKET.token,
        "urn": BUCKET.urn,
        "inputs": {"bucket": secret("b")},
        "outputs": {},
        "id": "b",
    }
    gone = {**bucket, "urn": "urn::gone", "delete": True}
    assert [each.inputs for each in planned_before([bucket, gone])] == [{"bucket": "b"}]
    events = [
        {"op": "same", "urn": "one", "type": BUCKET.token, "new": {**bucket, "urn": "one"}},
        {
            "op": "create-replacement",
            "urn": "two",
            "type": BUCKET.token,
            "new": {**bucket, "urn": "two", "id": "new"},
        },
        {
            "op": "delete-replaced",
            "urn": "two",
            "type": BUCKET.token,
            "new": {**bucket, "urn": "two", "id": "old"},
        },
        {"op": "delete", "urn": "three", "type": BUCKET.token, "new": None},
    ]
    assert [(each.urn, each.id) for each in planned_after(events)] == [("one", "b"), ("two", "new")]


def test_what_stays_keeps_what_the_cloud_computed() -> None:
    event = {"type": BUCKET.token, "new": {"type": BUCKET.token, "urn": BUCKET.urn}, "urn": BUCKET.urn}
    (same,) = planned_after([{"op": "same", **event}], [BUCKET])
    (new,) = planned_after([{"op": "create-replacement", **event}], [BUCKET])
    assert same.outputs["arn"] == "arn:aws:s3:::runs-1"
    assert new.outputs == {}


def test_a_value_that_a_resource_was_given_does_not_identify_it() -> None:
    index = Index([assignment(CONTRIBUTOR), IDENTITY])
    assert index.shown("p-1") == "user assigned identity trainer"


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (("-1", 0, 0), "all"),
        (("tcp", 443, 443), "tcp 443"),
        (("6", "443", None), "tcp 443"),
        (("tcp", 0, 65535), "tcp"),
        (("tcp", 1, 1024), "tcp 1-1024"),
        (("icmp", -1, -1), "icmp"),
        (("tcp", UNKNOWN, 1), "tcp [known after apply]"),
    ],
)
def test_ports_have_one_form(given: tuple[Any, Any, Any], shown: str) -> None:
    assert ports(*given) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("443", "tcp 443"),
        ("1-9", "tcp 1-9"),
        ("*", "tcp"),
        (None, "tcp"),
        (UNKNOWN, "tcp [known after apply]"),
    ],
)
def test_ports_as_text_have_the_same_form(text: str | None, shown: str) -> None:
    assert port_range("Tcp", text) == shown


def test_every_type_that_is_read_is_one_of_the_sdk() -> None:
    tokens = {*aws.RESOURCE_POLICIES, *aws.OWN_POLICIES, *aws._READERS}
    assert tokens <= set(packages()["aws"].classes)
    properties = {**aws.OWN_POLICIES, **{token: row[1] for token, row in aws.RESOURCE_POLICIES.items()}}
    for token, name in properties.items():
        resource = packages()["aws"].resource(token)
        assert resource is not None
        assert name in resource.inputs, token
    iam = [
        token
        for token in packages()["gcp"].classes
        if re.search(r":\w*I(AM|am)(Member|Binding|Policy)$", token)
    ]
    assert len(iam) > 100
    assert all(gcp._IAM.match(token) for token in iam)


def test_the_roles_that_our_platforms_assign_have_names() -> None:
    assert {name: guid for guid, name in ROLES.items() if name in BUILT_IN} == BUILT_IN


@pytest.mark.parametrize(
    ("wide", "narrow", "covered"),
    [
        (("10.0.0.0/8", "tcp 443"), ("10.1.0.0/16", "tcp 443"), True),
        (("10.1.0.0/16", "tcp 443"), ("10.0.0.0/8", "tcp 443"), False),
        (("0.0.0.0/0", "tcp 443"), ("::/0", "tcp 443"), False),
        (("::/0", "all"), ("fd00::/8", "udp 53"), True),
        (("sg-a", "tcp"), ("sg-a", "tcp 22"), True),
        (("sg-a", "tcp"), ("sg-b", "tcp"), False),
        (("sg-a", "tcp 1-1024"), ("sg-a", "tcp 22-80"), True),
        (("sg-a", "tcp 22-80"), ("sg-a", "tcp 1-1024"), False),
        (("sg-a", "tcp 22"), ("sg-a", "tcp"), False),
        (("sg-a", "tcp"), ("sg-a", "udp 53"), False),
        (("sg-a", "tcp [known after apply]"), ("sg-a", "tcp 22"), False),
    ],
)
def test_networks_and_ports_are_compared_by_what_they_contain(
    wide: tuple[str, str], narrow: tuple[str, str], covered: bool
) -> None:
    one, two = (Grant(Kind.INGRESS, who, what, "x") for who, what in (wide, narrow))
    assert _covers(one, two) is covered
