"""FOCUS bills of the stack aws-prod, as exports of AWS have them."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Row = dict[str, Any]
COLUMNS = (
    "BilledCost",
    "EffectiveCost",
    "BillingCurrency",
    "ChargeCategory",
    "ChargeFrequency",
    "ChargePeriodStart",
    "ChargePeriodEnd",
    "ChargeDescription",
    "ConsumedQuantity",
    "ConsumedUnit",
    "ServiceName",
    "ServiceCategory",
    "ResourceId",
    "Tags",
)
EC2 = "Amazon Elastic Compute Cloud"


def tags(
    what: str = "", *, platform: str = "prod", owner: str = "ml-platform@example.com", **more: str
) -> Row:
    """The tags of a resource of a platform; `what` is its name within the platform."""
    found = {"trainfleet:platform": platform, "trainfleet:owner": owner, **more}
    return found | ({"Name": f"{platform}-{what}"} if what else {})


def row(cost: float, service: str, text: str = "", tagged: Row | None = None, **more: Any) -> Row:
    """A charge of one day."""
    return {
        "BilledCost": cost,
        "EffectiveCost": cost,
        "BillingCurrency": "USD",
        "ChargeCategory": "Usage",
        "ChargeFrequency": "Usage-Based",
        "ChargePeriodStart": "2026-11-01T00:00:00Z",
        "ChargePeriodEnd": "2026-11-02T00:00:00Z",
        "ChargeDescription": text,
        "ConsumedQuantity": "",
        "ConsumedUnit": "",
        "ServiceName": service,
        "ServiceCategory": "Compute",
        "ResourceId": "i-1",
        "Tags": json.dumps(tagged) if tagged is not None else "",
        **more,
    }


def nodes(hours: float, usd_per_hour: float, machine: str, pool: str, **more: Any) -> Row:
    """The hours of a pool's nodes."""
    text = f"${usd_per_hour} per On Demand Linux {machine} Instance Hour"
    quantity = {"ConsumedQuantity": hours, "ConsumedUnit": "Hrs"}
    return row(hours * usd_per_hour, EC2, text, tags(pool), **{**quantity, **more})


def write_csv(file: Path, rows: Iterable[Row], columns: Iterable[str] = COLUMNS) -> Path:
    columns = list(columns)
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return file
