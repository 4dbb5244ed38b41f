"""`trainfleet machines`: browse the machine catalogue."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from trainfleet.infra.catalog.machines import Machine

machines = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)

WIDTH = 100
"""Width of the table where stdout is not a terminal."""


@machines.command("machines")
def browse(
    cloud: Annotated[
        str | None,
        typer.Option(
            "--cloud", help="A cloud with machines of its own, for example aws.", show_default=False
        ),
    ] = None,
    accelerator: Annotated[
        str | None, typer.Option("--accelerator", help="For example H100 or A100-80GB.", show_default=False)
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", min=1, help="Accelerators per machine.", show_default=False)
    ] = None,
    rdma: Annotated[
        bool, typer.Option("--rdma", help="Only machines with a fabric for multi-node training.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document with every column and source.")
    ] = False,
) -> None:
    """Browse the machines that node pools can use, with dated list prices.

    [bold]Examples[/]

    trainfleet machines --cloud aws --accelerator H100

    trainfleet machines --rdma --count 8

    trainfleet machines --json
    """
    from trainfleet.console import out, print_json

    found = select(cloud, accelerator, count, rdma)
    if as_json:
        print_json({"machines": [_as_row(machine) for machine in found]})
    else:
        _print_machines(out(), found)


def select(cloud: str | None, accelerator: str | None, count: int | None, rdma: bool) -> list[Machine]:
    """The machines that match every filter, in the order of the catalogue.

    Raises:
        InputError: an unknown cloud or accelerator (with the nearest name), or nothing matches.
    """
    from trainfleet.errors import InputError, Problem
    from trainfleet.infra.catalog.machines import catalogue
    from trainfleet.suggestions import did_you_mean

    rows = list(catalogue())
    clouds = sorted({machine.cloud.value for machine in rows})
    if cloud is not None:
        if cloud.lower() not in clouds:
            raise InputError(
                "no such cloud in the catalogue",
                [Problem("--cloud", f"`{cloud}` is unknown", did_you_mean(cloud, clouds))],
            )
        rows = [machine for machine in rows if machine.cloud == cloud.lower()]
    if accelerator is not None:
        sold = {machine.accelerator.lower(): machine.accelerator for machine in rows if machine.accelerator}
        if accelerator.lower() not in sold:
            where = f"this catalogue of {cloud} has no" if cloud else "the catalogue has no"
            raise InputError(
                "no such accelerator",
                [
                    Problem(
                        "--accelerator", f"{where} `{accelerator}`", did_you_mean(accelerator, sold.values())
                    )
                ],
            )
        rows = [machine for machine in rows if machine.accelerator == sold[accelerator.lower()]]
    found = [
        machine
        for machine in rows
        if (count is None or machine.accelerators_per_node == count) and (not rdma or machine.rdma != "none")
    ]
    if not found:
        counts = sorted(
            {
                machine.accelerators_per_node
                for machine in rows
                if machine.accelerator and (not rdma or machine.rdma != "none")
            }
        )
        fix = f"counts: {', '.join(map(str, counts))}" if counts else "leave out --rdma"
        raise InputError("no machine matches", [Problem("", "no machine passes all filters", fix)])
    return found


def _as_row(machine: Machine) -> dict[str, Any]:
    from dataclasses import asdict

    return {**asdict(machine), "skypilot_label": machine.skypilot_label}


def _print_machines(console: Any, found: list[Machine]) -> None:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=0)
    for head in ("cloud", "machine", "GPUs", ">GiB", ">vCPU", ">RAM", "fabric", ">$/h", ">spot", "price of"):
        table.add_column(
            head.removeprefix(">"), justify="right" if head.startswith(">") else "left", no_wrap=True
        )
    for machine in found:
        gpus = f"{machine.accelerators_per_node} x {machine.accelerator}" if machine.accelerator else ""
        fabric = (
            f"{machine.rdma_nics} {machine.rdma.removeprefix('gpudirect-')}" if machine.rdma != "none" else ""
        )
        memory = f"{machine.gpu_memory_gib:.4g}" if machine.accelerator else ""
        known = (machine.usd_per_hour_on_demand, machine.usd_per_hour_spot) != (None, None)
        dated = str(machine.price_date or "undated") if known else "-"
        prices = (_usd(machine.usd_per_hour_on_demand), _usd(machine.usd_per_hour_spot), dated)
        table.add_row(
            machine.cloud,
            machine.instance_type,
            gpus,
            memory,
            str(machine.vcpu),
            f"{machine.memory_gib:g}",
            fabric,
            *prices,
        )
    if not console.is_terminal:
        console.width = WIDTH
    console.print(table)
    notes = [
        "GiB: memory of one GPU. $/h: list price of the machine in USD; "
        "spot prices have no date; - is not listed.",
        "Prices from:",
    ]
    regions: dict[str, dict[str, None]] = {}
    for machine in found:
        if machine.usd_per_hour_on_demand is None and machine.usd_per_hour_spot is None:
            continue
        regions.setdefault(f"{machine.cloud}: {price_source(machine)}", {})[machine.price_region] = None
    for note in [*notes, *(f"  {source} ({', '.join(names)})" for source, names in regions.items())]:
        console.print(f"[dim]{note}[/]", soft_wrap=True)


def price_source(machine: Machine) -> str:
    """The source of a machine's price in short: file, commit and date. `--json` has the full text."""
    parts = [part.strip() for part in machine.source.split(";")]
    for mark in ("on-demand: ", "price: ", "price incl. local SSD: ", "spot: "):
        for part in parts:
            if part.startswith(mark) and "none published" not in part:
                return re.split(r", | \((?!undated)| plus | median ", part.removeprefix(mark))[0]
    return machine.source


def _usd(price: float | None) -> str:
    return "-" if price is None else f"{price:,.2f}"
