"""Budget: a monthly limit on resources with this platform's tag, and alerts by e-mail."""

from __future__ import annotations

import pulumi
import pulumi_aws as aws

from trainfleet.api_limits import limit
from trainfleet.infra.component import PlatformComponent
from trainfleet.infra.spec.schema import Budget as BudgetSpec
from trainfleet.infra.spec.schema import PlatformSpec
from trainfleet.infra.tags import PLATFORM_TAG

MOST_ALERTS: int = limit("aws.budget_notifications", "maxItems")


def alerts(budget: BudgetSpec, owner: str) -> list[aws.budgets.BudgetNotificationArgsDict]:
    """An alert for each share that is spent, and one for a forecast above the limit if the number
    allows it.
    """
    emails = list(budget.emails or (owner,))

    def alert(kind: str, share: float) -> aws.budgets.BudgetNotificationArgsDict:
        return {
            "notification_type": kind,
            "comparison_operator": "GREATER_THAN",
            "threshold_type": "PERCENTAGE",
            "threshold": round(share * 100, 2),
            "subscriber_email_addresses": emails,
        }

    spent = [alert("ACTUAL", share) for share in sorted(budget.alert_at)[-MOST_ALERTS:]]
    return [*spent, alert("FORECASTED", 1.0)] if len(spent) < MOST_ALERTS else spent


class Budget(PlatformComponent):
    """The budget of a platform."""

    TYPE = "trainfleet:aws:Budget"

    def __init__(
        self, spec: PlatformSpec, budget: BudgetSpec, *, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__(spec, "budget-alerts", opts)
        aws.budgets.Budget(
            self.name("budget"),
            budget_type="COST",
            time_unit="MONTHLY",
            limit_amount=f"{budget.monthly_usd:.2f}",
            limit_unit="USD",
            # AWS counts by this tag only after it is activated for cost allocation in the billing
            # console, once per payer account.
            cost_filters=[{"name": "TagKeyValue", "values": [f"user:{PLATFORM_TAG}${spec.name}"]}],
            notifications=alerts(budget, spec.owner),
            tags=self.tags("budget"),
            opts=self.options(),
        )
        self.register_outputs({})
