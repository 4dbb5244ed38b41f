"""Conditions of role assignments on Azure, and the subjects of federated credentials, as pure functions."""

from __future__ import annotations

from collections.abc import Iterable

from trainfleet.infra.bootstrap.schema import BootstrapSpec
from trainfleet.infra.bootstrap.trust import Trust

BLOBS = "Microsoft.Storage/storageAccounts/blobServices/containers/blobs"
ASSIGNMENTS = "Microsoft.Authorization/roleAssignments"


def subjects(trust: Trust, identity: str, spec: BootstrapSpec) -> tuple[str, ...]:
    """The subjects that an identity accepts. Azure compares whole subjects only, so `plan` on a branch is
    limited to the protected one, and GitLab's merge requests, whose subjects name their branch, have none.

    Args:
        trust: the CI system.
        identity: `plan` or `apply`.
        spec: for the protected branch.
    """
    if identity == "apply":
        return tuple(dict.fromkeys(each["sub"] for each in trust.apply))
    if trust.system == "github":
        assert spec.github is not None
        branch = f"{spec.github.prefix}:ref:refs/heads/{spec.github.branch}:ref_protected:true"
        return (trust.plan[0]["sub"], branch)
    assert spec.gitlab is not None
    start = trust.plan[0]["sub"].removesuffix("*")
    # A job without an environment has neither claim.
    return (f"{start}{spec.gitlab.branch}:environment_protected::deployment_tier:",)


def locks_only(prefix: str) -> str:
    """Read every blob, but write and delete only those below a prefix."""
    actions = " AND ".join(
        f"!(ActionMatches{{'{BLOBS}/{action}'}})"
        for action in ("write", "delete", "add/action", "move/action")
    )
    return f"(({actions}) OR (@Resource[{BLOBS}:path] StringLike '{prefix}*'))"


def grants_only(roles: Iterable[str], not_to: str) -> str:
    """Assign and remove these roles only, to identities of services, and never to `not_to` itself.

    Args:
        roles: GUIDs of role definitions.
        not_to: object id of a principal.
    """
    listed = ", ".join(sorted(roles))
    terms = []
    for action, source in (("write", "@Request"), ("delete", "@Resource")):
        allowed = " AND ".join(
            (
                f"{source}[{ASSIGNMENTS}:RoleDefinitionId] ForAnyOfAnyValues:GuidEquals {{{listed}}}",
                f"{source}[{ASSIGNMENTS}:PrincipalType] "
                "ForAnyOfAnyValues:StringEqualsIgnoreCase {'ServicePrincipal'}",
                f"{source}[{ASSIGNMENTS}:PrincipalId] ForAnyOfAllValues:GuidNotEquals {{{not_to}}}",
            )
        )
        terms.append(f"(!(ActionMatches{{'{ASSIGNMENTS}/{action}'}}) OR ({allowed}))")
    return " AND ".join(terms)
