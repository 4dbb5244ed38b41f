"""`trainfleet runs cost`: what the runs of a folder or store have cost."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainfleet.training.cli.options import Json, one_of
from trainfleet.training.cli.run_places import StorageUrls, list_urls, reading

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainfleet.training.runs.listing import RunInfo
    from trainfleet.training.runs.machine_time import MachineTime

GROUPS = ("owner", "launcher", "platform", "run", "month")


def cost_command(
    by: Annotated[str, typer.Option("--by", metavar="GROUP", help=f"Add up by {', '.join(GROUPS)}.")] = "run",
    month: Annotated[
        str | None,
        typer.Option("--month", metavar="YYYY-MM", help="Only machine time of this month (UTC)."),
    ] = None,
    storage: StorageUrls = None,
    as_json: Json = False,
) -> None:
    """Add up what runs have cost: the price of their machines times the time for which they were held.

    Waiting in a queue costs nothing. Idle: machines were held without training. Without `--storage` these are
    the runs that were launched from this folder.

    [bold]Examples[/]

    trainfleet runs cost

    trainfleet runs cost --by owner --month 2026-11 --storage s3://my-bucket/runs

    trainfleet runs cost --by month --storage s3://my-bucket/runs --storage gs://my-bucket/runs --json
    """
    from trainfleet.console import err, out, print_json
    from trainfleet.errors import InputError, Problem
    from trainfleet.training.launch.find_run import RUNS
    from trainfleet.training.runs.listing import list_folder

    one_of("--by", by, GROUPS)
    if month is not None and not re.fullmatch(r"\d{4}-(0[1-9]|1[0-2])", month):
        raise InputError("not a month", [Problem("--month", f"`{month}`", "such as 2026-11")])
    found = list_urls(storage) if storage else list_folder(RUNS, reading())
    unread = [each for each in found if each.state == "unknown"]
    document = cost_document(found, by, month)
    if as_json:
        print_json({**document, "unread": [each.home for each in unread]})
        return
    for each in unread:
        err().print(f"warning: {each.home}: {each.message}", markup=False, soft_wrap=True)
    for line in lines(document):
        out().print(line, markup=False, soft_wrap=True)


def cost_document(found: Sequence[RunInfo], by: str, month: str | None) -> dict[str, Any]:
    """The cost of runs by group, the most expensive first, and in all."""
    from trainfleet.training.runs.machine_time import machine_times, totals

    groups: dict[str, list[MachineTime]] = {}
    members: dict[str, set[str]] = {}
    for run in found:
        for time in machine_times(run.record, run.launch):
            for name, part in time.by_month().items():
                if month in (None, name):
                    group = name if by == "month" else KEYS[by](run, part)
                    groups.setdefault(group or "unknown", []).append(part)
                    members.setdefault(group or "unknown", set()).add(run.home)
    rows = [{by: name, "runs": len(members[name]), **totals(parts)} for name, parts in groups.items()]
    rows.sort(key=lambda row: (-(row["usd"] or 0.0), -row["held_seconds"], str(row[by])))
    everything = totals([part for parts in groups.values() for part in parts])
    count = len(set().union(*members.values()))
    return {"by": by, "month": month, "rows": rows, "total": {"runs": count, **everything}}


def _platform(run: RunInfo, time: MachineTime) -> str:  # noqa: ARG001 - one of KEYS
    launch = time.launch
    platform, place = launch.get("platform"), launch.get("place")
    if isinstance(platform, dict) and platform.get("name"):
        return str(platform["name"])
    if isinstance(place, dict) and place.get("context"):
        return str(place["context"])
    return str(launch.get("host") or "")


KEYS: dict[str, Callable[[Any, Any], str]] = {
    "owner": lambda _, time: str(time.launch.get("owner") or ""),
    "launcher": lambda _, time: str(time.launch.get("on") or ""),
    "platform": _platform,
    "run": lambda run, _: str(run.name),
}
"""The group of the machine time of a run's launch, by the value of `--by`."""


def lines(document: dict[str, Any]) -> Iterable[str]:
    """The cost as a table."""
    from trainfleet.training.runtime.progress import duration

    def usd(value: float | None) -> str:
        return "-" if value is None else f"{value:,.2f}"

    head = (document["by"].upper(), "RUNS", "QUEUED", "HELD", "IDLE", "USD", "IDLE USD")
    named = [(str(row[document["by"]]), row) for row in document["rows"]]
    rows = [head] + [
        (
            name,
            str(row["runs"]),
            *(duration(row[f"{key}_seconds"]) for key in ("queued", "held", "idle")),
            usd(row["usd"]),
            usd(row["idle_usd"]),
        )
        for name, row in [*named, ("in all", document["total"])]
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    for row in rows:
        yield "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))]
        )
    if hours := document["total"]["unpriced_hours"]:
        yield f"{hours:,.2f} of these hours are on machines whose price is unknown"
