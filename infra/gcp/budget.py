"""Budget: a monthly limit on resources with this platform's label, and alerts by e-mail.

The budget belongs to the billing account, so the identity that applies needs Billing Account Costs Manager
there. The limit is in USD and rejected by an account in another currency. Credentials of a person need a
quota project (`gcp:userProjectOverride` and `gcp:billingProject`), because budgets are outside projects.
"""

from __future__ import annotations

import pulumi
import pulumi_gcp as gcp

from trainfleet.api_limits import limit
from trainfleet.infra.component import PlatformComponent, answer_after
from trainfleet.infra.gcp.apis import Apis
from trainfleet.infra.gcp.foundation import Foundation
from trainfleet.infra.gcp.layout import short_name
from trainfleet.infra.spec.schema import Budget as BudgetSpec
from trainfleet.infra.spec.schema import PlatformSpec

MOST_CHANNELS: int = limit("gcp.budget_channels", "maxItems")
"""A budget has at most five channels (Budget API, monitoringNotificationChannels)."""
PLATFORM_LABEL = "trainfleet-platform"


def alerts(budget: BudgetSpec) -> list[gcp.billing.BudgetThresholdRuleArgsDict]:
    """An alert for each share that is spent, and one for a forecast above the limit."""
    spent: list[gcp.billing.BudgetThresholdRuleArgsDict] = [
        {"threshold_percent": share, "spend_basis": "CURRENT_SPEND"} for share in sorted(budget.alert_at)
    ]
    return [*spent, {"threshold_percent": 1.0, "spend_basis": "FORECASTED_SPEND"}]


def amount(usd: float) -> gcp.billing.BudgetAmountArgsDict:
    """The limit as Google's Money: whole units and billionths."""
    cents = round(usd * 100)
    return {
        "specified_amount": {
            "currency_code": "USD",
            "units": str(cents // 100),
            "nanos": cents % 100 * 10_000_000,
        }
    }


class Budget(PlatformComponent):
    """The budget of a platform."""

    TYPE = "trainfleet:gcp:Budget"

    def __init__(
        self,
        spec: PlatformSpec,
        budget: BudgetSpec,
        foundation: Foundation,
        *,
        project_number: pulumi.Input[str],
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__(spec, "budget-alerts", opts)
        apis = foundation.apis
        # Without the Cloud Billing API, the provider answers with an empty billing account and no error
        # (terraform-provider-google, resourceGoogleProjectRead).
        project = gcp.organizations.get_project_output(
            project_id=spec.account, opts=pulumi.InvokeOutputOptions(parent=self, depends_on=apis.ready)
        )
        project = answer_after(project, *apis.ready)
        channels = [self._channel(email, apis) for email in budget.emails or (spec.owner,)]
        gcp.billing.Budget(
            self.name("budget"),
            billing_account=project.billing_account,
            display_name=f"trainfleet-{spec.name}",
            amount=amount(budget.monthly_usd),
            budget_filter={
                "calendar_period": "MONTH",
                "credit_types_treatment": "INCLUDE_ALL_CREDITS",
                "projects": [pulumi.Output.concat("projects/", project_number)],
                "labels": {PLATFORM_LABEL: self.labels("budget")[PLATFORM_LABEL]},
            },
            threshold_rules=alerts(budget),
            all_updates_rule={
                "monitoring_notification_channels": [channel.name for channel in channels],
                # Administrators of the billing account are not notified about one platform.
                "disable_default_iam_recipients": True,
            },
            opts=self.options(depends_on=apis.ready),
        )
        self.register_outputs({})

    def _channel(self, email: str, apis: Apis) -> gcp.monitoring.NotificationChannel:
        what = f"mail-{short_name(email)}"  # by address, so that the order in the spec does not matter
        return gcp.monitoring.NotificationChannel(
            self.name(what),
            display_name=f"Trainfleet {self.spec.name}: {email}",
            type="email",
            labels={"email_address": email},
            user_labels=self.labels(what),
            opts=self.options(depends_on=apis.ready),
        )
