"""Properties of the spec over all that may be written: valid ones survive the trip, others get one clear
refusal.
"""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from trainfleet.errors import InputError, Problem
from trainfleet.infra.aws.layout import LOG_RETENTION_DAYS
from trainfleet.infra.catalog.machines import Machine, machines_of
from trainfleet.infra.catalog.regions import offered_in
from trainfleet.infra.clouds import Cloud
from trainfleet.infra.spec.load import parse_spec
from trainfleet.infra.spec.schema import PlatformSpec
from trainfleet.policies.catalogue import policy_names
from trainfleet.pydantic_messages import part_at

NAMES = st.from_regex(r"[a-z]([a-z0-9-]{0,10}[a-z0-9])?", fullmatch=True).filter(
    lambda name: name != "system"
)
EMAILS = st.sampled_from(["ml-platform@example.com", "a@b.c"])
TEXT = st.text(st.characters(categories=["L", "Nd"], include_characters=" _.:/=+-@"), max_size=20)
RESERVED = ("aws:", "trainfleet:", "name")
REGIONS = ["us-east-1", "us-east-2", "eu-west-1"]


@st.composite
def pools(draw: st.DrawFn, name: str, index: int) -> dict[str, Any]:
    """A pool that AWS sells."""
    everywhere = [each for each in machines_of(Cloud.AWS) if set(REGIONS) <= set(offered_in(each))]
    machine: Machine = draw(st.sampled_from(everywhere))
    capacities = ["reserved"] + [
        kind
        for kind, price in (
            ("on-demand", machine.usd_per_hour_on_demand),
            ("spot", machine.usd_per_hour_spot),
        )
        if price
    ]
    pool = {
        "name": name,
        "accelerator": machine.accelerator,
        "per_node": machine.accelerators_per_node,
        "instance_type": machine.instance_type,
        "capacity": draw(st.sampled_from(capacities)),
        "max_nodes": draw(st.integers(1, 6)),
        "compact": True,
        "interconnect": "best" if machine.rdma != "none" and draw(st.booleans()) else "none",
        "disk_gib": draw(st.integers(50, 16384)),
        "labels": draw(st.dictionaries(NAMES, NAMES, max_size=2)),
    }
    if pool["capacity"] == "reserved":
        pool["reservation"] = f"cr-{index:017x}"
    return pool


@st.composite
def platforms(draw: st.DrawFn) -> dict[str, Any]:
    """Any AWS platform that breaks no rule, as JSON gives it."""
    names = draw(st.lists(NAMES, max_size=4, unique=True))
    public = draw(st.booleans())
    tags = draw(st.dictionaries(TEXT.filter(bool), TEXT, max_size=4))
    assume(not any(key.lower().startswith(RESERVED) for key in tags))
    return {
        "name": draw(NAMES),
        "cloud": "aws",
        "region": draw(st.sampled_from(REGIONS)),
        "owner": draw(EMAILS),
        "environment": draw(st.sampled_from(["dev", "staging", "prod"])),
        "network": {
            "cidr": draw(st.sampled_from(["10.0.0.0/16", "172.20.0.0/16", "100.64.0.0/16"])),
            "zones": draw(st.integers(2, 3)),
            "nat": draw(st.sampled_from(["per-zone", "single"])),
            "hub": None if public else {"id": "tgw-0123456789abcdef0"},
        },
        "kubernetes": {
            "version": draw(st.sampled_from(["1.35", "1.36"])),
            "access": {"public_ranges": ["192.0.2.0/24", "198.51.100.7/32"]}
            if public
            else {"private_ranges": ["192.168.0.0/24"]},
            "log_retention_days": draw(st.sampled_from(LOG_RETENTION_DAYS)),
        },
        "system_pool": {
            "size": draw(st.sampled_from(["small", "medium", "large"])),
            "min_nodes": 2,
            "max_nodes": draw(st.integers(2, 6)),
        },
        "gpu_pools": [draw(pools(name, index)) for index, name in enumerate(names)],
        "storage": {
            "shared_filesystem": draw(
                st.sampled_from([None, {"capacity_gib": 4800, "throughput_mbps_per_tib": 500}])
            )
        },
        "secrets": {"names": draw(st.lists(NAMES, max_size=3, unique=True))},
        "budget": draw(st.one_of(st.none(), st.fixed_dictionaries({"monthly_usd": st.floats(2000, 1e9)}))),
        "tags": tags,
        "exceptions": draw(
            st.lists(
                st.fixed_dictionaries(
                    {
                        "policy": st.sampled_from(policy_names()),
                        "resource": NAMES,
                        "reason": st.just("a good reason"),
                        "until": st.just("9999-12-31"),
                    }
                ),
                max_size=2,
                unique_by=lambda exception: (exception["policy"], exception["resource"]),
            )
        ),
    }


@given(platforms())
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_valid_spec_survives_yaml_and_json(data: dict[str, Any]) -> None:
    spec = parse_spec(data)
    written = spec.model_dump(mode="json")
    assert parse_spec(yaml.safe_load(yaml.safe_dump(written))) == spec
    assert parse_spec(json.loads(json.dumps(written))) == spec


def keys_below(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Paths of all declared keys that are written: not those of free mappings (tags, labels)."""
    found: list[tuple[str | int, ...]] = []
    if isinstance(value, dict) and part_at(PlatformSpec, path) is not None:
        for key, member in value.items():
            found += [(*path, key), *keys_below(member, (*path, key))]
    elif isinstance(value, list):
        for index, member in enumerate(value):
            found += keys_below(member, (*path, index))
    return found


def doubled(word: str, at: int) -> str:
    return word[: at + 1] + word[at:]


def dropped(word: str, at: int) -> str:
    return word[:at] + word[at + 1 :] if len(word) > 4 else doubled(word, at)


def swapped(word: str, at: int) -> str:
    return word[:at] + word[at + 1 : at + 2] + word[at] + word[at + 2 :]


@given(platforms(), st.data(), st.sampled_from([doubled, dropped, swapped]))
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_misspelt_key_is_refused_and_the_right_one_offered(
    data: dict[str, Any], draw: st.DataObject, misspell: Any
) -> None:
    document = parse_spec(data).model_dump(mode="json")
    path = draw.draw(st.sampled_from(keys_below(document)))
    right = str(path[-1])
    wrong = misspell(right, draw.draw(st.integers(0, len(right) - 1)))
    part = part_at(PlatformSpec, path[:-1])
    assert part is not None
    assume(wrong not in part.model_fields)
    place: Any = document
    for step in path[:-1]:
        place = place[step]
    place[wrong] = place.pop(right)
    with pytest.raises(InputError) as caught:
        parse_spec(document)
    messages = [f"{problem.what} -> {problem.fix}" for problem in caught.value.problems]
    assert messages == [f"unknown key `{wrong}` -> did you mean `{right}`?"]


def test_misspelt_ranges_are_not_reported_as_missing_too() -> None:
    """Without `endpoint`, the ranges decide how the API server is reached."""
    document = {
        "name": "a",
        "cloud": "aws",
        "region": "us-east-1",
        "owner": "a@b.c",
        "network": {"hub": {"id": "tgw-0123456789abcdef0"}},
        "kubernetes": {"access": {"private_rangess": ["192.168.0.0/24"]}},
    }
    with pytest.raises(InputError) as caught:
        parse_spec(document)
    assert [problem.what for problem in caught.value.problems] == ["unknown key `private_rangess`"]


FIELD_NAMES = sorted(
    {
        str(key)
        for path in keys_below(
            parse_spec(
                {"name": "a", "cloud": "local", "owner": "a@b.c", "storage": {"bucket_url": "s3://a"}}
            ).model_dump(mode="json")
        )
        for key in path
    }
)
POOL_NAMES = [
    "accelerator",
    "per_node",
    "capacity",
    "reservation",
    "zone",
    "instance_type",
    "labels",
    "interconnect",
    "compact",
    "kind",
]
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(
        [
            "aws",
            "gcp",
            "local",
            "us-east-2",
            "H100",
            "spot",
            "best",
            "10.0.0.0/16",
            "0.0.0.0/0",
            "a@b.c",
            "2.60.0",
            "9999-12-31",
            "lustre",
            math.nan,
            8,
        ]
    ),
)
DOCUMENTS = st.recursive(
    VALUES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(FIELD_NAMES + POOL_NAMES) | st.text(max_size=5), inner, max_size=6)
    ),
    max_leaves=25,
)


def mistakes(data: Any) -> tuple[Problem, ...] | None:
    """What is refused, or None for a spec that is taken."""
    try:
        parse_spec(data)
    except InputError as error:
        return error.problems
    return None


@given(DOCUMENTS)
@example({"cloud": "aws", "gpu_pools": [{"labels": {"[key]": 1}}]})
@example({"network": {"cidr": 10**5000}})
@example(
    {"name": "a", "cloud": "aws", "owner": "a@b.c", "gpu_pools": [{"name": "a", "accelerator": "\x1b[31m"}]}
)
@example({"name": "\ud800", "\ud800": "\x00"})
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_is_written_is_a_spec_or_an_input_error(data: Any) -> None:
    found = mistakes(data)
    assert found is None or found
    text = "\n".join(map(str, found or ()))
    assert all(line.isprintable() for line in text.split("\n"))
    assert "input should" not in text.lower(), "pydantic's words are not ours"


@pytest.mark.parametrize("cloud", ["aws", "gcp", "azure"])
@pytest.mark.parametrize("cidr", ["0.0.0.0/0", "8.0.0.0/6", "8.8.0.0/16", "10.0.0.0/28"])
def test_a_wrong_range_is_named_once(cloud: str, cidr: str) -> None:
    regions = {"aws": "us-east-1", "gcp": "us-central1", "azure": "eastus"}
    document = {"name": "a", "cloud": cloud, "region": regions[cloud], "network": {"cidr": cidr, "zones": 2}}
    document |= {"owner": "a@example.com", "environment": "dev", "kubernetes": {"version": "1.35"}}
    document |= {"system_pool": {"size": "small", "min_nodes": 2, "max_nodes": 2}, "gpu_pools": []}
    places = [problem.where for problem in mistakes(document) or ()]
    assert places.count("network.cidr") == 1


@given(platforms(), st.data(), VALUES)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_one_value_changed_for_another_is_a_spec_or_mistakes_there_or_in_a_rule(
    data: dict[str, Any], draw: st.DataObject, value: Any
) -> None:
    document = json.loads(json.dumps(data))
    path = draw.draw(st.sampled_from(keys_below(document)))
    place: Any = document
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    places = [problem.where for problem in mistakes(document) or ()]
    assert sorted(set(places)) == sorted(places)
