"""Renders the diffs of several stacks as one document: a summary first, then each stack."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainfleet.rehearsal.diff.all_stacks import Report
from trainfleet.rehearsal.diff.change import Verb
from trainfleet.rehearsal.diff.model import Diff
from trainfleet.rehearsal.diff.render import MARKDOWN_LIMIT, as_markdown, as_table

if TYPE_CHECKING:
    from rich.console import Console

_HEADS = ("stack", "verdict", "+", "~", "±", "−", "lost or unknown", "cost")
_LEAST = 2_000
"""Characters below which a part of a stack's details is not worth showing."""


def _row(diff: Diff) -> list[str]:
    counts = [str(len(diff.of(verb)) or "") for verb in (Verb.CREATE, Verb.UPDATE, Verb.REPLACE, Verb.DELETE)]
    return [diff.stack, diff.verdict.value, *counts, diff.losses, diff.cost_difference]


def markdown_of(report: Report) -> str:
    """Return one comment of at most MARKDOWN_LIMIT characters: the summary, then the stacks, worst first.

    Details that do not fit are cut, and the comment says of which stacks.
    """
    head = f"### {count(report)}: {report.verdict}\n\n"
    if report.diffs:
        head += f"| {' | '.join(_HEADS)} |\n|{'---|' * len(_HEADS)}\n"
        head += "".join(f"| {' | '.join(_cell(cell) for cell in _row(diff))} |\n" for diff in report.diffs)
    head += "".join(f"\n**{each.stack}** failed: {_cell(each.error)}\n" for each in report.failed)
    end = "".join(f"<sub>Skipped {stack}: {_cell(why)}.</sub>  \n" for stack, why in report.skipped)
    space_left = MARKDOWN_LIMIT - len(head) - len(end) - 400
    parts, missing = [], list[str]()
    for index, diff in enumerate(sorted(report.diffs, key=lambda diff: -diff.exit_code)):
        shown = " open" if diff.exit_code == 3 else ""
        opening = f"\n<details{shown}><summary>{diff.stack}: {diff.verdict}</summary>\n\n"
        # What an earlier stack leaves of its share goes to the later ones.
        space = space_left // (len(report.diffs) - index) - len(opening) - len("\n</details>\n")
        text = as_markdown(diff, space) if space >= _LEAST else ""
        if not text or len(text) > space:
            missing.append(diff.stack)
            continue
        parts.append(f"{opening}{text}\n</details>\n")
        space_left -= len(parts[-1])
    if missing:
        names = ", ".join(f"`{name}`" for name in missing)
        parts.append(
            f"\n_The details of {names} do not fit into a comment: `trainfleet diff STACK` shows them._\n"
        )
    return head + "".join(parts) + f"\n{end}"


def text_of(report: Report) -> str:
    """Return the tables without colors, for a file."""
    from io import StringIO

    from rich.console import Console

    sink = StringIO()
    table_of(report, Console(file=sink, width=140, highlight=False))
    return sink.getvalue()


def table_of(report: Report, console: Console) -> None:
    """Print the summary and each stack on a console."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(
        *_HEADS, title=f"{count(report)}: {report.verdict}", title_justify="left", box=None, pad_edge=False
    )
    for diff in report.diffs:
        table.add_row(*(escape(cell) for cell in _row(diff)))
    console.print(table)
    for each in report.failed:
        console.print(f"[bold red]{escape(each.stack)} failed[/]: {escape(each.error)}", soft_wrap=True)
    for stack, why in report.skipped:
        console.print(f"[dim]{escape(f'Skipped {stack}: {why}.')}[/]", soft_wrap=True)
    for diff in report.diffs:
        console.print()
        as_table(diff, console)


def count(report: Report) -> str:
    """Return how many stacks are affected and skipped, in words."""
    total = len(report.diffs) + len(report.failed)
    return f"{total} affected {'stack' if total == 1 else 'stacks'}, {len(report.skipped)} skipped"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
