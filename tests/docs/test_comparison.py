"""Comparisons are dated, say what the other does better, and name a source for each row."""

from __future__ import annotations

import datetime
import re

import pytest
import yaml

from tools.pages import ROOT

FOLDER = ROOT / "docs" / "comparison"
PAGES = sorted(page.name for page in FOLDER.glob("*.md") if page.name != "README.md")
SECTIONS = ["What it does better", "What Trainfleet does in addition", "Side by side", "Choose"]
MOVING = {"MicrosoftDocs/azure-docs"}
"""Repositories whose pages are read at their branch: a documentation that is published from it."""


@pytest.mark.parametrize("name", PAGES)
def test_a_comparison_is_dated_and_sourced(name: str) -> None:
    _, head, text = (FOLDER / name).read_text(encoding="utf-8").split("---\n", 2)
    looked_at = yaml.safe_load(head)["looked_at"]
    assert datetime.date(2026, 1, 1) < looked_at <= datetime.date.today()
    assert f"]({name}) | " in (FOLDER / "README.md").read_text()
    assert re.search(
        rf"\]\({re.escape(name)}\) .*\| {looked_at} \|$", (FOLDER / "README.md").read_text(), re.M
    )
    assert re.findall(r"^## (.*)$", text, re.M) == SECTIONS
    better = text.partition(f"## {SECTIONS[0]}\n")[2].partition("\n## ")[0]
    assert better.count("\n- ") >= 3
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")][1:]
    assert len(rows) >= 4
    assert [row[0] for row in rows if len(row) != 4 or "](https://" not in row[3]] == []


@pytest.mark.parametrize("name", PAGES)
def test_a_link_to_a_file_on_github_names_its_commit(name: str) -> None:
    links = re.findall(r"https://github\.com/([\w.-]+/[\w.-]+)/blob/([^/]+)/", (FOLDER / name).read_text())
    assert [
        link for link in links if link[0] not in MOVING and not re.fullmatch(r"[0-9a-f]{40}", link[1])
    ] == []


@pytest.mark.parametrize("name", PAGES)
def test_sources_are_projects_and_not_package_registries(name: str) -> None:
    """What a registry shows of a version can be a mirror's, and says less than the project's own tag."""
    hosts = set(re.findall(r"https://([^/)\s]+)", (FOLDER / name).read_text()))
    assert [host for host in hosts if re.search(r"pypi|npmjs|crates|registry|rubygems", host)] == []
