"""Markdown tables, and text made safe for their cells."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; a heading that starts with `>` aligns its column to the right."""
    rule = ["---:" if title.startswith(">") else "---" for title in head]
    lines = [
        [title.removeprefix(">") for title in head],
        rule,
        *([cell(each) for each in row] for row in rows),
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def cell(text: str) -> str:
    """Text on one line, with the characters escaped that end a cell or start a tag."""
    spans = re.split(r"(`[^`]*`)", " ".join(text.split()).replace("|", "\\|"))
    return "".join(
        span if span.startswith("`") else re.sub(r"<(?=[A-Za-z/])", "&lt;", span) for span in spans
    )


def code(value: object) -> str:
    """A code span; empty for empty text."""
    return f"`{value}`" if str(value) else ""


def anchor(title: str) -> str:
    """The anchor that Markdown renderers give a heading."""
    kept = "".join(each for each in title.lower() if each.isalnum() or each in " _-")
    return kept.replace(" ", "-")
