"""Renders the costs of a stack for a terminal, and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from trainfleet.cost.bill import largest
from trainfleet.cost.report import BillReport, CostReport, month_of
from trainfleet.infra.catalog.cost import Bill
from trainfleet.markdown import code_span, plain_text, printable

if TYPE_CHECKING:
    from rich.console import Console

_ROWS = 15
_WIDTH = 110


class Table(NamedTuple):
    """A table; heads that start with `>` are aligned to the right."""

    title: str
    heads: tuple[str, ...]
    rows: list[tuple[str, ...]]


def tables(report: CostReport) -> Iterator[Table]:
    """Yield the tables in order: estimate and plan, the bill against them, then whose it is."""
    yield _estimates(report)
    if report.bill is not None:
        yield from _bill_tables(report.bill)


def summary(report: CostReport) -> list[str]:
    """Return the sums and shares as sentences."""
    lines = [_range("Estimate of the spec", report.estimate)]
    if report.plan is not None:
        lines.append(_range(f"Plan ({report.plan_from})", report.plan))
    bill = report.bill
    if bill is not None:
        money = f"{bill.currency} {bill.month.ours:,.2f}"
        until = f" until {bill.month.end:%Y-%m-%d %H:%M} UTC" if bill.month.end else ""
        lines.append(f"Bill of {bill.month.name}{until}: {money} ({bill.basis} cost)")
        if bill.month.forecast is not None:
            lines.append(f"Forecast for the whole month: {bill.currency} {bill.month.forecast:,.2f}")
    if report.budget:
        lines.append(_budget(report, report.budget))
    return lines


def _range(what: str, bill: Bill) -> str:
    low, high = month_of(bill.min_usd_per_hour), month_of(bill.max_usd_per_hour)
    return f"{what}: ${low:,.0f} a month always running, ${high:,.0f} with all pools at their largest"


def _budget(report: CostReport, budget: float) -> str:
    bill = report.bill
    if bill is not None and bill.currency == "USD":
        spent = report.share_of_budget(bill.month.ours) or 0.0
        parts = [f"{spent:.0%} spent"]
        if (share := report.share_of_budget(bill.month.forecast)) is not None:
            parts.append(f"{share:.0%} at the end of the month")
    else:
        of = report.plan or report.estimate
        parts = [
            f"{month_of(of.min_usd_per_hour) / budget:.0%} always running",
            f"{month_of(of.max_usd_per_hour) / budget:,.0%} with all pools at their largest",
        ]
    return f"Of the budget of ${budget:,.0f} a month: {', '.join(parts)}"


def _estimates(report: CostReport) -> Table:
    sides = [report.estimate, *([report.plan] if report.plan else [])]
    names = dict.fromkeys(part.name for bill in sides for part in bill.parts)
    rows: list[tuple[str, ...]] = []
    for name in names:
        parts = [next((part for part in bill.parts if part.name == name), None) for bill in sides]
        what = next(part.what for part in parts if part is not None)
        cells = []
        for part in parts:
            if part is None:
                cells.append("–")
            elif part.min_usd_per_hour is None or part.max_usd_per_hour is None:
                cells.append("no price known")
            else:
                low, high = month_of(part.min_usd_per_hour), month_of(part.max_usd_per_hour)
                cells.append(f"{low:,.0f}" if low == high else f"{low:,.0f} – {high:,.0f}")
        rows.append((name, what, *cells))
    heads = ("item", "what", ">spec", *([">plan"] if report.plan else []))
    return Table("List prices, USD a month", heads, rows)


def _bill_tables(bill: BillReport) -> Iterator[Table]:
    if bill.compared:
        rows: list[tuple[str, ...]] = []
        for each in bill.compared:
            known = each.least is not None and each.most is not None
            estimate = f"{each.least:,.2f} – {each.most:,.2f}" if known else "–"
            rows.append((each.item, f"{each.billed:,.2f}", estimate, each.verdict))
        hours = bill.month.covered_hours
        yield Table(f"Bill and estimate, {hours:,.0f} hours", ("item", ">bill", ">estimate", ""), rows)
    for title, table in (
        ("By service", largest(bill.month.by["service"])),
        ("By pool", largest(bill.month.by["pool"])),
        ("By owner", list(bill.owners)),
        ("By category of the charge", largest(bill.month.by["category"])),
    ):
        if table and (len(table) > 1 or title != "By category of the charge"):
            yield Table(title, (title.split()[1], f">{bill.currency}"), _cut(table))
    if bill.runs:
        run_rows: list[tuple[str, ...]] = [
            (
                each.run,
                each.owner or "–",
                each.pool or "–",
                "–" if each.gpu_hours is None else f"{each.gpu_hours:,.1f}",
                f"{each.cost:,.2f}",
                each.by,
            )
            for each in bill.runs[:_ROWS]
        ]
        yield Table("By run", ("run", "owner", "pool", ">GPU hours", f">{bill.currency}", "by"), run_rows)
    if bill.gpu_hours:
        yield Table(
            "GPU hours",
            ("pool", ">billed", ">held by runs", ">trained", ">idle", f">idle {bill.currency}"),
            [
                (
                    each.pool,
                    *(_hours(value) for value in (each.billed, each.held, each.trained, each.idle)),
                    "–" if each.idle_cost is None else f"{each.idle_cost:,.2f}",
                )
                for each in bill.gpu_hours
            ],
        )
    if bill.month.untagged:
        title = "Untagged, by service"
        yield Table(title, ("service", f">{bill.currency}"), _cut(largest(bill.month.untagged_by)))
    if bill.month.others:
        yield Table("Other platforms", ("platform", f">{bill.currency}"), _cut(largest(bill.month.others)))


def _hours(value: float | None) -> str:
    return "–" if value is None else f"{value:,.1f}"


def _cut(table: list[tuple[str, float]]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [(name, f"{cost:,.2f}") for name, cost in table[:_ROWS]]
    if rest := table[_ROWS:]:
        rows.append((f"{len(rest)} more", f"{sum(cost for _, cost in rest):,.2f}"))
    return rows


def notes(report: CostReport) -> list[str]:
    """Return what the sums leave out."""
    found = [*report.notes, *(report.bill.notes if report.bill else ())]
    bill = report.plan or report.estimate
    if bill.unknown:
        found.append(f"No price is known for {', '.join(bill.unknown)}: the sums are too low by that amount.")
    if bill.by_usage:
        found.append(f"Billed by use, and not estimated without --usage: {', '.join(bill.by_usage)}.")
    return found


# ---- formats


def as_table(report: CostReport, console: Console) -> None:
    """Print the costs on a console."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table as Grid

    if not console.is_terminal:
        console.width = max(console.width, _WIDTH)
    console.print(f"[bold]{escape(report.stack)}[/] [dim]platform {escape(report.platform)}[/]")
    for line in summary(report):
        console.print(line, markup=False, soft_wrap=True)
    for each in tables(report):
        grid = Grid(
            title=each.title,
            title_justify="left",
            title_style="bold",
            box=box.SIMPLE_HEAD,
            show_edge=False,
            pad_edge=False,
        )
        for head in each.heads:
            grid.add_column(head.removeprefix(">"), justify="right" if head.startswith(">") else "left")
        for row in each.rows:
            grid.add_row(*(escape(printable(cell)) for cell in row))
        console.print(grid)
    for note in notes(report):
        console.print(f"[dim]{escape(note)}[/]", soft_wrap=True)


def as_markdown(report: CostReport) -> str:
    """Return the costs as Markdown."""
    parts = [
        f"## Costs of {code_span(report.stack)}\n\n",
        *(f"- {plain_text(line)}\n" for line in summary(report)),
    ]
    for each in tables(report):
        heads = " | ".join(head.removeprefix(">") for head in each.heads)
        rule = "|".join("--:" if head.startswith(">") else "---" for head in each.heads)
        parts.append(f"\n### {each.title}\n\n| {heads} |\n|{rule}|\n")
        parts += ["| " + " | ".join(map(plain_text, row)) + " |\n" for row in each.rows]
    if found := notes(report):
        parts += ["\n", *(f"<sub>{plain_text(note)}</sub>  \n" for note in found)]
    return "".join(parts)
