"""Whose the charges of a bill are, how they compare with the estimate, and what was idle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cost.bills import EC2, Row, nodes, row, tags, write_csv
from trainfleet.cost.bill import MOST_KEYS, OTHERS, Owners, add, add_up, item_of, items
from trainfleet.cost.focus import charges
from trainfleet.cost.report import BillReport, _item_of, bill_report
from trainfleet.cost.run_hours import RunHours, hours_of
from trainfleet.errors import InputError
from trainfleet.infra.catalog.cost import Bill, bill
from trainfleet.infra.spec.load import load_stack
from trainfleet.training.runs.listing import RunInfo


def report(
    folder: Path,
    *rows: Row,
    runs: list[RunHours] | None = None,
    stack: str = "aws-prod",
    estimate: Bill | None = None,
    basis: str = "effective",
    month: str = "2026-11",
) -> BillReport:
    spec = load_stack(stack)
    owners = Owners(spec, stack)
    totals = add_up(charges([write_csv(folder / "bill.csv", rows)]), owners, basis)
    return bill_report(totals, month, owners, estimate or bill(spec), runs)


NODES = nodes(24, 1.006, "g5.xlarge", "a10g")
MANAGEMENT = row(2.4, "Amazon Elastic Container Service for Kubernetes", "cluster hours", tags("eks"))


def test_charges_are_of_who_the_tags_say(tmp_path: Path) -> None:
    found = report(
        tmp_path,
        NODES,
        MANAGEMENT,
        row(5.0, "AWS CloudTrail", "events"),
        row(7.0, EC2, "an instance", tags("x", platform="dev")),
        row(3.0, EC2, "g5.xlarge", {**tags(), "trainfleet:run": "night", "trainfleet:owner": ""}),
    )
    month = found.month
    assert month.ours == pytest.approx(24 * 1.006 + 2.4 + 3.0)
    assert (month.untagged, month.untagged_by, month.others) == (5.0, {"AWS CloudTrail": 5.0}, {"dev": 7.0})
    assert month.by["pool"] == pytest.approx({"a10g": 24 * 1.006, "(no pool)": 5.4})
    assert month.by["run"] == {"night": 3.0}
    assert month.by["item"].keys() == {"a10g", "control plane", "other nodes"}
    assert any("has no tag" in note for note in found.notes)


def test_labels_of_google_cloud_are_the_same_tags(tmp_path: Path) -> None:
    spec = load_stack("gcp-prod")
    pool = next(each for each in spec.gpu_pools)
    labels = {
        "trainfleet-platform": spec.name,
        "trainfleet-owner": "ml-platform_at_example_com",
        "name": f"{spec.name}-{pool.name}",
    }
    gpu = row(
        10.0,
        "Compute Engine",
        "Nvidia GPU running in Americas",
        labels,
        ConsumedQuantity=7200,
        ConsumedUnit="seconds",
    )
    core = row(1.0, "Compute Engine", "A3 Instance Core", labels, ConsumedQuantity=9, ConsumedUnit="hour")
    found = report(tmp_path, gpu, core, stack="gcp-prod")
    assert found.month.by["owner"] == {spec.owner: 11.0}
    assert found.month.gpu_hours == {pool.name: 2.0}


def test_the_node_pool_of_a_managed_cluster_is_a_pool(tmp_path: Path) -> None:
    of = {"trainfleet:platform": "prod", "eks:nodegroup-name": "prod-a10g"}
    assert report(tmp_path, row(1.0, EC2, "g5.xlarge", of)).month.by["pool"] == {"a10g": 1.0}


def test_a_stack_of_the_same_platform_is_another_stack(tmp_path: Path) -> None:
    of = {**tags("a10g"), "trainfleet:stack": "aws-other"}
    found = report(tmp_path, row(1.0, EC2, "g5.xlarge", of), NODES)
    assert found.month.others == {"prod": 1.0}


def test_items_are_compared_with_the_estimate_of_the_same_hours(tmp_path: Path) -> None:
    found = report(tmp_path, NODES, MANAGEMENT, row(99.0, EC2, "NatGateway-Hours", tags("nat-a")))
    verdicts = {each.item: each.verdict for each in found.compared}
    assert found.month.covered_hours == 24
    assert verdicts["control plane"] == "as estimated"
    assert verdicts["a10g"] == "as estimated"
    assert verdicts["NAT gateways"] == "above"
    assert verdicts["private endpoints"] == "not billed"
    plane = next(each for each in found.compared if each.item == "control plane")
    assert (plane.least, plane.most) == pytest.approx((2.4, 2.4))


@pytest.mark.parametrize("stack", ["aws-prod", "gcp-prod", "azure-prod", "aws-dev", "gcp-dev", "azure-dev"])
def test_every_part_of_an_estimate_is_an_item_of_the_bill(stack: str) -> None:
    spec = load_stack(stack)
    owners = Owners(spec, stack)
    known = {item.name for item in items()} | owners.pools.keys()
    assert {pool.name for pool in spec.gpu_pools} <= owners.pools.keys()
    for part in bill(spec).parts:
        assert _item_of(part, owners) in known, part.name


@pytest.mark.parametrize(
    ("service", "text", "item"),
    [
        (EC2, "$0.045 per NAT Gateway Hour", "NAT gateways"),
        (EC2, "$0.045 per GB Data Processed by NAT Gateways", "NAT traffic"),
        (EC2, "$0.08 per GB-month of General Purpose (gp3) provisioned storage", "disks"),
        (
            "Amazon Virtual Private Cloud",
            "$0.005 per In-use public IPv4 address per hour",
            "public addresses",
        ),
        ("Amazon Virtual Private Cloud", "$0.01 per VPC Endpoint Hour", "private endpoints"),
        ("AWS Key Management Service", "$1 per customer managed KMS key version", "keys and secrets"),
        ("Amazon FSx", "Lustre storage", "shared filesystem"),
        ("Amazon Simple Storage Service", "$0.023 per GB", "stored objects"),
        ("Compute Engine", "Balanced PD Capacity", "disks"),
        ("Kubernetes Engine", "Regional Kubernetes Clusters", "control plane"),
        ("Azure Kubernetes Service", "Standard Uptime SLA", "control plane"),
        ("Storage", "P10 LRS Disk Premium SSD Managed Disks", "disks"),
        ("AWS Glue", "crawler", "AWS Glue"),
    ],
)
def test_a_charge_is_an_item_by_its_text(service: str, text: str, item: str) -> None:
    assert item_of(service, text) == item


# ---- time


def test_the_forecast_repeats_usage_and_not_purchases(tmp_path: Path) -> None:
    bought = row(100.0, EC2, "a reservation", tags(), ChargeCategory="Purchase", ChargeFrequency="One-Time")
    found = report(tmp_path, MANAGEMENT, bought)
    assert found.month.forecast == pytest.approx(100.0 + 2.4 * 30)


def test_months_are_apart(tmp_path: Path) -> None:
    later = {"ChargePeriodStart": "2026-12-01T00:00:00Z", "ChargePeriodEnd": "2026-12-01T01:00:00Z"}
    found = report(tmp_path, MANAGEMENT, {**MANAGEMENT, **later}, month="2026-12")
    assert (found.month.ours, found.months) == (2.4, ("2026-11", "2026-12"))
    assert found.month.covered_hours == 1


def test_billed_and_effective_cost_are_not_mixed(tmp_path: Path) -> None:
    rows = [{**MANAGEMENT, "BilledCost": 10.0}]
    assert report(tmp_path, *rows).month.ours == 2.4
    assert report(tmp_path, *rows, basis="billed").month.ours == 10.0


def test_another_currency_is_not_compared(tmp_path: Path) -> None:
    found = report(tmp_path, {**MANAGEMENT, "BillingCurrency": "EUR"})
    assert found.compared == ()
    assert any("is in EUR" in note for note in found.notes)


def test_two_currencies_and_no_charges_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="several currencies"):
        report(tmp_path, MANAGEMENT, {**MANAGEMENT, "BillingCurrency": "EUR"})
    with pytest.raises(InputError, match="has no charges"):
        report(tmp_path)


def test_a_bill_without_our_tags_says_what_to_do(tmp_path: Path) -> None:
    found = report(tmp_path, row(5.0, EC2, "an instance"))
    assert found.month.ours == 0
    assert found.month.forecast is None
    assert any("activate the cost allocation tags" in note for note in found.notes)


def test_tables_have_a_limit() -> None:
    table: dict[str, float] = {}
    for number in range(MOST_KEYS + 10):
        add(table, f"run-{number}", 1.0)
    assert len(table) == MOST_KEYS + 1
    assert table[OTHERS] == 10


# ---- runs


def run(
    name: str, *, owner: str = "ada", workers: int = 1, held: float = 36_000, trained: float = 18_000
) -> RunInfo:
    pools = [
        {"name": "a10g", "per_node": 1, "usd_per_hour": 1.006},
        {"name": "h100", "per_node": 8, "usd_per_hour": 98.32},
    ]
    launch = {
        "at": "2026-11-01T02:00:00+00:00",
        "owner": owner,
        "workers": workers,
        "platform": {"name": "prod", "pools": pools},
    }
    price = 1.006 * workers
    start = {"at": launch["at"], "held_seconds": held, "trained_seconds": trained, "usd_per_hour": price}
    return RunInfo(
        name, f"runs/{name}", "finished", record={"launches": [launch], "starts": [start]}, launch=launch
    )


def test_runs_hold_hours_of_the_pool_with_their_price() -> None:
    (found,) = hours_of([run("night", workers=2)], "prod", "2026-11")
    assert found == RunHours("night", "ada", "a10g", 20.0, 10.0)
    assert hours_of([run("night")], "dev", "2026-11") == []
    assert hours_of([run("night")], "prod", "2026-10") == []


def test_idle_hours_are_billed_and_not_trained(tmp_path: Path) -> None:
    runs = hours_of([run("night"), run("day", owner="bob")], "prod", "2026-11")
    found = report(tmp_path, NODES, runs=runs)
    (hours,) = found.gpu_hours
    assert (hours.pool, hours.billed, hours.held, hours.trained, hours.idle) == ("a10g", 24, 20, 10, 14)
    assert hours.idle_cost == pytest.approx(14 * 1.006)
    assert {each.run: (each.by, round(each.cost, 2)) for each in found.runs} == {
        "night": ("share", 10.06),
        "day": ("share", 10.06),
    }
    assert dict(found.owners) == pytest.approx({"ada": 10.06, "bob": 10.06, "ml-platform@example.com": 4.024})
    assert sum(cost for _, cost in found.owners) == pytest.approx(found.month.ours)


def test_shares_never_exceed_the_bill(tmp_path: Path) -> None:
    runs = hours_of([run(f"run-{number}") for number in range(10)], "prod", "2026-11")
    found = report(tmp_path, NODES, runs=runs)
    assert sum(each.cost for each in found.runs) == pytest.approx(24 * 1.006)


def test_without_records_idle_hours_are_not_known(tmp_path: Path) -> None:
    found = report(tmp_path, NODES)
    assert found.gpu_hours[0].idle is None
    assert any("--storage" in note for note in found.notes)


# ---- the command


def test_the_command_prints_and_writes_all_of_it(trainfleet: Any, tmp_path: Path) -> None:
    runs = tmp_path / "runs" / "night"
    runs.mkdir(parents=True)
    (runs / "run.json").write_text(json.dumps({**run("night").record, "name": "night"}))
    file = write_csv(tmp_path / "bill.csv", [NODES, MANAGEMENT, row(5.0, "AWS CloudTrail", "events")])
    arguments = ["cost", "aws-prod", "--bill", str(file), "--storage", str(runs.parent)]
    page = tmp_path / "cost.md"
    done = trainfleet(*arguments, "--markdown", str(page))
    assert done.returncode == 0, done.stderr
    for text in (done.stdout, page.read_text()):
        for part in ("night", "a10g", "AWS CloudTrail", "Forecast", "budget of $20,000", "as estimated"):
            assert part in text, part
    document = json.loads(trainfleet(*arguments, "--json").stdout)
    assert document["bill"]["cost"] == pytest.approx(26.54)
    assert document["budget"]["spent"] == pytest.approx(26.544 / 20000)


def test_options_without_meaning_are_refused(trainfleet: Any) -> None:
    done = trainfleet("cost", "aws-prod", "--storage", "runs", "--month", "2026-11", "--usage", "usage.toml")
    assert done.returncode == 2
    for name in ("--storage", "--month", "--usage"):
        assert f"{name}: " in done.stderr
    assert trainfleet("cost", "aws-prod", "--month", "2026-13").returncode == 2
