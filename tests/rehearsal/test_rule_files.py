"""The rule files can be read, every row says something, names properties that exist, and has a source."""

from __future__ import annotations

from decimal import Decimal
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from rehearsal.clouds.documents import document_mistakes
from rehearsal.clouds.quantities import amount, cron_fault
from rehearsal.clouds.rules import broken, rules
from rehearsal.clouds.rules.words import WORDS
from rehearsal.clouds.schema import packages
from rehearsal.clouds.wire import UNKNOWN
from trainfleet.errors import InputError

FILES = ("aws", "gcp", "azure-native", "kubernetes")


@pytest.mark.parametrize("package", FILES)
def test_every_rule_has_a_source_and_a_type_that_exists(package: str) -> None:
    tokens = [token.split(":", 1)[1] for token in packages()[package].classes]
    for rule in rules(package):
        assert len(rule.source) > 10, rule.types
        for pattern in rule.types:
            installed = any(fnmatchcase(token, pattern) for token in tokens)
            custom = package == "kubernetes" and not any(token.startswith(pattern.split("/")[0]) for token in tokens)  # a kind of somebody's own
            assert installed or custom, pattern


@pytest.mark.parametrize("package", FILES)
def test_a_rule_of_one_type_names_a_property_of_it(package: str) -> None:
    installed = packages()[package]
    for rule in rules(package):
        if len(rule.types) != 1 or "*" in rule.types[0]:
            continue
        resource = installed.resource(f"{package}:{rule.types[0]}")
        if resource is None:  # said above
            continue
        for row in rule.rows:
            first = str(row.get("at") or row.get("path") or "**").split(".")[0]
            assert "*" in first or first in resource.inputs, (rule.types, row)


def test_a_row_that_nothing_reads_is_refused(tmp_path: Path) -> None:
    (tmp_path / "aws.toml").write_text('[[rule]]\ntypes = ["a"]\nsource = "s"\nrows = [{ path = "x", onof = [1] }, { say = "y" }]\n')
    with pytest.raises(InputError) as error:
        rules("aws", tmp_path)
    assert ["onof" in problem.what or "asks nothing" in problem.what for problem in error.value.problems] == [True, True]


def test_a_rule_without_source_is_refused(tmp_path: Path) -> None:
    (tmp_path / "aws.toml").write_text('[[rule]]\ntypes = ["a"]\nrows = []\n')
    with pytest.raises(InputError, match="cannot be read"):
        rules("aws", tmp_path)


def test_a_value_that_is_not_known_yet_breaks_no_rule() -> None:
    unknown = {"name": UNKNOWN, "assumeRolePolicy": UNKNOWN, "maxSessionDuration": UNKNOWN, "description": UNKNOWN}
    assert broken("aws", "aws:iam/role:Role", unknown) == []


WORD_CASES = [
    ("cidr", "10.0.0.0/16", [16, 28], True),
    ("cidr", "10.0.0.1/16", [16, 28], False),
    ("cidr_of_host", "10.0.0.1/16", [16, 28], True),
    ("cidr", "10.0.0.0/8", [16, 28], False),
    ("port", "8000-8080", True, True),
    ("port", "8080-8000", True, False),
    ("port", 65536, True, False),
    ("within", "5", [1, 10], True),
    ("within", 11, [1, 10], False),
    ("step", 7, 5, False),
    ("length", "abc", [1, 2], False),
    ("count", [1], [2, 3], False),
    ("keys", {"A": 1}, "[a-z]", False),
    ("characters", "a b", 2, True),
    ("address", "10.0.0.300", True, False),
    ("address_or_range", "10.0.0.0/8", True, True),
    ("tag_or_range", "VirtualNetwork", True, True),
    ("cron", "*/5 * * * mon-fri", True, True),
    ("cron", "* * * *", True, False),
    ("not_matches", "sg-1", "^sg-", False),
]


@pytest.mark.parametrize(("word", "value", "argument", "good"), WORD_CASES, ids=[f"{case[0]}-{case[1]}" for case in WORD_CASES])
def test_a_word_judges_one_value(word: str, value: object, argument: object, good: bool) -> None:
    assert (WORDS[word](value, argument) == []) is good


@pytest.mark.parametrize(
    ("text", "number"),
    [("500m", "0.5"), ("1Ki", "1024"), ("2", "2"), ("1e3", "1000"), ("1.5Gi", "1610612736"), ("8Gb", None), ("1 G", None), ("", None)],
)
def test_quantities(text: str, number: str | None) -> None:
    assert amount(text) == (None if number is None else Decimal(number))


@pytest.mark.parametrize(
    ("text", "good"), [("@hourly", True), ("@sometimes", False), ("0 0 31 12 sun", True), ("0 0 32 1 *", False), ("TZ=UTC * * * * *", False)]
)
def test_schedules(text: str, good: bool) -> None:
    assert (cron_fault(text) == "") is good


def test_a_document_with_unknown_parts_is_judged_by_what_is_known() -> None:
    assert document_mistakes(f'{{"Statement": "{UNKNOWN}"}}', "trust-policy") == []
    typed = {
        "Version": "2012-10-17",
        "Statement": [{"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"AWS": UNKNOWN}, "Condition": UNKNOWN}],
    }
    assert document_mistakes(typed, "trust-policy") == []
