"""A real deployment in the simulated cloud: what is not readable is not compared, what is deployed stays."""

from __future__ import annotations

import base64

import pytest

from trainfleet.rehearsal.simulation.deployed import HIDDEN, Deployed, deployed

STAND_IN = "rehearsal-extra-word"
KNOWN = deployed([], [STAND_IN])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (HIDDEN, "anything"),
        (HIDDEN, {"a": "whole object"}),
        ("real value", STAND_IN),
        ("real value", f"postgres://user:{STAND_IN}@db"),
        ("cmVhbA==", base64.b64encode(STAND_IN.encode()).decode()),
        ({"a": HIDDEN, "b": 1}, {"a": "x", "b": 1}),
        ([HIDDEN, "same"], ["x", "same"]),
    ],
)
def test_a_value_that_is_not_readable_is_equal(old: object, new: object) -> None:
    assert KNOWN.readable(old, new) == new


def test_readable_values_are_compared() -> None:
    assert KNOWN.readable({"a": 1, "gone": 2}, {"a": 3}) == {"a": 1, "gone": 2}
    assert KNOWN.readable(["a", "b"], ["a"]) == ["a", "b"]


def test_defaults_names_and_undeclared_inputs_stay() -> None:
    old = {
        "__defaults": ["acl"],
        "acl": "private",
        "name": "x-1a2b3c4",
        "tagsAll": {"a": "b"},
        "policy": "dropped",
    }
    given = {"tags": {"a": "b"}}
    declared = {"acl", "name", "tags", "policy"}
    found = KNOWN.with_defaults(given, {**given, "name": "x-9f8e7d6"}, old, declared, "name")
    assert found == {
        "tags": {"a": "b"},
        "acl": "private",
        "name": "x-1a2b3c4",
        "tagsAll": {"a": "b"},
        "__defaults": ["acl"],
    }


def test_a_default_that_the_program_now_sets_is_the_programs() -> None:
    old = {"__defaults": ["acl"], "acl": "private"}
    assert KNOWN.with_defaults({"acl": "public"}, {"acl": "public"}, old, {"acl"}, "name")["acl"] == "public"


def test_defaults_inside_objects_and_lists_stay() -> None:
    old = {"rules": [{"__defaults": ["self"], "self": False, "port": 1}]}
    given = {"rules": [{"port": 2}]}
    found = KNOWN.with_defaults(given, given, old, {"rules"}, "name")
    assert found["rules"] == [{"port": 2, "self": False}]


def test_outputs_that_the_program_does_not_set_stay_as_deployed() -> None:
    old = {"arn": "arn:real", "tags": {"a": "1"}}
    assert Deployed().outputs(old, {"arn": "arn:simulated", "tags": {"a": "2"}}, {"tags": {"a": "2"}}) == {
        "arn": "arn:real",
        "tags": {"a": "2"},
    }


def test_functions_are_answered_with_the_account_of_the_state() -> None:
    resources = [
        {"outputs": {"arn": "arn:aws:iam::482910573614:role/a", "other": "arn:aws:iam::482910573614:role/b"}},
        {"outputs": {"shared": "arn:aws:iam::999999999999:role/c"}},
        {"outputs": {"id": "/subscriptions/0a1b2c3d-0000-1111-2222-333344445555/resourceGroups/x"}},
    ]
    known = deployed(resources, [])
    assert known.answer({"accountId": "111122223333"}) == {"accountId": "482910573614"}
    assert len(known.accounts) == 2
