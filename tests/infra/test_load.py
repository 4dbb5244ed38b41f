"""From what a user wrote to a spec, or to all of its mistakes at once and where they stand."""

from __future__ import annotations

import copy
import json
from datetime import date
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from trainfleet.errors import InputError
from trainfleet.infra.clouds import Cloud
from trainfleet.infra.spec.load import PLACEHOLDERS, parse_spec
from trainfleet.infra.spec.schema import Capacity, Network, PlatformSpec
from trainfleet.pydantic_messages import model_in

OWNER = "ml-platform@example.com"
GOOD: dict[str, Any] = {
    "name": "demo",
    "cloud": "aws",
    "region": "us-east-2",
    "owner": OWNER,
    "kubernetes": {"access": {"public_ranges": ["203.0.113.0/24"]}},
    "gpu_pools": [{"name": "l4", "accelerator": "L4", "per_node": 4, "max_nodes": 2}],
}


def mistakes(data: Any, source: str = "") -> dict[str, str]:
    """The message of each mistake by its place. Fails if a place is reported twice."""
    with pytest.raises(InputError) as caught:
        parse_spec(data, source)
    found = {problem.where: f"{problem.what} -> {problem.fix}" for problem in caught.value.problems}
    assert len(found) == len(caught.value.problems), caught.value
    return found


def test_a_good_spec_is_read_with_its_defaults() -> None:
    spec = parse_spec(GOOD)
    assert (spec.cloud, spec.network, spec.gpu_pools[0].capacity) == (
        Cloud.AWS,
        Network(),
        Capacity.ON_DEMAND,
    )


def test_field_mistakes_and_rules_are_reported_together() -> None:
    data = {
        **GOOD,
        "owner": "nobody",
        "network": {"cidr": "10.0.0.1/16", "zones": 9},
        "gpu_pools": [
            {"name": "l4", "accelerator": "L4", "per_node": 3},
            {"name": "h100", "accelerator": "H100", "capacity": "reserved"},
        ],
        "kubernetes": {**GOOD["kubernetes"], "log_retention_days": 200},
    }
    assert mistakes(data).keys() == {
        "owner",
        "network.cidr",
        "network.zones",
        "gpu_pools[0].per_node",
        "gpu_pools[1].reservation",
        "kubernetes.log_retention_days",
    }


def test_a_refused_value_gives_no_follow_on_mistake() -> None:
    data = {**GOOD, "cloud": "awss", "gpu_pools": [{"name": "l4", "accelerator": "nothing sells this"}]}
    assert mistakes(data).keys() == {"cloud"}


def test_a_refused_pool_leaves_the_others_validated_at_their_own_place() -> None:
    data = {**GOOD, "gpu_pools": ["l4", {"name": "h", "accelerator": "H1000"}]}
    assert mistakes(data).keys() == {"gpu_pools[0]", "gpu_pools[1].accelerator"}


def test_a_misspelt_required_key_is_reported_once() -> None:
    data = {**GOOD, "gpu_pools": [{"name": "l4", "acelerator": "L4", "per_node": 4}]}
    assert mistakes(data) == {
        "gpu_pools[0].acelerator": "unknown key `acelerator` -> did you mean `accelerator`?"
    }


def test_a_misspelt_key_gives_no_mistake_that_rests_on_its_default() -> None:
    data = {**GOOD, "gpu_pools": [{"name": "l4", "accelerator": "L4", "per_nod": 4}]}
    assert mistakes(data).keys() == {"gpu_pools[0].per_nod"}


def test_a_key_in_the_wrong_place_is_sent_to_the_right_one() -> None:
    assert mistakes({**GOOD, "cidr": "10.0.0.0/16"}) == {
        "cidr": "unknown key `cidr` -> it belongs under `network`"
    }


@pytest.mark.parametrize(
    ("changes", "where", "says"),
    [
        (
            {"kubernetes": {**GOOD["kubernetes"], "version": 1.34}},
            "kubernetes.version",
            'put it in quotes, as it was meant: "1.34"',
        ),
        (
            {"kubernetes": {**GOOD["kubernetes"], "version": "v1.34"}},
            "kubernetes.version",
            "for example 1.35",
        ),
        ({"name": "Demo"}, "name", "lower case letters, digits and hyphens"),
        ({"cloud": "gpc"}, "cloud", "did you mean `gcp`?"),
        (
            {"network": {"nat": "singel"}},
            "network.nat",
            "did you mean `single`? one of per-zone, single, none",
        ),
        ({"network": {"cidr": "10.0.0.1/16"}}, "network.cidr", "the range is 10.0.0.0/16"),
        ({"network": {"cidr": 10}}, "network.cidr", "write it like 10.40.0.0/16"),
        ({"network": {"cidr": "ten"}}, "network.cidr", "write it like 10.40.0.0/16"),
        ({"network": {"zones": "many"}}, "network.zones", "must be a whole number, not `many`"),
        ({"network": {"zones": 2.5}}, "network.zones", "must be a whole number, not `2.5`"),
        ({"network": {"zones": 0}}, "network.zones", "at least 1"),
        ({"network": {"flow_logs": "perhaps"}}, "network.flow_logs", "must be true or false"),
        ({"network": []}, "network", "must be a group of keys, not a list"),
        ({"network": None}, "network", "must be a group of keys, not nothing"),
        ({"gpu_pools": {}}, "gpu_pools", "must be a list, not a group of keys"),
        ({"tags": {"a": True}}, "tags.a", 'put it in quotes, as it was meant: "true"'),
        ({"budget": {"monthly_usd": float("nan")}}, "budget.monthly_usd", "must be a number"),
        ({"budget": {"monthly_usd": float("inf")}}, "budget.monthly_usd", "must be a number"),
        ({"budget": {"monthly_usd": -1}}, "budget.monthly_usd", "more than 0"),
        (
            {"storage": {"shared_filesystem": {"throughput_mbps_per_tib": 100}}},
            "storage.shared_filesystem.throughput_mbps_per_tib",
            "125, 250, 500, 1000",
        ),
        (
            {
                "exceptions": [
                    {"policy": "no-host-path", "resource": "it", "reason": "short", "until": "9999-01-01"}
                ]
            },
            "exceptions[0].reason",
            "at least 10 characters",
        ),
        (
            {
                "exceptions": [
                    {"policy": "no-host-path", "resource": "it", "reason": "long enough", "until": "soon"}
                ]
            },
            "exceptions[0].until",
            "write it like 2027-01-31",
        ),
        ({5: "x"}, "key `5`", "a key must be text"),
        ({"gpu_pools": {"l4", "h100"}}, "gpu_pools", "must be a list"),
        ({"region": {"us-east-2"}}, "region", "must be text"),
        ({"network": {True: "x"}}, "network key `true`", 'put it in quotes: "true"'),
    ],
)
def test_a_mistake_is_reported_in_plain_words(changes: dict[Any, Any], where: str, says: str) -> None:
    found = mistakes({**GOOD, **changes})
    assert list(found) == [where]
    assert says in found[where]


@pytest.mark.parametrize("missing", ["name", "cloud", "owner"])
def test_a_missing_key_is_named(missing: str) -> None:
    found = mistakes({key: value for key, value in GOOD.items() if key != missing})
    assert list(found) == [missing]
    assert found[missing].startswith("is missing")


@pytest.mark.parametrize("data", [None, [], "aws", 5])
def test_a_document_that_is_not_a_platform_is_refused(data: Any) -> None:
    assert list(mistakes(data)) == [""]


def test_a_spec_nested_in_itself_is_refused() -> None:
    loop: dict[str, Any] = {**GOOD}
    loop["network"] = loop
    assert "nested" in mistakes(loop)[""]


def test_the_source_is_named_before_each_path() -> None:
    assert list(mistakes({**GOOD, "owner": "x"}, "config")) == ["config owner"]


def test_values_as_pulumi_hands_them_over_are_read() -> None:
    data = json.loads(json.dumps(GOOD))
    data["gpu_pools"][0]["per_node"] = 4.0
    data["network"] = {"zones": "3", "flow_logs": "true"}
    data["exceptions"] = [
        {
            "policy": "no-host-path",
            "resource": "it",
            "reason": "long enough",
            "until": "9999-01-01 00:00:00 +0000 UTC",
        }
    ]
    spec = parse_spec(data)
    assert (spec.gpu_pools[0].per_node, spec.network.zones, spec.exceptions[0].until) == (
        4,
        3,
        date(9999, 1, 1),
    )


def test_every_required_field_has_a_valid_placeholder() -> None:
    parts: list[type[BaseModel]] = [PlatformSpec]
    while parts:
        part = parts.pop()
        part.model_validate(
            {name: PLACEHOLDERS[name] for name, field in part.model_fields.items() if field.is_required()}
        )
        for field in part.model_fields.values():
            found = (model_in(each) for each in (field.annotation, *get_args(field.annotation)))
            parts += [below for below in found if below is not None]


def test_a_spec_given_as_a_mapping_is_not_changed() -> None:
    before = copy.deepcopy(GOOD)
    mistakes({**GOOD, "ownr": 1})
    assert before == GOOD
