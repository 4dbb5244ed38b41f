"""Writes a diff, or the diffs of several stacks, in one of the formats to a file or to stdout."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from trainfleet.console import out, print_json
from trainfleet.files import write_whole
from trainfleet.rehearsal.diff import render_all
from trainfleet.rehearsal.diff.all_stacks import Report
from trainfleet.rehearsal.diff.html_page import as_html, html_of
from trainfleet.rehearsal.diff.model import Diff
from trainfleet.rehearsal.diff.policy_formats import junit_of, sarif_of
from trainfleet.rehearsal.diff.render import as_markdown, as_table, as_text

Result = Diff | Report


def write(found: Result, form: str, output: Path | None) -> None:
    """Write to a file atomically, or to stdout."""
    if output is None and form == "table":
        if isinstance(found, Diff):
            as_table(found, out())
        else:
            render_all.table_of(found, out())
    elif output is None and form == "json":
        print_json(found.as_json())
    else:
        text = text_of(found, form)
        if output is None:
            typer.echo(text, nl=False)
        else:
            write_whole(output, text)


def text_of(found: Result, form: str) -> str:
    """Return the text in a format."""
    diffs = [found] if isinstance(found, Diff) else list(found.diffs)
    if form == "sarif":
        return json.dumps(sarif_of(diffs), indent=2) + "\n"
    if form == "junit":
        return junit_of(diffs)
    if form == "json":
        return json.dumps(found.as_json(), indent=2, default=str) + "\n"
    if isinstance(found, Diff):
        return {"table": as_text, "markdown": as_markdown, "html": as_html}[form](found)
    if form == "html":
        return html_of(found)
    return {"table": render_all.text_of, "markdown": render_all.markdown_of}[form](found)
