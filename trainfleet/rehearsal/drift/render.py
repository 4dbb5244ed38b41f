"""Renders drift as a table for a terminal, or as Markdown: the body of one issue that CI opens, updates and
closes.

The first line of the Markdown has the fingerprint by which the issue is found again, and the digest that
tells whether the drift is still the same.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from typing import TYPE_CHECKING

from trainfleet.markdown import code_span, plain_text, printable, with_code, without_ticks
from trainfleet.rehearsal.diff.change import Property
from trainfleet.rehearsal.diff.presentation import arrow, short, some
from trainfleet.rehearsal.drift.model import (
    DriftedProperty,
    DriftedResource,
    DriftReport,
    DriftReports,
    NextUp,
    Severity,
)

if TYPE_CHECKING:
    from rich.console import Console

MARKDOWN_LIMIT = 60_000
"""GitHub and GitLab limit an issue to 65,536 characters; this leaves space for text added by a bot."""
_ROWS = 12
"""Maximum number of properties per resource."""
_WIDTH = 120
_COLOURS = {Severity.HIGH: "red", Severity.MEDIUM: "yellow", Severity.LOW: "cyan"}


def headline(report: DriftReport) -> str:
    """Return the result in one line: counts, the most urgent severity, deleted and lost."""
    if not report.resources:
        return f"no drift in {report.checked} resources" + (
            f", {len(report.expected)} differ as expected" if report.expected else ""
        )
    gone = [each.name for each in report.resources if each.deleted]
    replaced = [each.name for each in report.resources if each.next_up is NextUp.REPLACE]
    parts = [f"{len(report.resources)} of {report.checked} resources drifted, severity {report.severity}"]
    parts += [f"DELETED: {some(gone)}"] if gone else []
    parts += [f"the next up REPLACES {some(replaced)}"] if replaced else []
    parts += [f"{len(report.access)} changes of access"] if report.access else []
    return "; ".join(parts)


def _what(each: DriftedResource) -> list[str]:
    lines = ["deleted"] if each.deleted else [] if each.properties else ["changed; Pulumi shows no values"]
    shown = [one for one in each.properties if not one.expected] or list(each.properties)
    lines += [f"{one.path}: {_values(one)}" for one in shown[:_ROWS]]
    return lines + ([f"and {len(shown) - _ROWS} more properties"] if len(shown) > _ROWS else [])


def _values(one: DriftedProperty) -> str:
    return arrow(Property(one.path, one.state, one.cloud))


def _loss(each: DriftedResource) -> str:
    if each.loss is None:
        return "not known what is lost" if each.deleted or each.next_up is NextUp.REPLACE else ""
    return f"{', '.join(each.loss.kinds)}: {each.loss.why}"


def _next(each: DriftedResource) -> str:
    return f"{each.next_up}{'' if each.certain else ' (by rule)'}"


# ---- terminal


def as_table(report: DriftReport, console: Console) -> None:
    """Print a report on a console."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table
    from rich.text import Text

    if not console.is_terminal:
        console.width = max(console.width, _WIDTH)
    colour = _COLOURS[report.severity] if report.severity else "green"
    word = "DRIFT" if report.resources else "NO DRIFT"
    console.print(f"[bold {colour}]{word}[/] [bold]{escape(report.stack)}[/] [dim]{escape(report.source)}[/]")
    console.print(f"[{colour}]{escape(headline(report))}[/]", soft_wrap=True)
    if report.resources:
        table = Table(
            "severity",
            "resource",
            "state → cloud",
            "next up",
            "repair",
            box=box.SIMPLE_HEAD,
            show_edge=False,
            pad_edge=False,
        )
        for column in table.columns:
            column.overflow = "fold"
        for each in report.resources:
            lost = f" Lost: {_loss(each)}." if each.deleted and _loss(each) else ""
            cells = (
                f"[{_COLOURS[each.severity]}]{each.severity}[/]",
                f"{escape(each.name)}\n[dim]{escape(each.token)}[/]",
                escape(printable("\n".join(_what(each)))),
                escape(_next(each)),
                escape(f"{each.repair.replace('`', '')}.{lost}"),
            )
            table.add_row(*(Text.from_markup(cell, emoji=False) for cell in cells))
        console.print(table)
    took = f"{report.checked} resources were read in {report.seconds:.0f} s."
    for line in (*_access(report), *_expected(report), *_notes(report), took):
        console.print(f"[dim]{escape(printable(line))}[/]", soft_wrap=True)


def _access(report: DriftReport) -> list[str]:
    return [f"Access {each.change}: {each.text}" for each in report.access]


def _expected(report: DriftReport) -> list[str]:
    """Return a line for each resource that differs as expected."""
    found = []
    for each in report.expected:
        paths = without_ticks(some([one.path for one in each.properties]))
        found.append(f"Expected: {each.name}{f' ({paths})' if paths else ' (deleted)'}: {each.expected}.")
    return found


def _notes(report: DriftReport) -> list[str]:
    notes = [f"Incomplete: {why}." for why in report.incomplete]
    if report.follows:
        notes.append(
            f"{len(report.follows)} resources depend on what drifted, and the repair changes them too:"
            f" {some(report.follows)}."
        )
    if report.pending:
        notes.append(
            f"The program has {len(report.pending)} changes that are not applied, and the next up makes them"
            f" too: {some(report.pending)}."
        )
    if report.resources:
        notes.append(
            "`pulumi up` alone compares with the state and does not see drift: restore with `--refresh`."
        )
    return [*notes, *report.notes]


# ---- Markdown


def as_markdown(found: DriftReport | DriftReports, limit: int = MARKDOWN_LIMIT) -> str:
    """Return the body of an issue. What does not fit is cut, and the body says so."""
    marks = f"<!-- {found.fingerprint} digest:{found.digest} -->\n"
    if isinstance(found, DriftReport):
        return marks + _within(_blocks(found, "##"), limit - len(marks))
    drifted = [each for each in found.reports if each.resources]
    blocks = [f"## Drift of {found.project}: {len(drifted)} of {len(found.reports)} stacks\n\n"]
    blocks.append("| stack | severity | what |\n|---|---|---|\n")
    blocks += [
        _cells(code_span(each.stack), each.severity or "–", plain_text(headline(each)))
        for each in found.reports
    ]
    blocks += [
        _cells(code_span(each.stack), "**error**", plain_text(short(each.why, 400))) for each in found.failed
    ]
    blocks += [
        _cells(code_span(each.stack), "skipped", plain_text(short(each.why, 200))) for each in found.skipped
    ]
    order = list(Severity)
    for each in sorted(drifted, key=lambda one: order.index(one.severity or Severity.LOW)):
        blocks += ["\n", *_blocks(each, "###")]
    return marks + _within(blocks, limit - len(marks))


def _blocks(report: DriftReport, level: str) -> list[str]:
    title = (
        f"Drift of `{report.project}/{report.stack}`" if report.resources else f"No drift in `{report.stack}`"
    )
    blocks = [f"{level} {title}\n\n**{plain_text(headline(report))}**\n\n{plain_text(report.source)}\n"]
    if report.resources:
        heads = ("severity", "resource", "state → cloud", "next `up --refresh`", "lost", "repair")
        blocks.append(f"\n| {' | '.join(heads)} |\n|{'---|' * len(heads)}\n")
        for each in report.resources:
            name = f"{code_span(each.name)}<br><sub>{plain_text(each.token)}</sub>"
            what = "<br>".join(code_span(line) for line in _what(each))
            loud = "**high**" if each.severity is Severity.HIGH else each.severity
            blocks.append(
                _cells(loud, name, what, _next(each), plain_text(_loss(each)), with_code(each.repair))
            )
    if report.access:
        blocks.append("\n| access | what |\n|---|---|\n")
        blocks += [_cells(each.change, plain_text(each.text)) for each in report.access]
    if report.resources:
        blocks.append(_commands(report))
    blocks += [f"\n<sub>{with_code(line)}</sub>  " for line in (*_expected(report), *_notes(report))]
    return [*blocks, "\n"]


def _commands(report: DriftReport) -> str:
    """Return how to restore, keep or accept. Targets leave out what the program changes otherwise."""
    command = f"pulumi up --refresh --stack {shlex.quote(report.stack)}"
    if report.pending:
        restored = [each for each in report.resources if each.next_up is not NextUp.NOTHING]
        command += "".join(f" \\\n  --target {shlex.quote(each.urn)}" for each in restored[:20])
        command += " \\\n  --target-dependents" if _replaced(report) else ""
    warning = ""
    if names := _replaced(report):
        warning = f"**This replaces {', '.join(map(code_span, names))}: read what is lost first.**\n\n"
    restore = f"\nTo restore what the program says:\n\n{warning}```sh\n{command}\n```\n\n"
    refresh = f"`pulumi refresh --stack {report.stack}`"
    keep = f"To keep what is in the cloud: change the program to it, then {refresh}."
    accept = "To accept it for a while: a `[[drift]]` row in `rehearsal.toml` with a reason and a date."
    return f"{restore}{keep} {accept}\n"


def _replaced(report: DriftReport) -> list[str]:
    return [each.name for each in report.resources if each.next_up in (NextUp.REPLACE, NextUp.UNKNOWN)]


def _within(blocks: Iterable[str], limit: int) -> str:
    blocks, text = list(blocks), ""
    for index, block in enumerate(blocks):
        if len(text) + len(block) > limit - 200:
            left = sum(1 for each in blocks[index:] if each.startswith("|"))
            return f"{text}\n_{left} more rows do not fit: `trainfleet drift --json` has them all._\n"
        text += block
    return text


def _cells(*cells: str) -> str:
    """Return a row; a bar in code is escaped too."""
    return "| " + " | ".join(re.sub(r"(?<!\\)\|", r"\\|", cell) for cell in cells) + " |\n"
