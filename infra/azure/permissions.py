"""Grant built-in roles to identities of the platform. A role is always granted on one resource, never on a
group or the subscription.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import pulumi
from pulumi_azure_native import authorization

from trainfleet.infra.component import SpecComponent

ROLES = {
    "AcrPull": "7f951dda-4ed3-4680-a7ca-43fe172d538d",
    "Contributor": "b24988ac-6180-42a0-ab88-20f7382dd24c",
    "Key Vault Contributor": "f25e0fa2-a7c8-4377-a976-54943a77a395",
    "Key Vault Crypto Service Encryption User": "e147488a-f6f5-4113-8e2d-b22465e65bf6",
    "Key Vault Crypto User": "12338af0-0e69-4776-bea7-57ae8d297424",
    "Key Vault Secrets User": "4633458b-17de-408a-b874-0445c86b69e6",
    "Managed Identity Operator": "f1a07417-d97a-45cb-824c-7a7467783830",
    "Network Contributor": "4d97b98b-1d4f-4787-a291-c67834d212e7",
    "Reader": "acdd72a7-3385-48ef-bd42-f606fba81ae7",
    "Storage Blob Data Contributor": "ba92f5b4-2d11-453d-a403-e96b0029c9fe",
    "Storage Blob Data Reader": "2a2b9908-6ea1-4ae2-8e65-a410df84e7d1",
}
"""Azure's built-in roles by name (Azure RBAC documentation, built-in roles): a definition's GUID is the same
in every tenant.
"""
PROPAGATION = timedelta(minutes=10)
"""How long a new role may take to have effect (Azure RBAC documentation, troubleshooting, symptom: role
assignment changes are not being detected). Storage, disks and Lustre check their key once and do not retry.
"""
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")
NAMESPACE = uuid.UUID("6f1b1ed4-6a0c-4c39-9d4e-0f4c1b3e7a52")


class Principal(Protocol):
    """A managed identity that the platform creates, or one that exists."""

    @property
    def principal_id(self) -> pulumi.Output[str]:
        """The object id of its service principal, which gets the role."""


def assignment_name(scope: str, principal: str, role: str) -> str:
    """The GUID of an assignment, derived from its content: Azure allows one of each and cannot change it."""
    return str(uuid.uuid5(NAMESPACE, f"{scope.lower()}|{principal}|{role}"))


def role_definition(subscription: str, role: str) -> str:
    """The id of a built-in role's definition, as Azure itself writes it back."""
    return f"/subscriptions/{subscription}/providers/Microsoft.Authorization/roleDefinitions/{ROLES[role]}"


def grant(
    component: SpecComponent[Any],
    what: str,
    role: str,
    scope: pulumi.Input[str],
    identity: Principal,
    *,
    retain: bool = False,
) -> authorization.RoleAssignment:
    """Grant an identity a role on one resource.

    Args:
        component: the component that owns the assignment.
        what: the assignment's purpose, which is part of its logical name.
        role: ID of the role definition.
        scope: ID of the resource.
        identity: who gets the role.
        retain: whether `pulumi destroy` keeps the assignment, as production does with the resource.
    """
    name = pulumi.Output.all(scope, identity.principal_id).apply(
        lambda known: assignment_name(str(known[0]), str(known[1]), role)
    )
    return authorization.RoleAssignment(
        component.name(what),
        role_assignment_name=name,
        scope=scope,
        principal_id=identity.principal_id,
        # Without it, Azure looks the identity up, which fails until the directory is updated.
        principal_type="ServicePrincipal",
        role_definition_id=role_definition(component.spec.account, role),
        opts=component.options(retain=retain),
    )


def once_in_effect(value: pulumi.Input[str], *grants: authorization.RoleAssignment) -> pulumi.Output[str]:
    """The value, which an apply knows only when roles that it needs are in effect: what uses the value waits.

    Azure tells when a role was assigned, so that only the apply that assigns it waits.
    """
    return pulumi.Output.all(value, *(each.created_on for each in grants)).apply(_wait)


async def _wait(known: list[Any]) -> str:
    value, *assigned = known
    if not pulumi.runtime.is_dry_run():
        await asyncio.sleep(seconds_left([str(each) for each in assigned if each], datetime.now(UTC)))
    return str(value)


def seconds_left(assigned: list[str], now: datetime) -> float:
    """How long the last of these roles may still take to have effect, by the time of its assignment (ISO 8601
    in UTC, with any fraction of a second). A role without a time that can be read counts as an old one.
    """
    times = [datetime.fromisoformat(each[:19]) for each in assigned if _TIME.match(each)]
    left = (each.replace(tzinfo=UTC) + PROPAGATION - now for each in times)
    return max((each.total_seconds() for each in left if each > timedelta()), default=0.0)
