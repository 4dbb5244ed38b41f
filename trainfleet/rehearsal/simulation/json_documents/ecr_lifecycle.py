"""Checks the lifecycle policies of ECR repositories.

Source: the Amazon ECR user guide, "Lifecycle policy properties".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trainfleet.rehearsal.simulation.json_documents.findings import Finding, missing_keys, unknown_keys
from trainfleet.rehearsal.simulation.pulumi_values import UNKNOWN
from trainfleet.suggestions import did_you_mean

_SELECTION = (
    "tagStatus",
    "tagPrefixList",
    "tagPatternList",
    "countType",
    "countUnit",
    "countNumber",
    "storageClass",
)
_COUNTS = ("imageCountMoreThan", "sinceImagePushed", "sinceImagePulled", "sinceImageTransitioned")


def ecr_lifecycle(value: Any) -> Iterator[Finding]:
    """Check a lifecycle policy."""
    rules = value.get("rules") if isinstance(value, dict) else None
    if not isinstance(rules, list) or not rules:
        yield "rules", "missing", "a lifecycle policy is {'rules': [...]}"
        return
    yield from unknown_keys("", value, ("rules",))
    priorities: set[Any] = set()
    for index, rule in enumerate(rules):
        where = f"rules[{index}]"
        if not isinstance(rule, dict):
            yield where, f"must be an object, not {rule!r}", ""
            continue
        yield from unknown_keys(where, rule, ("rulePriority", "description", "selection", "action"))
        yield from missing_keys(where, rule, ("rulePriority", "selection", "action"))
        priority = rule.get("rulePriority")
        if priority in priorities:
            yield f"{where}.rulePriority", f"{priority} is given twice", "each rule needs its own priority"
        priorities.add(priority)
        action = rule.get("action")
        if isinstance(action, dict) and action.get("type") not in ("expire", "transition", UNKNOWN):
            yield (
                f"{where}.action.type",
                f"{action.get('type')!r} is not one of the values",
                "it must be 'expire'",
            )
        if isinstance(rule.get("selection"), dict):
            yield from _selection(f"{where}.selection", rule["selection"])


def _selection(where: str, selection: dict[str, Any]) -> Iterator[Finding]:
    yield from unknown_keys(where, selection, _SELECTION)
    yield from missing_keys(where, selection, ("tagStatus", "countType", "countNumber"))
    status, count = selection.get("tagStatus"), selection.get("countType")
    if status not in ("tagged", "untagged", "any", None):
        yield (
            f"{where}.tagStatus",
            f"{status!r} is not one of the values",
            did_you_mean(str(status), ("tagged", "untagged", "any")),
        )
    if count not in (*_COUNTS, None):
        yield f"{where}.countType", f"{count!r} is not one of the values", did_you_mean(str(count), _COUNTS)
    if status == "tagged" and not (selection.get("tagPrefixList") or selection.get("tagPatternList")):
        yield (
            f"{where}.tagPrefixList",
            "missing, because tagStatus is 'tagged'",
            "give tagPrefixList or tagPatternList",
        )
    if count is not None and count != "imageCountMoreThan" and selection.get("countUnit") != "days":
        yield (
            f"{where}.countUnit",
            f"must be 'days', not {selection.get('countUnit')!r}, because countType is {count!r}",
            "",
        )
    number = selection.get("countNumber")
    if number is not None and (isinstance(number, (str, bool)) or number < 1):
        yield f"{where}.countNumber", f"{number!r} is not a number above 0", ""
