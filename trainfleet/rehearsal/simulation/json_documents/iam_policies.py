"""Checks AWS policies: of identities, of resources, of repositories, and trust policies.

Sources: the IAM user guide, "JSON policy element reference" and "Grammar of the IAM JSON policy language".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from trainfleet.rehearsal.simulation.iam_prefixes import SERVICES
from trainfleet.rehearsal.simulation.json_documents.findings import Finding, shortened, unknown_keys
from trainfleet.rehearsal.simulation.pulumi_values import UNKNOWN
from trainfleet.suggestions import did_you_mean

_KEYS = ("Version", "Id", "Statement")
_STATEMENT = (
    "Sid",
    "Effect",
    "Principal",
    "NotPrincipal",
    "Action",
    "NotAction",
    "Resource",
    "NotResource",
    "Condition",
)
_PRINCIPALS = ("AWS", "Service", "Federated", "CanonicalUser")
_OPERATORS = (
    *(
        "StringEquals",
        "StringNotEquals",
        "StringEqualsIgnoreCase",
        "StringNotEqualsIgnoreCase",
        "StringLike",
        "StringNotLike",
    ),
    *(
        "NumericEquals",
        "NumericNotEquals",
        "NumericLessThan",
        "NumericLessThanEquals",
        "NumericGreaterThan",
        "NumericGreaterThanEquals",
    ),
    *(
        "DateEquals",
        "DateNotEquals",
        "DateLessThan",
        "DateLessThanEquals",
        "DateGreaterThan",
        "DateGreaterThanEquals",
    ),
    *(
        "Bool",
        "BinaryEquals",
        "IpAddress",
        "NotIpAddress",
        "ArnEquals",
        "ArnLike",
        "ArnNotEquals",
        "ArnNotLike",
        "Null",
    ),
)
_TRUST_ACTIONS = (
    "sts:AssumeRole",
    "sts:AssumeRoleWithWebIdentity",
    "sts:AssumeRoleWithSAML",
    "sts:TagSession",
    "sts:SetSourceIdentity",
    "sts:SetContext",
)
_ARN = re.compile(r"arn:[\w*?${}-]+:[\w.*?${}-]*:[\w*?${}-]*:[^:]*:.+", re.S)
_PARTITIONS = re.compile(r"aws(?:-cn|-us-gov|-iso(?:-[a-z])?|-eusc)?|\*|\$\{.*\}")
_SERVICE_HOST = re.compile(
    r"[a-z0-9-]+(?:\.[a-z0-9-]+)*\.(?:amazonaws\.com(?:\.cn)?|aws\.internal)|alexa-[a-z]+\.amazon\.com|\*"
)


def policy(value: Any, kind: str) -> Iterator[Finding]:
    """Check a policy. `kind`: identity, trust, resource, repository, or any."""
    if not isinstance(value, dict):
        yield "", "is not a JSON object", "a policy is an object with Version and Statement"
        return
    yield from unknown_keys("", value, _KEYS)
    version = value.get("Version")
    if version is not None and version not in ("2012-10-17", "2008-10-17", UNKNOWN):
        yield "Version", f"{version!r} is not a version of the policy language", "it must be '2012-10-17'"
    # Small programs and tests use an empty policy as a placeholder.
    statements = value.get("Statement")
    if not value:
        return
    if statements is None:
        yield "Statement", "missing", "a policy needs at least one statement"
        return
    if statements == UNKNOWN:
        return
    if not isinstance(statements, (list, dict)):
        yield "Statement", f"must be a list of statements, not {statements!r}", ""
        return
    many = statements if isinstance(statements, list) else [statements]
    if not many:
        yield "Statement", "is empty", "a policy needs at least one statement"
    sids: set[str] = set()
    for index, statement in enumerate(many):
        where = f"Statement[{index}]" if isinstance(statements, list) else "Statement"
        if isinstance(statement, dict):
            yield from _statement(where, statement, kind)
            sid = statement.get("Sid")
            if isinstance(sid, str) and sid and sid in sids:
                yield f"{where}.Sid", f"{sid!r} is given twice", "each Sid must be different"
            sids.add(str(sid))
        elif statement != UNKNOWN:
            yield where, f"must be an object, not {statement!r}", ""


def _statement(where: str, statement: dict[str, Any], kind: str) -> Iterator[Finding]:
    yield from unknown_keys(where, statement, _STATEMENT)
    effect = statement.get("Effect")
    if effect is None:
        yield f"{where}.Effect", "missing", "it must be 'Allow' or 'Deny'"
    elif effect not in ("Allow", "Deny", UNKNOWN):
        yield f"{where}.Effect", f"{effect!r} is not one of the values", "it must be 'Allow' or 'Deny'"
    yield from _parties(where, statement, kind)
    if not any(key in statement for key in ("Action", "NotAction")):
        yield f"{where}.Action", "missing", "a statement needs Action or NotAction"
    for pair in (("Action", "NotAction"), ("Resource", "NotResource"), ("Principal", "NotPrincipal")):
        if all(key in statement for key in pair):
            yield f"{where}.{pair[1]}", f"conflicts with {pair[0]}", f"give one of {pair[0]} and {pair[1]}"
    for key in ("Action", "NotAction"):
        for at, action in _texts(f"{where}.{key}", statement.get(key)):
            yield from _action(at, action, kind)
    for key in ("Resource", "NotResource"):
        for at, resource in _texts(f"{where}.{key}", statement.get(key)):
            yield from _resource(at, resource)
    sid = statement.get("Sid")
    if (
        isinstance(sid, str)
        and sid != UNKNOWN
        and kind == "identity"
        and not re.fullmatch(r"[A-Za-z0-9]*", sid)
    ):
        yield f"{where}.Sid", f"{sid!r} is not valid", "a Sid has letters and digits only"
    yield from _conditions(f"{where}.Condition", statement.get("Condition"))


def _parties(where: str, statement: dict[str, Any], kind: str) -> Iterator[Finding]:
    principal = statement.get("Principal", statement.get("NotPrincipal"))
    resources = [key for key in ("Resource", "NotResource") if key in statement]
    if kind == "identity":
        if principal is not None:
            yield (
                f"{where}.Principal",
                f"{shortened(principal)} is not allowed in the policy of an identity",
                "leave it out: the identity is the principal",
            )
        if not resources:
            yield f"{where}.Resource", "missing", "the policy of an identity needs Resource or NotResource"
    elif principal is None and kind != "any":
        yield f"{where}.Principal", "missing", "say who may, as in {'Service': 'ec2.amazonaws.com'}"
    if kind == "trust" and resources:
        yield (
            f"{where}.{resources[0]}",
            f"{shortened(statement[resources[0]])} is not allowed in a trust policy",
            "leave it out: the role is the resource",
        )
    if kind == "trust" and isinstance(principal, dict):
        yield from _way_in(set(principal), dict(_texts(f"{where}.Action", statement.get("Action"))))
    if kind == "resource" and not resources:
        yield f"{where}.Resource", "missing", "the policy of a resource needs Resource or NotResource"
    if principal not in (None, UNKNOWN):
        yield from _principal(f"{where}.Principal", principal)


def _way_in(principals: set[str], actions: dict[str, str]) -> Iterator[Finding]:
    """Check that federated principals assume a role with a token, and others without one.

    Source: IAM Access Analyzer, mismatched action for principal.
    """
    for at, action in actions.items():
        by_token = action in ("sts:AssumeRoleWithWebIdentity", "sts:AssumeRoleWithSAML")
        if principals == {"Federated"} and action == "sts:AssumeRole":
            yield (
                at,
                f"{action!r} is not possible for a Federated principal",
                "it must be 'sts:AssumeRoleWithWebIdentity' or 'sts:AssumeRoleWithSAML'",
            )
        elif principals and "Federated" not in principals and by_token:
            yield (
                at,
                f"{action!r} needs a Federated principal, not {' and '.join(sorted(principals))}",
                "it must be 'sts:AssumeRole'",
            )


def _principal(where: str, principal: Any) -> Iterator[Finding]:
    if isinstance(principal, str):
        if principal != "*":
            yield (
                where,
                f"{principal!r} is not a principal",
                "it must be '*' or an object like {'Service': 'ec2.amazonaws.com'}",
            )
        return
    if not isinstance(principal, dict):
        yield where, f"must be an object, not {principal!r}", "as in {'Service': 'ec2.amazonaws.com'}"
        return
    for key, value in principal.items():
        if key not in _PRINCIPALS:
            yield f"{where}.{key}", "unknown kind of principal", did_you_mean(key, _PRINCIPALS)
            continue
        for at, name in _texts(f"{where}.{key}", value):
            if key == "Service" and not _SERVICE_HOST.fullmatch(name):
                yield at, f"{name!r} is not a service", "it must be like 'ec2.amazonaws.com'"
            if key == "AWS" and not (
                name == "*" or re.fullmatch(r"\d{12}|A[A-Z0-9]{15,}", name) or _is_arn(name)
            ):
                yield (
                    at,
                    f"{name!r} is not an AWS principal",
                    "it must be an account of 12 digits, an ARN or '*'",
                )
            if key == "Federated" and not (_is_arn(name) or "." in name):
                yield (
                    at,
                    f"{name!r} is not an identity provider",
                    "it must be the provider's ARN or its host name",
                )


def _action(where: str, action: str, kind: str) -> Iterator[Finding]:
    if action == "*" and kind != "trust":
        return
    if not re.fullmatch(r"[A-Za-z0-9-]+:[A-Za-z0-9*?]+", action):
        yield where, f"{action!r} is not an action", "it must be like 's3:GetObject'"
        return
    service = action.split(":", maxsplit=1)[0]
    if kind == "trust":
        if not any(_like(action, known) for known in _TRUST_ACTIONS):
            yield (
                where,
                f"{action!r} is not an action of a trust policy",
                did_you_mean(action, _TRUST_ACTIONS),
            )
    elif service.lower() not in SERVICES:
        yield (
            where,
            f"{action!r}: {service!r} is not the prefix of a service",
            did_you_mean(service.lower(), SERVICES),
        )


def _like(pattern: str, text: str) -> bool:
    expression = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
    return re.fullmatch(expression, text, re.I) is not None


def _resource(where: str, resource: str) -> Iterator[Finding]:
    if resource != "*" and not resource.startswith("${") and not _is_arn(resource):
        yield where, f"{resource!r} is not an ARN", "it must be '*' or like 'arn:aws:s3:::bucket/*'"


def _is_arn(text: str) -> bool:
    return _ARN.fullmatch(text) is not None and _PARTITIONS.fullmatch(text.split(":")[1]) is not None


def _conditions(where: str, conditions: Any) -> Iterator[Finding]:
    if conditions in (None, UNKNOWN):
        return
    if not isinstance(conditions, dict):
        yield where, f"must be an object, not {conditions!r}", ""
        return
    for operator, tests in conditions.items():
        plain = re.sub(r"^(?:ForAllValues|ForAnyValue):", "", operator)
        plain = plain.removesuffix("IfExists")
        if plain.lower() not in {known.lower() for known in _OPERATORS}:
            yield f"{where}.{operator}", "unknown operator of a condition", did_you_mean(plain, _OPERATORS)
        elif not isinstance(tests, dict) and tests != UNKNOWN:
            yield (
                f"{where}.{operator}",
                f"must be an object of keys and values, not {tests!r}",
                "as in {'aws:SourceAccount': '111122223333'}",
            )
        else:
            for key in tests if isinstance(tests, dict) else ():
                if ":" not in key and UNKNOWN not in key:
                    yield (
                        f"{where}.{operator}.{key}",
                        "is not a key of a condition",
                        "it must be like 'aws:SourceAccount'",
                    )


def _texts(where: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield the known strings in a string or a list of strings."""
    for at, item in (
        ((f"{where}[{index}]", item) for index, item in enumerate(value))
        if isinstance(value, list)
        else ((where, value),)
    ):
        if isinstance(item, str) and UNKNOWN not in item:
            yield at, item
