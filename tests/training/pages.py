"""Reads the page of a report: whether its tags are closed, what a browser fetches, and what Plotly draws."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from trainfleet.training.report import write_report

VOID = {"meta", "br"}


class Balanced(HTMLParser):
    """Fails at a closing tag that was not opened; collects every address that a browser fetches."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


def written(run_dir: Path) -> str:
    write_report(run_dir, run_dir / "report.html")
    return (run_dir / "report.html").read_text()


def figures(page: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The charts of a page as passed to Plotly: lines by name, and the layout."""
    found, decoder = [], json.JSONDecoder()
    for call in re.finditer(r'Plotly\.newPlot\(\s*"[^"]+",\s*', page):
        lines, end = decoder.raw_decode(page, call.end())
        layout, _ = decoder.raw_decode(page, page.index("{", end))
        found.append(({line["name"]: line for line in lines}, layout))
    return found
