"""Access of tokens from outside: what a changed provider of a pool or a changed federated credential means."""

from __future__ import annotations

from typing import Any

import pytest

from tests.rehearsal.diff.access_resources import made
from trainfleet.rehearsal.diff.access import access_changes
from trainfleet.rehearsal.diff.grants.federation import CREDENTIAL, POOL_PROVIDER
from trainfleet.rehearsal.diff.grants.model import Planned
from trainfleet.rehearsal.simulation.pulumi_values import UNKNOWN

ISSUER = "https://ci.example.com"
MAPPING = {"google.subject": "assertion.sub"}
POOL = "identities of workload identity pool provider ci"
IDENTITY = made(
    "azure-native:managedidentity:UserAssignedIdentity", "ci-apply", outputs={"name": "ci-apply-1"}
)


def provider(**inputs: Any) -> Planned:
    given = {
        "attributeCondition": "assertion.sub == 'a'",
        "attributeMapping": MAPPING,
        "oidc": {"issuerUri": ISSUER},
    }
    return made(POOL_PROVIDER, "ci", **(given | inputs))


def credential(**inputs: Any) -> Planned:
    given = {"issuer": ISSUER, "subject": "repo:a", "audiences": ["x"], "resourceName": "ci-apply-1"}
    return made(CREDENTIAL, "ci", **(given | inputs))


MAPPED = 'the token is mapped by {"google.subject": "assertion.sub"}'
CASES = {
    "pool: another condition": (
        provider(),
        provider(attributeCondition="assertion.sub == 'b'"),
        [
            f"a token of {ISSUER} can now assume {POOL} (token exchange), if assertion.sub == 'b', {MAPPED}",
            f"a token of {ISSUER} can no longer assume {POOL} (token exchange), if assertion.sub == 'a', {MAPPED}",
        ],
    ),
    "pool: no condition": (
        provider(attributeMapping={}),
        provider(attributeMapping={}, attributeCondition=""),
        [f"a token of {ISSUER} can now assume {POOL} (token exchange)"],
    ),
    "pool: another mapping": (
        provider(attributeCondition=""),
        provider(attributeCondition="", attributeMapping={"google.subject": "'apply'"}),
        [
            f"a token of {ISSUER} can now assume {POOL} (token exchange), "
            """if the token is mapped by {"google.subject": "'apply'"}""",
            f"a token of {ISSUER} can no longer assume {POOL} (token exchange), if {MAPPED}",
        ],
    ),
    "pool: disabled": (
        provider(attributeMapping={}),
        provider(attributeMapping={}, disabled=True),
        [f"a token of {ISSUER} can no longer assume {POOL} (token exchange), if assertion.sub == 'a'"],
    ),
    "pool: an account of AWS": (
        None,
        provider(oidc=None, aws={"accountId": "111122223333"}, attributeMapping={}, attributeCondition=""),
        [f"a token of 111122223333 can now assume {POOL} (token exchange)"],
    ),
    "pool: an audience that is not known": (
        None,
        provider(oidc={"issuerUri": ISSUER, "allowedAudiences": [UNKNOWN]}, attributeMapping={}),
        [
            f"a token of {ISSUER} can now assume {POOL} (token exchange), "
            """if assertion.sub == 'a', the audience is ["[known after apply]"]"""
        ],
    ),
    "pool: something else": (provider(displayName="a"), provider(displayName="b"), []),
    "credential: another subject": (
        credential(),
        credential(subject="repo:b"),
        [
            f"a token of {ISSUER} can now assume user assigned identity ci-apply (token exchange), "
            'if the subject is repo:b, the audience is ["x"]',
            f"a token of {ISSUER} can no longer assume user assigned identity ci-apply (token exchange), "
            'if the subject is repo:a, the audience is ["x"]',
        ],
    ),
    "credential: another issuer": (
        credential(audiences=[]),
        credential(audiences=[], issuer="https://mallory.example.com"),
        [
            "a token of https://mallory.example.com can now assume user assigned identity ci-apply "
            "(token exchange), if the subject is repo:a",
            f"a token of {ISSUER} can no longer assume user assigned identity ci-apply (token exchange), "
            "if the subject is repo:a",
        ],
    ),
    "credential: an expression": (
        None,
        credential(subject=None, audiences=[], claimsMatchingExpression={"value": "claims['sub'] matches 'repo:*'"}),
        [
            f"a token of {ISSUER} can now assume user assigned identity ci-apply (token exchange), "
            """if it matches {"value": "claims['sub'] matches 'repo:*'"}"""
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("before", "after", "texts"), CASES.values(), ids=CASES)
def test_a_changed_trust_is_a_change_of_access(
    before: Planned | None, after: Planned, texts: list[str]
) -> None:
    changes = access_changes([IDENTITY, *([before] if before else [])], [IDENTITY, after])
    assert [each.text for each in changes] == texts
