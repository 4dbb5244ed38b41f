"""Renders a diff as a Rich table or as Markdown for a pull request comment; see html_page.py for HTML.

All formats have the same content in the same order: blast radius, deleted, replaced, updated and created
resources, cost, policies, settings.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from io import StringIO
from typing import TYPE_CHECKING

from trainfleet.rehearsal.diff.change import Verb
from trainfleet.rehearsal.diff.model import Diff, Verdict
from trainfleet.rehearsal.diff.presentation import (
    DRIFT,
    TITLES,
    CostRow,
    Group,
    arrow,
    cost_notes,
    cost_rows,
    drift_rows,
    groups,
    short,
    sides,
    some,
)
from trainfleet.rehearsal.diff.sections import sections as tables

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

MARKDOWN_LIMIT = 60_000
"""GitHub and GitLab limit a comment to 65,536 characters; this leaves space for text added by a bot."""
LONGEST_CELL = 800
"""A condition of access is longer than 400 characters, and what changed may be at its end."""
COLOURS = {
    Verdict.NONE: "green",
    Verdict.CHANGE: "yellow",
    Verdict.INCOMPLETE: "red",
    Verdict.UNKNOWN: "red",
    Verdict.ACCESS: "red",
    Verdict.DESTRUCTIVE: "red",
}
SIGNS = {Verb.CREATE: "+", Verb.UPDATE: "~", Verb.REPLACE: "±", Verb.DELETE: "−"}
_WIDTH = 120
"""Table width without a terminal."""
_ROWS = 12
"""Maximum number of properties per resource in the table and in Markdown."""


def as_text(diff: Diff) -> str:
    """Return the table without colors, for a file."""
    from rich.console import Console

    sink = StringIO()
    as_table(diff, Console(file=sink, width=140, highlight=False))
    return sink.getvalue()


def as_table(diff: Diff, console: Console) -> None:
    """Print the diff on a console."""
    from rich.markup import escape

    if not console.is_terminal:
        console.width = max(console.width, _WIDTH)
    colour = COLOURS[diff.verdict]
    console.print(
        f"[bold {colour}]{diff.verdict.upper()}[/] [bold]{escape(diff.stack)}[/]"
        f" [dim]{escape(sides(diff))}[/]",
        soft_wrap=True,
    )
    console.print(f"[{colour}]{escape(diff.blast_radius)}[/]", soft_wrap=True)
    if diff.changes:
        console.print(_changes_table(diff))
    if diff.drift:
        table = _grid(DRIFT, "resource", "what")
        for name, token, lines in drift_rows(diff):
            _row(table, f"{escape(name)}\n[dim]{escape(token)}[/]", escape("\n".join(lines)))
        console.print(table)
    if (costs := cost_rows(diff)) and any(cost.changed for cost in costs):
        console.print(_cost_table(costs))
    if diff.newly_failing:
        table = _grid("Policies that newly fail", "policy", "level", "resource", "message")
        for failing in diff.newly_failing:
            cells = (failing.policy, failing.level, failing.resource, short(failing.message, 300))
            _row(table, *map(escape, cells))
        console.print(table)
    for part in tables(diff):
        table = _grid(part.title, *part.heads)
        for row in part.rows:
            table.add_row(*(escape(short(cell, LONGEST_CELL)) for cell in row))
        console.print(table)
    if diff.spec:
        table = _grid("Settings", "setting", "before", "after", "where")
        for change in diff.spec[:60]:
            _row(
                table,
                *(escape(cell) for cell in (change.path, short(change.old), short(change.new), change.where)),
            )
        console.print(table)
    for note in notes_of(diff):
        console.print(f"[dim]{escape(note)}[/]", soft_wrap=True)


def _cost_table(costs: Iterable[CostRow]) -> Table:
    from rich.markup import escape

    table = _grid("Cost in USD per hour", "part", "what", ">before", ">after", ">per month", "price of")
    for cost in costs:
        if cost.changed or cost.name.startswith("all"):
            cells = (cost.name, cost.what, cost.before, cost.after, cost.month, cost.price)
            _row(table, *map(escape, cells))
    return table


def _grid(title: str, *heads: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
    )
    for head in heads:
        table.add_column(
            head.removeprefix(">"), justify="right" if head.startswith(">") else "left", overflow="fold"
        )
    return table


def _row(table: Table, *cells: str) -> None:
    """Add a row; a type such as `pkg:m:Kind` contains no emoji."""
    from rich.text import Text

    table.add_row(*(Text.from_markup(cell, emoji=False) for cell in cells))


def _changes_table(diff: Diff) -> Table:
    from rich.markup import escape

    table = _grid("Changes", "", "resource", "what")
    for verb in TITLES:
        for group in groups(diff, verb):
            colour = (
                "red"
                if group.first.destructive or group.first.uncertain
                else {Verb.CREATE: "green", Verb.UPDATE: "yellow"}.get(verb, "magenta")
            )
            count = f" ×{len(group.changes)}" if len(group.changes) > 1 else ""
            lines = [f"[bold red]{mark}[/] " if (mark := group.mark) else ""]
            lines[0] += f"{verb}" + (
                f", forced by [bold]{escape(some(group.first.forced_by))}[/]" if group.first.forced_by else ""
            )
            lines += [escape(f"  {each.path}: {arrow(each)}") for each in group.properties[:_ROWS]]
            lines += (
                [f"  and {len(group.properties) - _ROWS} more properties"]
                if len(group.properties) > _ROWS
                else []
            )
            lines += [f"  [dim]{escape(group.fate)}[/]"] if group.fate else []
            _row(
                table,
                f"[{colour}]{SIGNS[verb]}[/]",
                f"{escape(some(group.names, 5))}\n[dim]{escape(group.type)}{count}[/]",
                "\n".join(lines),
            )
    return table


def notes_of(diff: Diff) -> list[str]:
    notes = [*(f"Incomplete: {why}." for why in diff.incomplete), *diff.notes, *cost_notes(diff)]
    if not diff.policies_ran:
        notes.append("No policies were checked: no policy pack in the head or the preview.")
    kept = ", base taken from the cache" if diff.base_from_cache else ""
    return [*notes, f"{diff.unchanged} resources are unchanged. {diff.seconds:.1f} s{kept}."]


# ---- Markdown


def as_markdown(diff: Diff, limit: int = MARKDOWN_LIMIT) -> str:
    """Return the diff as a comment. If it is too long, truncate the end and add a note."""
    blocks = [
        f"### `{diff.stack}`: {diff.verdict}\n\n**{_plain(diff.blast_radius)}**\n\n{_plain(sides(diff))}\n"
    ]
    for verb, title in TITLES.items():
        if found := groups(diff, verb):
            blocks.append(f"\n#### {title}\n\n| | resource | what |\n|---|---|---|\n")
            blocks += [_markdown_row(verb, group) for group in found]
    if diff.drift:
        blocks.append(f"\n#### {DRIFT}\n\n| resource | what |\n|---|---|\n")
        blocks += [
            _cells(f"`{name}`<br><sub>{token}</sub>", "<br>".join(_code(line) for line in lines))
            for name, token, lines in drift_rows(diff)
        ]
    if (rows := cost_rows(diff)) and any(row.changed for row in rows):
        blocks.append(
            "\n#### Cost in USD per hour\n\n| part | what | before | after | per month | price of"
            " |\n|---|---|--:|--:|--:|---|\n"
        )
        shown = [row for row in rows if row.changed or row.name.startswith("all")]
        blocks += [_cells(row.name, row.what, row.before, row.after, row.month, row.price) for row in shown]
    if diff.newly_failing:
        blocks.append(
            "\n#### Policies that newly fail\n\n| policy | level | resource | message |\n|---|---|---|---|\n"
        )
        blocks += [
            _cells(f"`{each.policy}`", each.level, f"`{each.resource}`", _plain(short(each.message, 400)))
            for each in diff.newly_failing
        ]
    for part in tables(diff):
        heads, rule = " | ".join(part.heads), "---|" * len(part.heads)
        blocks.append(f"\n#### {part.title}\n\n| {heads} |\n|{rule}\n")
        blocks += [_cells(*(_plain(short(cell, LONGEST_CELL)) for cell in row)) for row in part.rows]
    if diff.spec:
        blocks.append("\n#### Settings\n\n| setting | before | after | where |\n|---|---|---|---|\n")
        blocks += [
            _cells(f"`{each.path}`", _code(short(each.old)), _code(short(each.new)), each.where)
            for each in diff.spec
        ]
    end = "\n" + "\n".join(f"<sub>{_plain(note)}</sub>  " for note in notes_of(diff)) + "\n"
    return _within(blocks, end, limit)


def _within(blocks: list[str], end: str, limit: int) -> str:
    text, space = "", limit - len(end) - 200
    for index, block in enumerate(blocks):
        if len(text) + len(block) > space:
            left = sum(1 for each in blocks[index:] if each.startswith("|"))
            text += (
                f"\n_{left} more rows do not fit into a comment: `trainfleet diff … --format html` shows"
                " them all._\n"
            )
            break
        text += block
    return text + end


def _markdown_row(verb: Verb, group: Group) -> str:
    count = f" ×{len(group.changes)}" if len(group.changes) > 1 else ""
    names = "<br>".join(f"`{name}`" for name in group.names[:8]) + (
        f"<br>and {len(group.names) - 8} more" if len(group.names) > 8 else ""
    )
    what = [f"**{group.mark}**"] if group.mark else []
    if group.first.forced_by:
        what.append("forced by " + ", ".join(f"`{path}`" for path in group.first.forced_by))
    what += [f"`{each.path}`: {_code(arrow(each))}" for each in group.properties[:_ROWS]]
    if len(group.properties) > _ROWS:
        what.append(f"and {len(group.properties) - _ROWS} more properties")
    if group.fate:
        what.append(group.fate)
    return _cells(SIGNS[verb], f"{names}<br><sub>{group.type}{count}</sub>", "<br>".join(what))


def _cells(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |\n"


def _code(text: str) -> str:
    fence = "``" if "`" in text else "`"
    return f"{fence}{text}{fence}"


def _plain(text: str) -> str:
    return html.escape(text, quote=False).replace("*", "\\*").replace("_", "\\_")
