"""Rules on existing identities: which a platform needs, whose they are, and which have no effect."""

from __future__ import annotations

import re
from collections.abc import Iterator

from trainfleet.infra.cloud_support import IdentityIds, support
from trainfleet.infra.spec.schema import PlatformSpec
from trainfleet.infra.validation.finding import Finding
from trainfleet.pydantic_messages import Path
from trainfleet.suggestions import did_you_mean

EXISTING: Path = ("identities", "existing")
BOUNDARY: Path = ("identities", "permission_boundary")
CLOUD: Path = ("cloud",)


def existing_identities_are_complete(spec: PlatformSpec) -> Iterator[Finding]:
    """Who may not create one identity may create none, so all that the platform needs are named, each in the
    cloud's own form.
    """
    existing, ids = spec.identities.existing, support(spec.cloud).identities
    if not existing:
        return
    if ids is None:
        yield Finding(EXISTING, f"has no effect on {spec.cloud}", "leave it out", (CLOUD,))
        return
    needed = ids.needed(spec)
    for purpose, identity in existing.items():
        yield from _identity(spec, ids, purpose, identity)
        where = (*EXISTING, purpose)
        if purpose not in ids.purposes:
            what = f"is not a purpose of an identity on {spec.cloud}"
            yield Finding(where, what, did_you_mean(purpose, ids.purposes), (CLOUD,))
        elif purpose not in needed:
            yield Finding(where, "has no effect: this platform does not need it", "leave it out", (CLOUD,))
    for purpose in needed:
        if purpose not in existing:
            what = f"is missing, and the platform creates no {ids.noun} next to existing ones"
            yield Finding((*EXISTING, purpose), what, f"for example {ids.example}", (CLOUD,))


def identities_are_distinct(spec: PlatformSpec) -> Iterator[Finding]:
    """With one identity for two purposes, pods of the one have the rights of the other."""
    first: dict[str, str] = {}
    for purpose, identity in spec.identities.existing.items():
        if identity.lower() in first:
            what = f"is also the identity of `{first[identity.lower()]}`"
            yield Finding((*EXISTING, purpose), what, "one of its own")
        first.setdefault(identity.lower(), purpose)


def boundary_has_an_effect(spec: PlatformSpec) -> Iterator[Finding]:
    """A boundary is attached to roles that the platform creates, and only AWS has boundaries."""
    boundary, ids = spec.identities.permission_boundary, support(spec.cloud).identities
    if not boundary:
        return
    if ids is None or not ids.boundary:
        yield Finding(BOUNDARY, f"has no effect on {spec.cloud}", "leave it out", (CLOUD,))
    elif spec.identities.existing:
        what = "has no effect on existing roles, and the platform creates none"
        yield Finding(BOUNDARY, what, "leave it out, and bound the existing roles", (EXISTING,))
    elif not (found := re.fullmatch(ids.boundary, boundary)):
        what = f"`{boundary}` is not the ARN of a policy"
        yield Finding(BOUNDARY, what, "for example arn:aws:iam::111122223333:policy/boundary", (CLOUD,))
    elif spec.account and found["account"] not in (spec.account, "aws"):
        what = f"is of account {found['account']}, and the platform is in {spec.account}"
        yield Finding(BOUNDARY, what, "a policy of the platform's account", (("account",),))


def _identity(spec: PlatformSpec, ids: IdentityIds, purpose: str, identity: str) -> Iterator[Finding]:
    where: Path = (*EXISTING, purpose)
    found = re.fullmatch(ids.pattern, identity)
    if not found:
        what = f"`{identity}` is not the id of a {ids.noun}"
        yield Finding(where, what, f"for example {ids.example}", (CLOUD,))
    elif spec.account and found["account"].lower() != spec.account.lower():
        what = f"is of {found['account']}, and the platform is in {spec.account}"
        yield Finding(where, what, f"a {ids.noun} of {spec.account}", (("account",),))
