"""The rule files can be read, every row says something, names properties that exist, and has a source."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from fnmatch import fnmatchcase
from pathlib import Path
from typing import cast

import pytest

from trainfleet.errors import InputError
from trainfleet.rehearsal.simulation.json_documents.documents import document_mistakes
from trainfleet.rehearsal.simulation.json_schema import fault
from trainfleet.rehearsal.simulation.kubernetes_types import amount
from trainfleet.rehearsal.simulation.pulumi_values import UNKNOWN
from trainfleet.rehearsal.simulation.rules import broken, rules
from trainfleet.rehearsal.simulation.rules.conventions import Convention, conventions
from trainfleet.rehearsal.simulation.rules.predicates import WORDS
from trainfleet.rehearsal.simulation.schedules import amazon_fault, cron_fault, google_fault, zone_fault
from trainfleet.rehearsal.simulation.schema import Kind, inputs_of, packages

FILES = ("aws", "gcp", "azure-native", "kubernetes")
DEEP = 12


@pytest.mark.parametrize("package", FILES)
def test_every_rule_has_a_source_and_a_type_that_exists(package: str) -> None:
    tokens = [token.split(":", 1)[1] for token in packages()[package].classes]
    for rule in rules(package):
        assert len(rule.source) > 10, rule.types
        for pattern in rule.types:
            installed = any(fnmatchcase(token, pattern) for token in tokens)
            custom = package == "kubernetes" and not any(
                token.startswith(pattern.split("/")[0]) for token in tokens
            )  # a kind of somebody's own
            assert installed or custom, pattern


@pytest.mark.deep
@pytest.mark.parametrize("package", FILES)
def test_a_rule_of_one_type_names_a_property_of_it(package: str) -> None:
    installed = packages()[package]
    for rule in rules(package):
        if len(rule.types) != 1 or "*" in rule.types[0]:
            continue
        resource = installed.resource(f"{package}:{rule.types[0]}")
        if resource is None:  # reported above
            continue
        for row in rule.rows:
            first = str(row.get("at") or row.get("path") or "**").split(".")[0]
            assert "*" in first or first in resource.inputs, (rule.types, row)


def test_a_row_that_nothing_reads_is_refused(tmp_path: Path) -> None:
    (tmp_path / "aws.toml").write_text(
        '[[rule]]\ntypes = ["a"]\nsource = "s"\nrows = [{ path = "x", onof = [1] }, { say = "y" }, '
        '{ path = "x", limit = "aws.nothing" }, { path = "x", maxLength = "3" }, { path = "x", pattern = "(" }]\n'
    )
    with pytest.raises(InputError) as error:
        rules("aws", tmp_path)
    expected = ("onof", "asks nothing", "aws.nothing", "maxLength", "pattern")
    assert [word in problem.what for word, problem in zip(expected, error.value.problems, strict=True)] == (
        [True] * len(expected)
    )


def test_a_rule_without_source_is_refused(tmp_path: Path) -> None:
    (tmp_path / "aws.toml").write_text('[[rule]]\ntypes = ["a"]\nrows = []\n')
    with pytest.raises(InputError, match="cannot be read"):
        rules("aws", tmp_path)


def test_a_value_that_is_not_known_yet_breaks_no_rule() -> None:
    unknown = {
        "name": UNKNOWN,
        "assumeRolePolicy": UNKNOWN,
        "maxSessionDuration": UNKNOWN,
        "description": UNKNOWN,
    }
    assert broken("aws", "aws:iam/role:Role", unknown) == []


WORD_CASES = [
    ("cidr", "10.0.0.0/16", [16, 28], True),
    ("cidr", "10.0.0.1/16", [16, 28], False),
    ("cidr_of_host", "10.0.0.1/16", [16, 28], True),
    ("cidr", "10.0.0.0/8", [16, 28], False),
    ("port", "8000-8080", True, True),
    ("port", "8080-8000", True, False),
    ("port", 65536, True, False),
    ("characters", "a b", 2, True),
    ("address", "10.0.0.300", True, False),
    ("address_or_range", "10.0.0.0/8", True, True),
    ("tag_or_range", "VirtualNetwork", True, True),
    ("schedule", "*/5 * * * mon-fri", "kubernetes", True),
    ("schedule", "* * * *", "kubernetes", False),
]


@pytest.mark.parametrize(
    ("word", "value", "argument", "good"), WORD_CASES, ids=[f"{case[0]}-{case[1]}" for case in WORD_CASES]
)
def test_a_word_checks_one_value(word: str, value: object, argument: object, good: bool) -> None:
    assert (WORDS[word](value, argument) == []) is good


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("500m", "0.5"),
        ("1Ki", "1024"),
        ("2", "2"),
        ("1e3", "1000"),
        ("1.5Gi", "1610612736"),
        ("8Gb", None),
        ("1 G", None),
        ("", None),
    ],
)
def test_quantities(text: str, number: str | None) -> None:
    assert amount(text) == (None if number is None else Decimal(number))


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("@hourly", True),
        ("@sometimes", False),
        ("0 0 31 12 sun", True),
        ("0 0 32 1 *", False),
        ("TZ=UTC * * * * *", False),
    ],
)
def test_schedules(text: str, good: bool) -> None:
    assert (cron_fault(text) == "") is good


def test_a_document_with_unknown_parts_is_checked_by_what_is_known() -> None:
    assert document_mistakes(f'{{"Statement": "{UNKNOWN}"}}', "trust-policy") == []
    typed = {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Action": "sts:AssumeRole",
                "Principal": {"AWS": UNKNOWN},
                "Condition": UNKNOWN,
            }
        ],
    }
    assert document_mistakes(typed, "trust-policy") == []


def _children(kind: Kind) -> list[tuple[str, Kind | None]]:
    """Return the properties inside a type; an empty name represents any."""
    if kind.name == "union":
        return [child for choice in kind.choices for child in _children(choice)]
    if kind.name == "list":
        return _children(kind.item) if kind.item else [("", None)]
    if kind.name == "map":
        return [("", kind.item)]
    if kind.cls is not None:
        return [(name, declared.kind) for name, declared in inputs_of(kind.cls).items()]
    return [("", None)] if kind.name == "any" else []


def _leads(children: list[tuple[str, Kind | None]], parts: list[str], depth: int = 0) -> bool:
    """Return whether a rule's path leads to a property."""
    if not parts or parts == ["[]"]:
        return True
    head, *rest = parts
    if head == "**" and _leads(children, rest, depth):
        return True
    for name, kind in children:
        if head == "**":
            if kind is None or (depth < DEEP and _leads(_children(kind), parts, depth + 1)):
                return True
        elif (not name or name == head or ("*" in head and fnmatchcase(name, head))) and (
            kind is None or _leads(_children(kind), rest, depth)
        ):
            return True
    return False


def _paths(row: dict[str, object]) -> Iterator[str]:
    """Yield every path that a row names."""
    at = f"{row['at']}." if "at" in row else ""
    relations = (
        "exactly_one",
        "at_most_one",
        "at_least_one",
        "together",
        "ordered",
        "inside",
        "needs",
        "forbids",
    )
    named = [name for relation in relations for name in cast("list[str]", row.get(relation, []))]
    conditions = cast(
        "list[dict[str, str]]",
        row.get("when") if isinstance(row.get("when"), list) else [row["when"]] if "when" in row else [],
    )
    for name in (
        *named,
        *(str(row[key]) for key in ("path", "unique") if key in row),
        *(condition["path"] for condition in conditions),
    ):
        yield at + name


@pytest.mark.deep
@pytest.mark.parametrize("package", FILES)
def test_every_path_of_a_rule_leads_to_a_property_of_one_of_its_types(package: str) -> None:
    installed = packages()[package]
    dead = []
    for rule in rules(package):
        if len(rule.types) == 1 and rule.types[0] == "*":  # conventions of names: see the test of those
            continue
        tokens = [
            token
            for token in installed.classes
            if not re.search(r"/v\d{8}", token) and rule.holds_for(token.split(":", 1)[1])
        ]
        for path in {path for row in rule.rows for path in _paths(row)}:
            resources = (installed.resource(token) for token in tokens)
            if tokens and not any(
                r and _leads([(name, p.kind) for name, p in r.inputs.items()], path.split("."))
                for r in resources
            ):
                dead.append((rule.types, path))
    assert dead == []


@pytest.mark.parametrize(
    "convention",
    conventions(),
    ids=lambda convention: f"{convention.packages[0]}-{convention.names.pattern[:40]}",
)
def test_a_convention_has_a_source_and_a_known_kind(convention: Convention) -> None:
    assert len(convention.source) > 10
    assert convention.kind in ("number", "text")
    assert convention.limits
    assert not fault(convention.limits)
    assert set(convention.packages) <= set(FILES)


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("cron(0 12 * * ? *)", True),
        ("cron(0 18 ? * MON-FRI *)", True),
        ("cron(0 9 ? * 6#3 *)", True),
        ("cron(15 10 L * ? 2026-2027)", True),
        ("rate(5 minutes)", True),
        ("rate(1 hours)", True),
        ("at(2027-01-31T09:00:00)", True),
        ("cron(0 12 * * * *)", False),
        ("cron(0 12 * * *)", False),
        ("cron(0 25 * * ? *)", False),
        ("cron(0 12 ? * 0 *)", False),
        ("rate(5 minute)", False),
        ("rate(0 minutes)", False),
        ("every 5 minutes", False),
        ("at(tomorrow)", False),
    ],
)
def test_a_schedule_of_amazon_is_read(text: str, *, good: bool) -> None:
    assert (amazon_fault(text) == "") is good


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("*/8 * * * *", True),
        ("0 9 1 jan mon", True),
        ("every 5 minutes", True),
        ("every monday 09:00", True),
        ("1st,third monday of month 04:00", True),
        ("60 * * * *", False),
        ("0 0 * *", False),
        ("every 8 minutes please", False),
        ("rate(5 minutes)", False),
    ],
)
def test_a_schedule_of_google_is_read(text: str, *, good: bool) -> None:
    assert (google_fault(text) == "") is good


def test_a_time_zone_is_one_of_the_database() -> None:
    assert not zone_fault("Europe/Berlin")
    assert not zone_fault("etc/UTC", any_case=True)
    assert zone_fault("Local")
    assert zone_fault("Europe/Berlinn")
