"""The validator of limits means what JSON Schema means, and says what would be right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tools.api_facts.keywords import NUMBERS, joined, limits, pair, split, whole, without
from tools.api_facts.places import OPTIONAL
from trainfleet.rehearsal.simulation.check import check_inputs
from trainfleet.rehearsal.simulation.custom_resources import value_mistakes
from trainfleet.rehearsal.simulation.facts import FACTS, faults
from trainfleet.rehearsal.simulation.json_schema import KEYWORDS, compiled, fault, violations
from trainfleet.rehearsal.simulation.schema import packages

SCHEMAS: list[dict[str, Any]] = [
    {"enum": ["a", "b"]},
    {"minimum": 1, "maximum": 10},
    {"minimum": 3},
    {"maximum": 3},
    {"multipleOf": 5},
    {"multipleOf": 0.25},
    {"minLength": 2, "maxLength": 3},
    {"maxLength": 1},
    {"pattern": "^[a-z]+$"},
    {"pattern": "b"},
    {"minItems": 1, "maxItems": 2},
    {"maxItems": 1},
    {"minProperties": 1},
    {"minProperties": 1, "maxProperties": 1},
    {"propertyNames": {"pattern": "^[a-z]$"}},
    {"propertyNames": {"maxLength": 0}},
    {"not": {"pattern": "^a"}},
    {"not": {"enum": ["a"]}},
    {"not": {"type": "object"}},
    {"anyOf": [{"enum": [1]}, {"minimum": 5, "maximum": 9}]},
]
VALUES: list[Any] = [
    *("a", "b", "c", "ab", "abcd", "A", "", "a\n"),
    *(0, 1, 3, 4, 5, 9, 10, 11, 2.5),
    *([], ["a"], ["a", "b", "c"], {}, {"a": 1}, {"A": 1, "b": 2}),
]


def same_kind(value: Any, schema: dict[str, Any]) -> bool:
    """Whether no conversion of a bridged provider is involved: a number is not text here."""
    numeric = isinstance(value, (int, float))
    text = bool(schema.keys() & {"pattern", "minLength", "maxLength", "not"})
    return not (numeric and text) and not (
        isinstance(value, (list, dict)) and schema.keys() & {"enum", "not"}
    )


@pytest.mark.parametrize("schema", SCHEMAS, ids=json.dumps)
def test_a_keyword_means_what_json_schema_means(schema: dict[str, Any]) -> None:
    validator = jsonschema.Draft202012Validator(schema)
    for value in VALUES:
        if same_kind(value, schema) and not (value == "a\n" and "pattern" in str(schema)):
            assert (violations(value, schema) == []) is validator.is_valid(value), value


def test_every_keyword_is_compared() -> None:
    assert {key for schema in SCHEMAS for key in schema} == set(KEYWORDS)


@pytest.mark.parametrize(
    ("value", "schema", "message"),
    [
        (
            {"ab": 1},
            {"propertyNames": {"maxLength": 1}},
            ("'ab' is not a valid key", "a key must have at most 1 characters"),
        ),
        ("a", {"not": {"enum": ["a"]}}, ("'a' is not valid here", "it must not match {'enum': ['a']}")),
        ("0", {"minimum": 1, "maximum": 10}, ("'0' is out of range", "it must be from 1 to 10")),
        (0, {"minimum": 1}, ("0 is out of range", "it must be at least 1")),
        ("12", {"multipleOf": 5}, ("'12' is not a multiple of 5", "it must be a multiple of 5")),
        ("abc", {"maxLength": 2}, ("'abc' has 3 characters", "it must have at most 2 characters")),
        (
            "a",
            {"minLength": 2, "maxLength": 4},
            ("'a' has 1 characters", "it must have from 2 to 4 characters"),
        ),
        (["a"], {"minItems": 2, "maxItems": 3}, ("has 1 entries", "it must have from 2 to 3 entries")),
        ("A", {"pattern": "^[a-z]$"}, ("'A' is not valid here", "it must match ^[a-z]$")),
        ("alph", {"enum": ["alpha"]}, ("'alph' is not one of the values", "did you mean `alpha`?")),
        ({"A": 1}, {"propertyNames": {"pattern": "^a$"}}, ("'A' is not a valid key", "a key must match ^a$")),
        (2, {"anyOf": [{"enum": [1]}, {"minimum": 5}]}, ("2 is out of range", "it must be at least 5")),
    ],
)
def test_one_message_says_what_would_be_right(
    value: Any, schema: dict[str, Any], message: tuple[str, str]
) -> None:
    assert violations(value, schema) == [message]


def test_multiples_of_a_fraction_are_not_compared_to_the_last_bit() -> None:
    assert violations(0.3, {"multipleOf": 0.1}) == []
    assert violations(0.35, {"multipleOf": 0.1})


def test_the_end_of_a_pattern_is_the_end_of_the_text() -> None:
    assert compiled("^a$").search("a\n") is None
    assert compiled(r"^a\$").search("a$b")
    assert compiled("^a.b$").search("a\nb")


@pytest.mark.parametrize(
    "schema",
    [
        {"maxLength": "3"},
        {"minimum": True},
        {"pattern": "("},
        {"not": {"patern": "a"}},
        {"anyOf": [{"min": 1}]},
    ],
)
def test_a_schema_that_means_nothing_is_refused(schema: dict[str, Any]) -> None:
    assert fault(schema)


FILES = sorted(
    file
    for folder in (FACTS, OPTIONAL)
    for package in ("aws", "gcp")
    for file in (folder / package).glob("*.json")
)


def test_every_limit_of_an_api_is_json_schema() -> None:
    assert len(FILES) > 300
    for file in FILES:
        assert faults(file) == [], file
        for name, schema in json.loads(file.read_text())["shapes"].items():
            jsonschema.Draft202012Validator.check_schema(schema)
            pattern = schema.get("pattern", "^$")
            assert "^" in pattern, f"{file.name} {name}: {pattern} would match a part of a text"
            assert pattern.endswith("$"), f"{file.name} {name}"


def test_a_limit_of_a_list_holds_for_it_and_for_its_items() -> None:
    resource = packages()["aws"].resource("aws:autoscaling/group:Group")
    assert resource is not None
    excluded = {"mixedInstancesPolicy": {"launchTemplate": {"overrides": [{"instanceRequirements": {}}]}}}
    place = excluded["mixedInstancesPolicy"]["launchTemplate"]["overrides"][0]
    place["instanceRequirements"] = {"excludedInstanceTypes": ["a b", *["m5.large"] * 400]}
    found = [str(mistake) for mistake in check_inputs(resource, excluded) if "excluded" in mistake.path]
    assert any("has 401 entries (it must have at most 400 entries)" in text for text in found), found
    assert any("[0]: 'a b' is not valid here" in text for text in found), found


def test_custom_resources_are_checked_by_the_same_keywords() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "array", "maxItems": 1, "items": {"maxLength": 1}}},
    }
    found = [str(mistake) for mistake in value_mistakes("spec", {"a": ["xx", "y"]}, schema)]
    assert found == [
        "spec.a: has 2 entries (it must have at most 1 entries)",
        "spec.a[0]: 'xx' has 2 characters (it must have at most 1 characters)",
    ]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("a+", "^a+$"),
        ("^a+$", "^a+$"),
        ("a|b", "^(?:a|b)$"),
        ("(a|b)[|]", "^(a|b)[|]$"),
        ("(?i)a", "(?i)^a$"),
        (r"a\$", r"^a\$$"),
    ],
)
def test_a_gathered_pattern_is_for_the_whole_text(pattern: str, expected: str) -> None:
    assert whole(pattern) == expected


def test_values_outside_a_range_stay_with_it() -> None:
    entry = joined({**limits(NUMBERS, 30, 7200), "maxItems": 3}, ["1"])
    assert entry == {"maxItems": 3, "anyOf": [{"enum": ["1"]}, {"minimum": 30, "maximum": 7200}]}
    assert split(entry) == ({"maxItems": 3, "minimum": 30, "maximum": 7200}, ["1"])
    assert pair(entry, NUMBERS) == (30, 7200)
    assert without(entry, *NUMBERS) == {"maxItems": 3}
    assert without(entry, "maxItems") == {"anyOf": entry["anyOf"]}


def test_no_file_speaks_the_earlier_language() -> None:
    earlier = {"values", "open", "range", "length", "count", "also"}
    for file in FILES:
        for shape in json.loads(file.read_text())["shapes"].values():
            assert not earlier & set(shape), file
    rules = Path(FACTS).parent / "rules"
    for file in rules.glob("*.toml"):
        text = file.read_text()
        assert not [word for word in ("matches = ", "one_of = ", "within = ", "count = [") if word in text], (
            file
        )
