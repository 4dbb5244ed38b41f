"""Identities: the managed identities `plan` and `apply`, the tokens that become them, and their roles."""

from __future__ import annotations

import uuid
from collections.abc import Iterable

import pulumi
from pulumi_azure_native import authorization, managedidentity, resources

from trainfleet.infra.azure.identity import AUDIENCE
from trainfleet.infra.azure.permissions import NAMESPACE, ROLES, assignment_name, role_definition
from trainfleet.infra.bootstrap.azure import conditions
from trainfleet.infra.bootstrap.azure.state import LOCKS_PREFIX, State
from trainfleet.infra.bootstrap.permissions import READ, WRITE, needed
from trainfleet.infra.bootstrap.schema import BootstrapSpec
from trainfleet.infra.bootstrap.trust import trusted
from trainfleet.infra.component import SpecComponent

GRANTS = (
    "Microsoft.Authorization/roleAssignments/write",
    "Microsoft.Authorization/roleAssignments/delete",
)
BLOBS = "Storage Blob Data Contributor"
DECRYPT = ("Microsoft.KeyVault/vaults/keys/read", "Microsoft.KeyVault/vaults/keys/decrypt/action")
ENCRYPT = (*DECRYPT, "Microsoft.KeyVault/vaults/keys/encrypt/action")


class Identities(SpecComponent[BootstrapSpec]):
    """The identities `plan` and `apply`, and the custom roles `read`, `write` and `grant`."""

    TYPE = "trainfleet:bootstrap:azure:Identities"

    def __init__(
        self, spec: BootstrapSpec, state: State, *, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__(spec, "identities", opts)
        self.state = state
        self.subscription = f"/subscriptions/{spec.account}"
        self.group = resources.ResourceGroup(
            self.name("identities"),
            location=spec.region,
            tags=self.tags("identities"),
            opts=self.options(retain=True),
        )
        self.read = self._role("read", needed("azure", READ, spec.options))
        writes = needed("azure", WRITE, spec.options)
        self.write = self._role("write", [each for each in writes if each not in GRANTS])
        self.grant = self._role("grant", GRANTS)
        self.decrypt = self._role("decrypt", (), DECRYPT)
        self.encrypt = self._role("encrypt", (), ENCRYPT)
        self.credentials: list[pulumi.Resource] = []
        self.plan, self.apply = self._identity("plan"), self._identity("apply")
        # NOTE: `write` is of the whole subscription. Without the lock, CI could let other tokens become it.
        authorization.ManagementLockByScope(
            self.name("identities-lock"),
            lock_name=self.name("identities"),
            scope=self.group.id,
            level=authorization.LockLevel.READ_ONLY,
            notes="Identities of CI: a person removes the lock to change them",
            opts=self.options(protect=True, depends_on=self.credentials),
        )
        self._allow_plan()
        self._allow_apply()
        self.register_outputs({})

    def _identity(self, what: str) -> managedidentity.UserAssignedIdentity:
        identity = managedidentity.UserAssignedIdentity(
            self.name(what),
            resource_group_name=self.group.name,
            location=self.spec.region,
            tags=self.tags(what),
            opts=self.options(protect=True),
        )
        previous: list[pulumi.Resource] = []
        for trust in trusted(self.spec):
            for index, subject in enumerate(conditions.subjects(trust, what, self.spec)):
                # One after the other: Azure rejects concurrent changes of an identity's credentials.
                previous = [
                    managedidentity.FederatedIdentityCredential(
                        self.name(f"{what}-{trust.system}-{index}"),
                        resource_group_name=self.group.name,
                        resource_name_=identity.name,
                        issuer=trust.issuer,
                        subject=subject,
                        audiences=[AUDIENCE],
                        opts=self.options(depends_on=previous),
                    )
                ]
        self.credentials += [identity, *previous]
        return identity

    def _role(
        self, what: str, actions: Iterable[str], data_actions: Iterable[str] = ()
    ) -> authorization.RoleDefinition:
        return authorization.RoleDefinition(
            self.name(f"{what}-role"),
            role_definition_id=str(uuid.uuid5(NAMESPACE, f"{self.spec.account}/{self.spec.name}/{what}")),
            # Unique in the tenant.
            role_name=f"Trainfleet {self.spec.name} {what} ({self.spec.account})",
            description="What the resource types of the stacks need",
            role_type="CustomRole",
            scope=self.subscription,
            assignable_scopes=[self.subscription],
            permissions=[{"actions": list(actions), "data_actions": list(data_actions)}],
            opts=self.options(),
        )

    def _allow_plan(self) -> None:
        self._assign("plan-reads", self.read.id, self.subscription, self.plan)
        # A refresh locks the stack.
        self._assign(
            "plan-state",
            role_definition(self.spec.account, BLOBS),
            self.state.container.id,
            self.plan,
            conditions.locks_only(LOCKS_PREFIX),
        )
        self._assign("plan-decrypts", self.decrypt.id, self.state.secrets_key.id, self.plan)

    def _allow_apply(self) -> None:
        who = self.apply
        self._assign("apply-reads", self.read.id, self.subscription, who)
        self._assign("apply-writes", self.write.id, self.subscription, who)
        only = who.principal_id.apply(lambda own: conditions.grants_only(ROLES.values(), own))
        self._assign("apply-grants", self.grant.id, self.subscription, who, only)
        state = role_definition(self.spec.account, BLOBS)
        self._assign("apply-state", state, self.state.container.id, who)
        self._assign("apply-encrypts", self.encrypt.id, self.state.secrets_key.id, who)

    def _assign(
        self,
        what: str,
        role: pulumi.Input[str],
        scope: pulumi.Input[str],
        identity: managedidentity.UserAssignedIdentity,
        condition: pulumi.Input[str] = "",
    ) -> None:
        name = pulumi.Output.all(scope, identity.principal_id).apply(
            lambda known: assignment_name(str(known[0]), str(known[1]), what)
        )
        authorization.RoleAssignment(
            self.name(what),
            role_assignment_name=name,
            scope=scope,
            principal_id=identity.principal_id,
            # Without it, Azure looks the identity up, which fails until the directory is updated.
            principal_type="ServicePrincipal",
            role_definition_id=role,
            condition=condition or None,
            condition_version="2.0" if condition else None,
            opts=self.options(),
        )
