"""What a condition of an AWS policy statement restricts: who calls, or which resources are reached.

A condition that every caller satisfies restricts nothing. As in IAM Access Analyzer and S3's meaning of
"public", a key counts only with a positive operator and with fixed values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from trainfleet.policies.engine.accessors import listed
from trainfleet.policies.engine.address_ranges import open_ranges
from trainfleet.policies.engine.rule import UNKNOWN, Json

Statement = Mapping[str, Json]

POSITIVE = {
    "stringequals",
    "stringequalsignorecase",
    "stringlike",
    "arnequals",
    "arnlike",
    "ipaddress",
}
"""Operators that a request must match. An `...IfExists` form also matches a request without the key, and a
`...Not...` form matches everybody else (IAM user guide, condition operators).
"""
CALLER_KEYS = {
    "aws:principalaccount",
    "aws:principalarn",
    "aws:principalorgid",
    "aws:principalorgpaths",
    "aws:sourceaccount",
    "aws:sourcearn",
    "aws:sourceip",
    "aws:sourceorgid",
    "aws:sourceorgpaths",
    "aws:sourceowner",
    "aws:sourcevpc",
    "aws:sourcevpce",
    "aws:userid",
    "aws:vpceaccount",
    "aws:vpceorgid",
    "kms:calleraccount",
    "s3:dataaccesspointaccount",
    "s3:dataaccesspointarn",
}
"""Keys that say who calls or from where (S3 user guide, "The meaning of public"; KMS: kms:CallerAccount).
`aws:SecureTransport`, `kms:ViaService` and tags that a caller sets itself are not among them.
"""
ACTS_FOR_KEYS = {
    "aws:sourceaccount",
    "aws:sourcearn",
    "aws:sourceorgid",
    "aws:sourceorgpaths",
    "aws:sourceowner",
}
"""Keys that say for whom a service calls (IAM user guide, the confused deputy problem)."""
ENCRYPTION_CONTEXT = "kms:encryptioncontext:"
"""KMS keys that name the resource whose data is encrypted, for example a log group's ARN."""
RESOURCE_KEYS = ("aws:resourcetag/", "iam:resourcetag/", "iam:permissionsboundary", "iam:policyarn")
"""Keys that limit the resources of an action that names none."""
ASSUMES_FOR_KEYS = {"sts:externalid", "aws:principalorgid", "aws:principalorgpaths", "aws:principalarn"}
"""Keys that name who of an account may assume a role."""


def required_values(statement: Statement) -> Iterator[tuple[str, list[Json]]]:
    """Yield each key in lower case with the values that a request must match, one of them."""
    for operator, block in (statement.get("Condition") or {}).items():
        quantifier, _, plain = str(operator).lower().rpartition(":")
        if plain not in POSITIVE or quantifier == "forallvalues" or not isinstance(block, Mapping):
            continue
        for key, values in block.items():
            yield str(key).lower(), listed(values)


def fixed(value: Json) -> bool:
    """Whether a value names something: no wildcard alone, no variable of the request."""
    if value is UNKNOWN:
        return True
    text = str(value)
    return "${" not in text and bool(text.strip("*?")) and not text.startswith("*")


def restricts_callers(statement: Statement) -> bool:
    """Whether the statement's condition leaves only named callers."""
    return any(_names(key, values) for key, values in required_values(statement) if key in CALLER_KEYS)


def names_the_owner(statement: Statement) -> bool:
    """Whether the condition says for which account or resource a service may call."""
    return any(
        _names(key, values)
        for key, values in required_values(statement)
        if key in ACTS_FOR_KEYS or key.startswith(ENCRYPTION_CONTEXT)
    )


def names_the_assumer(statement: Statement) -> bool:
    """Whether the condition says who of an account may assume a role."""
    return any(_names(key, values) for key, values in required_values(statement) if key in ASSUMES_FOR_KEYS)


def limits_resources(statement: Statement) -> bool:
    """Whether the condition limits the resources of a statement on every resource."""
    return any(
        _names(key, values) for key, values in required_values(statement) if key.startswith(RESOURCE_KEYS)
    )


def _names(key: str, values: list[Json]) -> bool:
    if key == "aws:sourceip":
        return bool(values) and not open_ranges(values)
    return bool(values) and all(fixed(value) for value in values)
