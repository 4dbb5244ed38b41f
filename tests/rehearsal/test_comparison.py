"""What is the same to a provider although it is written differently: sets, JSON, ranges of addresses, ids."""

from __future__ import annotations

from typing import Any

import pytest

from trainfleet.rehearsal.simulation.changes import changes
from trainfleet.rehearsal.simulation.comparison import Sameness, comparable
from trainfleet.rehearsal.simulation.property_paths import join_path
from trainfleet.rehearsal.simulation.pulumi_values import UNKNOWN, secret
from trainfleet.rehearsal.simulation.replacement import Effect, effects, in_terms_of_new, worst

SETS = Sameness(frozenset({("rules",), ("ids",), ("rules", "[*]", "ports")}), frozenset({("mode",)}), True)
HUB = "/subscriptions/A/resourceGroups/Hub/providers/Microsoft.Network/virtualNetworks/Net"


def rule(name: str, *ports: int) -> dict[str, Any]:
    return {"name": name, "ports": list(ports)}


@pytest.mark.parametrize(
    ("old", "new", "left"),
    [
        ({"ids": ["a", "b", "c"]}, {"ids": ["c", "a", "b"]}, []),
        ({"ids": ["a", "a", "b"]}, {"ids": ["a", "b", "b"]}, ["ids[1] UPDATE"]),
        ({"steps": ["a", "b"]}, {"steps": ["b", "a"]}, ["steps[0] UPDATE", "steps[1] UPDATE"]),
        ({"ids": ["a"]}, {"ids": ["a", UNKNOWN]}, ["ids[1] ADD"]),
        ({"rules": [rule("x", 1, 2), rule("y", 3)]}, {"rules": [rule("y", 3), rule("x", 2, 1)]}, []),
        (
            {"rules": [rule("x", 1), rule("y", 2)]},
            {"rules": [rule("new", 9), rule("x", 1), rule("y", 2)]},
            ["rules[0].name ADD", "rules[0].ports[0] ADD"],
        ),
        (
            {"rules": [rule("x", 1), rule("y", 2)]},
            {"rules": [rule("y", 2)]},
            ["rules[1].name DELETE", "rules[1].ports[0] DELETE"],
        ),
        ({"policy": '{"a": 1, "b": [1, 2]}'}, {"policy": '{"b":[1,2],"a":1}'}, []),
        ({"policy": '{"b": [1, 2]}'}, {"policy": '{"b": [2, 1]}'}, ["policy UPDATE"]),
        ({"range": "::/0"}, {"range": "0:0::/0"}, []),
        ({"range": "10.0.0.0/8"}, {"range": "10.0.0.0/9"}, ["range UPDATE"]),
        ({"range": "10.0.0.1/8"}, {"range": "10.0.0.0/8"}, ["range UPDATE"]),
        ({"id": HUB}, {"id": HUB.lower()}, []),
        ({"mode": "On"}, {"mode": "on"}, []),
        ({"name": "On"}, {"name": "on"}, ["name UPDATE"]),
    ],
)
def test_only_real_differences_are_left(old: dict[str, Any], new: dict[str, Any], left: list[str]) -> None:
    found = changes(comparable(old, new, SETS), new)
    assert [f"{join_path(each.path)} {each.kind}" for each in found] == left


def test_a_secret_is_left_as_it_is() -> None:
    one, two = {"policy": secret('{"a": 1}')}, {"policy": secret('{"a":1}')}
    assert comparable(one, two, SETS) == one


@pytest.mark.parametrize(
    ("token", "path", "effect"),
    [
        ("aws:eks/nodeGroup:NodeGroup", "subnetIds", Effect.REPLACE),
        ("aws:fsx/lustreFileSystem:LustreFileSystem", "securityGroupIds", Effect.REPLACE),
        ("aws:ec2/securityGroup:SecurityGroup", "ingress", Effect.UPDATE),
    ],
)
def test_another_order_of_a_set_changes_nothing_and_another_item_does(
    token: str, path: str, effect: Effect
) -> None:
    before, after, other = {path: ["a", "b", "c"]}, {path: ["c", "a", "b"]}, {path: ["c", "a", "d"]}
    assert effects(token, in_terms_of_new(token, before, after), after) == {}
    assert worst(effects(token, in_terms_of_new(token, before, other), other).values()) is effect


def test_the_order_of_a_list_is_a_change_where_it_means_something() -> None:
    """EKS tries the machines of a node group in their order, and the provider has a list."""
    token = "aws:eks/nodeGroup:NodeGroup"
    before, after = (
        {"instanceTypes": ["p5.48xlarge", "p5e.48xlarge"]},
        {"instanceTypes": ["p5e.48xlarge", "p5.48xlarge"]},
    )
    assert worst(effects(token, in_terms_of_new(token, before, after), after).values()) is Effect.REPLACE
