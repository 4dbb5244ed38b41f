"""Policy findings of diffs as SARIF 2.1.0 for code scanning, and as JUnit XML for CI systems."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree as ET

from trainfleet import __version__
from trainfleet.rehearsal.diff.model import Diff, Failing

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS = {"mandatory": "error", "advisory": "warning", "remediate": "warning", "disabled": "none"}


def sarif_of(diffs: Sequence[Diff]) -> dict[str, Any]:
    """Return the newly failing policies as a SARIF log with one run.

    A violation has no line: its location is the settings file of the stack, and its logical location the
    resource.
    """
    findings = [(diff, each) for diff in diffs for each in diff.newly_failing]
    names = sorted({each.policy for _, each in findings})
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "trainfleet diff",
                        "version": __version__,
                        "rules": [{"id": name, "shortDescription": {"text": name}} for name in names],
                    }
                },
                "results": [_result(diff, each, names.index(each.policy)) for diff, each in findings],
            }
        ],
    }


def _result(diff: Diff, failing: Failing, index: int) -> dict[str, Any]:
    return {
        "ruleId": failing.policy,
        "ruleIndex": index,
        "level": _LEVELS.get(failing.level, "warning"),
        "message": {"text": failing.message or failing.policy},
        "locations": [
            {
                "physicalLocation": {"artifactLocation": {"uri": diff.settings_file or "Pulumi.yaml"}},
                "logicalLocations": [{"name": failing.resource, "kind": "resource"}],
            }
        ],
        "partialFingerprints": {"policyAndResource": f"{diff.stack}/{failing.policy}/{failing.resource}"},
    }


def junit_of(diffs: Sequence[Diff]) -> str:
    """Return a JUnit report: a suite per stack, and a failed test case per violation.

    A stack without violations has one passed case, so that a CI system shows that it was checked. Advisory
    violations are cases that passed, with their message as output.
    """
    root = ET.Element("testsuites", name="trainfleet diff")
    for diff in diffs:
        cases = [_case(diff, each) for each in diff.newly_failing]
        if not cases:
            passed = ET.Element("testcase", classname=diff.stack, name="no policy newly fails")
            if not diff.policies_ran:
                ET.SubElement(passed, "skipped", message="no policies were checked")
            cases = [passed]
        failures = sum(case.find("failure") is not None for case in cases)
        suite = ET.SubElement(
            root,
            "testsuite",
            name=diff.stack,
            tests=str(len(cases)),
            failures=str(failures),
            errors="0",
            skipped=str(sum(case.find("skipped") is not None for case in cases)),
            time=f"{diff.seconds:.2f}",
        )
        suite.extend(cases)
    ET.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n'


def _case(diff: Diff, failing: Failing) -> ET.Element:
    case = ET.Element("testcase", classname=f"{diff.stack}.{failing.policy}", name=failing.resource)
    if failing.level == "mandatory":
        ET.SubElement(case, "failure", message=failing.message, type=failing.level).text = failing.message
    else:
        ET.SubElement(case, "system-out").text = f"{failing.level}: {failing.message}"
    return case
