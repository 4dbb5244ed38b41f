"""The expressions (CEL) of the bootstrap, as pure functions: who a token is, and what may be granted."""

from __future__ import annotations

from collections.abc import Sequence

from trainfleet.infra.bootstrap.trust import Claims, Trust

COMPARED = {
    "github": ("sub", "ref", "environment", "repository_id"),
    "gitlab": (
        "sub",
        "ref",
        "ref_type",
        "ref_protected",
        "environment",
        "environment_protected",
        "project_id",
    ),
}
"""Claims by CI system. A provider can compare every claim of a token."""


def accepts(trust: Trust) -> str:
    """Which tokens the provider accepts at all: those that may plan or apply."""
    return " || ".join(f"({_matches(trust, claims)})" for claims in (*trust.apply, *trust.plan))


def subject(trust: Trust) -> str:
    """Who a token is: `<system>-apply` if it claims everything that an apply needs, else `<system>-plan`."""
    applies = " || ".join(f"({_matches(trust, claims)})" for claims in trust.apply)
    return f"({applies}) ? '{trust.system}-apply' : '{trust.system}-plan'"


def _matches(trust: Trust, claims: Claims) -> str:
    """NOTE: a missing claim is an error of the whole expression, so its presence is asked first."""
    terms = []
    for claim in COMPARED[trust.system]:
        value = claims.get(claim)
        if value is None:
            continue
        found = f"assertion.{claim}"
        if value.endswith("*"):
            terms.append(f"{found}.startsWith('{value[:-1]}')")
        else:
            terms.append(f"has({found}) && {found} == '{value}'")
    return " && ".join(terms)


def of_platforms(platforms: Sequence[str]) -> str:
    """Objects of buckets that platforms own, by the beginning of the bucket's name."""
    return " || ".join(
        f"resource.name.startsWith('projects/_/buckets/{platform}-')" for platform in platforms
    )


def grants_only(roles: Sequence[str]) -> str:
    """A policy may be changed for these roles only (IAM documentation, limits on granting roles)."""
    listed = ", ".join(f"'{role}'" for role in roles)
    return f"api.getAttribute('iam.googleapis.com/modifiedGrantsByRole', []).hasOnly([{listed}])"
