"""BreakGlass: the service account as which named people act when CI cannot apply. Each use is announced by
e-mail. Google Cloud requires a second factor by the policy of the organization, not of a role.
"""

from __future__ import annotations

import pulumi
import pulumi_gcp as gcp

from trainfleet.infra.bootstrap.gcp.identities import Identities
from trainfleet.infra.bootstrap.gcp.state import State
from trainfleet.infra.bootstrap.schema import BootstrapSpec
from trainfleet.infra.component import SpecComponent


class BreakGlass(SpecComponent[BootstrapSpec]):
    """The account `account`, which may apply and restore state, and the alert of its use."""

    TYPE = "trainfleet:bootstrap:gcp:BreakGlass"

    def __init__(
        self,
        spec: BootstrapSpec,
        state: State,
        identities: Identities,
        *,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(spec, "break-glass", opts)
        self.state = state
        self.account = identities.account("break-glass", "named people, when CI cannot apply")
        identities.allow_apply("break-glass", self.account.member)
        for index, who in enumerate(spec.break_glass.people):
            gcp.serviceaccount.IAMMember(
                self.name(f"break-glass-person-{index}"),
                service_account_id=self.account.name,
                role="roles/iam.serviceAccountTokenCreator",
                member=f"user:{who}",
                opts=self.options(),
            )
        self._alert()
        self.register_outputs({"account": self.account.email})

    def _alert(self) -> None:
        # Without it, nothing records who gets a token of the account.
        audited = gcp.projects.IAMAuditConfig(
            self.name("break-glass-audit"),
            project=self.spec.account,
            service="iamcredentials.googleapis.com",
            audit_log_configs=[{"log_type": "DATA_READ"}, {"log_type": "ADMIN_READ"}],
            opts=self.options(protect=True, depends_on=self.state.apis),
        )
        channels = [
            gcp.monitoring.NotificationChannel(
                self.name(f"break-glass-mail-{index}"),
                type="email",
                display_name=f"Trainfleet {self.spec.name}: {email}",
                labels={"email_address": email},
                opts=self.options(depends_on=self.state.apis),
            )
            for index, email in enumerate(self.spec.break_glass.alert)
        ]
        gcp.monitoring.AlertPolicy(
            self.name("break-glass-used"),
            display_name=f"Trainfleet {self.spec.name}: the break-glass account was used",
            combiner="OR",
            severity="CRITICAL",
            conditions=[
                {
                    "display_name": "a token of the account was created",
                    "condition_matched_log": {
                        "filter": pulumi.Output.concat(
                            'protoPayload.serviceName="iamcredentials.googleapis.com" AND ',
                            'resource.labels.email_id="',
                            self.account.email,
                            '"',
                        )
                    },
                }
            ],
            # Required for alerts of logs: at most one message in five minutes.
            alert_strategy={"notification_rate_limit": {"period": "300s"}, "auto_close": "86400s"},
            notification_channels=[channel.name for channel in channels],
            user_labels=self.labels("break-glass-used"),
            opts=self.options(protect=True, depends_on=[audited]),
        )
