"""BreakGlass: named people can activate the roles of an apply for hours when CI cannot apply (Privileged
Identity Management, which asks for a second factor). Each activation is announced by e-mail.
"""

from __future__ import annotations

import pulumi
from pulumi_azure_native import authorization, monitor

from trainfleet.infra.azure.permissions import ROLES, role_definition
from trainfleet.infra.bootstrap.azure.conditions import grants_only
from trainfleet.infra.bootstrap.azure.identities import BLOBS, Identities
from trainfleet.infra.bootstrap.azure.state import State
from trainfleet.infra.bootstrap.schema import BootstrapSpec
from trainfleet.infra.component import SpecComponent

ACTIVATED = "Microsoft.Authorization/roleAssignmentScheduleRequests/write"


class BreakGlass(SpecComponent[BootstrapSpec]):
    """The roles that named people can activate, and the alert of an activation."""

    TYPE = "trainfleet:bootstrap:azure:BreakGlass"

    def __init__(
        self,
        spec: BootstrapSpec,
        state: State,
        identities: Identities,
        *,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(spec, "break-glass", opts)
        everywhere = identities.subscription
        state_role = role_definition(spec.account, BLOBS)
        for index, person in enumerate(spec.break_glass.people):
            self._eligible(f"{index}-read", person, identities.read.id, everywhere)
            self._eligible(f"{index}-write", person, identities.write.id, everywhere)
            only = grants_only(ROLES.values(), person)
            self._eligible(f"{index}-grant", person, identities.grant.id, everywhere, only)
            self._eligible(f"{index}-state", person, state_role, state.data.id)
            self._eligible(f"{index}-secrets", person, identities.encrypt.id, state.data.id)
        self._alert(state)
        self.register_outputs({})

    def _eligible(
        self,
        what: str,
        person: str,
        role: pulumi.Input[str],
        scope: pulumi.Input[str],
        condition: str = "",
    ) -> authorization.PimRoleEligibilitySchedule:
        return authorization.PimRoleEligibilitySchedule(
            self.name(f"break-glass-{what}"),
            scope=scope,
            principal_id=person,
            role_definition_id=role,
            condition=condition or None,
            condition_version="2.0" if condition else None,
            justification="Trainfleet: apply when CI cannot",
            schedule_info={"expiration": {"type": "NoExpiration"}},
            opts=self.options(protect=True),
        )

    def _alert(self, state: State) -> None:
        group = monitor.ActionGroup(
            self.name("break-glass-mail"),
            resource_group_name=state.data.name,
            location="Global",
            enabled=True,
            # At most 12 characters.
            group_short_name="break-glass",
            email_receivers=[
                {"name": f"mail-{index}", "email_address": email, "use_common_alert_schema": True}
                for index, email in enumerate(self.spec.break_glass.alert)
            ],
            tags=self.tags("break-glass-mail"),
            opts=self.options(protect=True),
        )
        monitor.ActivityLogAlert(
            self.name("break-glass-used"),
            resource_group_name=state.data.name,
            location="Global",
            enabled=True,
            description="Somebody activated a role of the subscription",
            scopes=[f"/subscriptions/{self.spec.account}"],
            condition={
                "all_of": [
                    {"field": "category", "equals": "Administrative"},
                    {"field": "operationName", "equals": ACTIVATED},
                ]
            },
            actions={"action_groups": [{"action_group_id": group.id}]},
            tags=self.tags("break-glass-used"),
            opts=self.options(protect=True),
        )
