"""Budget: a monthly limit on resources with this platform's tag, and alerts by e-mail.

Nodes and disks are in a group that AKS creates, so the budget filters the subscription by tag.
"""

from __future__ import annotations

from datetime import date

import pulumi
from pulumi_azure_native import consumption

from trainfleet.api_limits import limit
from trainfleet.dates import today
from trainfleet.infra.component import PlatformComponent
from trainfleet.infra.spec.schema import Budget as BudgetSpec
from trainfleet.infra.spec.schema import PlatformSpec
from trainfleet.infra.tags import PLATFORM_TAG

MOST_ALERTS: int = limit("azure.budget_notifications", "maxProperties")


def alerts(budget: BudgetSpec, owner: str) -> dict[str, consumption.NotificationArgsDict]:
    """An alert for each share that is spent, and one for a forecast above the limit if the number
    allows it.
    """
    emails = list(budget.emails or (owner,))

    def alert(kind: str, share: float) -> consumption.NotificationArgsDict:
        return {
            "enabled": True,
            "operator": "GreaterThan",
            "threshold_type": kind,
            "threshold": round(share * 100, 2),
            "contact_emails": emails,
        }

    spent = {
        f"spent-{share * 100:g}": alert("Actual", share) for share in sorted(budget.alert_at)[-MOST_ALERTS:]
    }
    return {**spent, "forecast-100": alert("Forecasted", 1.0)} if len(spent) < MOST_ALERTS else spent


def first_of_month(today: date) -> str:
    """When a budget begins: the first day of the month it is made in, as Azure writes it."""
    return f"{today:%Y-%m}-01T00:00:00Z"


class Budget(PlatformComponent):
    """The budget of a platform."""

    TYPE = "trainfleet:azure:Budget"

    def __init__(
        self, spec: PlatformSpec, budget: BudgetSpec, *, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__(spec, "budget-alerts", opts)
        consumption.Budget(
            self.name("budget"),
            scope=f"/subscriptions/{spec.account}",
            category="Cost",
            amount=round(budget.monthly_usd, 2),
            time_grain="Monthly",
            # Set once, because a budget must start in the current month.
            time_period={"start_date": first_of_month(today())},
            filter={"tags": {"name": PLATFORM_TAG, "operator": "In", "values": [spec.name]}},
            notifications=alerts(budget, spec.owner),
            opts=self.options(ignore_changes=["timePeriod"]),
        )
        self.register_outputs({})
