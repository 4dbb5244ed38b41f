"""SARIF and JUnit of policy findings, checked against the structure that their schemas require."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import jsonschema
import pytest

from trainfleet.rehearsal.diff.model import Diff, Failing
from trainfleet.rehearsal.diff.policy_formats import junit_of, sarif_of
from trainfleet.rehearsal.diff.worktrees import Revision

SARIF = {
    "type": "object",
    "required": ["version", "runs"],
    "properties": {
        "$schema": {"type": "string", "format": "uri"},
        "version": {"const": "2.1.0"},
        "runs": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["tool"],
                "properties": {
                    "tool": {
                        "type": "object",
                        "required": ["driver"],
                        "properties": {
                            "driver": {
                                "type": "object",
                                "required": ["name"],
                                "properties": {
                                    "name": {"type": "string"},
                                    "version": {"type": "string"},
                                    "rules": {
                                        "type": "array",
                                        "uniqueItems": True,
                                        "items": {
                                            "type": "object",
                                            "required": ["id"],
                                            "properties": {
                                                "shortDescription": {"type": "object", "required": ["text"]}
                                            },
                                        },
                                    },
                                },
                            }
                        },
                    },
                    "results": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "additionalProperties": False,
                            "required": ["message"],
                            "properties": {
                                "ruleId": {"type": "string"},
                                "ruleIndex": {"type": "integer", "minimum": -1},
                                "level": {"enum": ["none", "note", "warning", "error"]},
                                "message": {
                                    "type": "object",
                                    "required": ["text"],
                                    "properties": {"text": {"type": "string", "minLength": 1}},
                                },
                                "locations": {
                                    "type": "array",
                                    "items": {
                                        "type": "object",
                                        "additionalProperties": False,
                                        "properties": {
                                            "physicalLocation": {
                                                "type": "object",
                                                "required": ["artifactLocation"],
                                            },
                                            "logicalLocations": {"type": "array", "minItems": 1},
                                        },
                                    },
                                },
                                "partialFingerprints": {
                                    "type": "object",
                                    "additionalProperties": {"type": "string"},
                                },
                            },
                        },
                    },
                },
            },
        },
    },
}
"""What the schema of SARIF 2.1.0 (docs.oasis-open.org/sarif) requires of the parts that are written here."""


def diff_with(*failing: Failing, ran: bool = True) -> Diff:
    side = Revision("main", "abc", "t")
    return Diff(
        "prod", side, side, "there", (), None, None, failing, ran, settings_file="stacks/Pulumi.prod.yaml"
    )


OPEN = Failing("no-open-ingress", "web", "is open to <the world> & more", "mandatory")
TAG = Failing("tags", "runs", "has no owner", "advisory")


@pytest.mark.parametrize("diffs", [[], [diff_with()], [diff_with(OPEN, TAG), diff_with(TAG)]])
def test_sarif_is_valid(diffs: list[Diff]) -> None:
    jsonschema.validate(sarif_of(diffs), SARIF)


def test_sarif_names_rule_level_file_and_resource() -> None:
    (run,) = sarif_of([diff_with(OPEN, TAG)])["runs"]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["no-open-ingress", "tags"]
    first, second = run["results"]
    assert (first["ruleId"], first["ruleIndex"], first["level"]) == ("no-open-ingress", 0, "error")
    assert (second["ruleIndex"], second["level"]) == (1, "warning")
    (place,) = first["locations"]
    assert place["physicalLocation"]["artifactLocation"]["uri"] == "stacks/Pulumi.prod.yaml"
    assert place["logicalLocations"][0]["name"] == "web"


def test_findings_of_two_stacks_have_fingerprints_of_their_own() -> None:
    other = Diff("dev", Revision("a", "b", "c"), Revision("a", "b", "c"), "there", (), None, None, (TAG,))
    results = sarif_of([diff_with(TAG), other])["runs"][0]["results"]
    assert len({each["partialFingerprints"]["policyAndResource"] for each in results}) == 2


def test_junit_counts_mandatory_violations_as_failures() -> None:
    root = ET.fromstring(junit_of([diff_with(OPEN, TAG)]))
    assert root.tag == "testsuites"
    (suite,) = root
    assert {name: suite.get(name) for name in ("name", "tests", "failures", "errors", "skipped")} == {
        "name": "prod",
        "tests": "2",
        "failures": "1",
        "errors": "0",
        "skipped": "0",
    }
    failed = suite.find("testcase[@name='web']/failure")
    assert failed is not None
    assert failed.text == "is open to <the world> & more"
    assert suite.find("testcase[@name='runs']/failure") is None


def test_a_stack_without_violations_is_a_passed_case() -> None:
    assert len(ET.fromstring(junit_of([diff_with()])).findall("testsuite/testcase")) == 1
    skipped = ET.fromstring(junit_of([diff_with(ran=False)]))
    assert skipped.find("testsuite/testcase/skipped") is not None
