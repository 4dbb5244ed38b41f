"""Every command that a page shows is run, or says why not; every link leads somewhere; every figure has one
source.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tools import figures
from tools.pages import ROOT, Block, blocks, pages, script

PAGES = [pytest.param(page, id=str(page.relative_to(ROOT))) for page in pages()]
LINK = re.compile(r"!?\[[^\]]*\]\((?P<target>[^)\s]+)\)")
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


def heading_anchors(text: str) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    plain = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    titles = re.findall(r"^#+ +(.*)$", plain, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def unmarked(page: Path, found: list[Block]) -> list[str]:
    """Blocks without a language, and command blocks that nobody runs without saying why."""
    wrong = []
    for block in found:
        where = f"{page.name}:{block.line}"
        if not block.language:
            wrong.append(f"{where}: the block has no language")
        if block.is_command and not block.kind:
            wrong.append(f"{where}: mark the block with `<!-- run: ... -->` or `<!-- not run: REASON -->`")
        if block.kind == "not run" and len(block.value.split()) < 3:
            wrong.append(f"{where}: say why the block is not run")
        runner = block.value.split(",")[0].strip()
        if block.kind == "run" and runner != "ci" and not _runs(runner, page):
            wrong.append(f"{where}: {runner} does not exist or does not name {page.name}")
    return wrong


def _runs(runner: str, page: Path) -> bool:
    file = ROOT / runner
    return file.is_file() and page.name in file.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_every_command_block_says_how_it_is_run(page: Path) -> None:
    assert unmarked(page, blocks(page.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    broken = []
    text = CODE.sub("", page.read_text(encoding="utf-8"))
    for found in LINK.finditer(text):
        target, _, anchor = found["target"].partition("#")
        if "://" in target or target.startswith("mailto:"):
            continue
        file = (page.parent / target).resolve() if target else page
        if not file.exists():
            broken.append(f"{found['target']}: no such file")
        elif (
            anchor
            and file.suffix == ".md"
            and anchor not in heading_anchors(file.read_text(encoding="utf-8"))
        ):
            broken.append(f"{found['target']}: no such heading")
    assert broken == []


def test_first_applies_have_the_same_steps_on_every_cloud() -> None:
    steps = {
        page.stem: re.findall(r"^## (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
        for page in (ROOT / "docs" / "first-apply").glob("*.md")
    }
    assert set(steps) == {"aws", "gcp", "azure"}
    assert steps["gcp"] == steps["aws"]
    assert steps["azure"] == steps["aws"]
    assert {"Permissions", "State backend", "Preflight", "Destroy"} <= set(steps["aws"])


def test_pages_quote_the_figures_of_their_source() -> None:
    known = figures.figures()
    stale = [
        str(page) for page in figures.pages() if figures.updated(page.read_text(), known) != page.read_text()
    ]
    assert stale == [], "python -m tools.figures --write"


def test_a_time_a_size_or_a_share_in_the_readme_is_a_marked_figure() -> None:
    text = figures.QUOTED.sub("", (ROOT / "README.md").read_text())
    found = re.findall(r"[^.|\n]*\b\d[\d.]*\s?(?:s|min|minutes?|seconds?|hours?|MB|%)(?!\w)[^.|\n]*", text)
    assert found == []


def test_ci_runs_the_commands_of_the_readme_first() -> None:
    lines = [
        line
        for line in (ROOT / ".ci" / "run").read_text().splitlines()
        if line.startswith(("make", "python"))
    ]
    assert "tools.pages README.md" in lines[0]
    found = [
        block
        for block in blocks((ROOT / "README.md").read_text())
        if block.runs_here() or "root" in block.value
    ]
    assert found[0].body.startswith("make demo")


def test_blocks_are_found_with_their_markers_and_lines() -> None:
    text = "# T\n\n<!-- run: ci -->\n```sh\nls\n```\n\n```yaml\na: 1\n```\n<!-- not run: needs an account -->\n```sh\nrm\n```\n"
    found = blocks(text)
    assert [(each.line, each.language, each.kind, each.value) for each in found] == [
        (4, "sh", "run", "ci"),
        (8, "yaml", "", ""),
        (12, "sh", "not run", "needs an account"),
    ]
    assert "ls" in script(found)
    assert "rm" not in script(found)


@pytest.mark.parametrize(
    ("marker", "command", "code"),
    [("ci", "true", 0), ("ci", "false", 1), ("ci, exit 2", "(exit 2)", 0), ("ci, exit 2", "true", 1)],
)
def test_a_block_exits_as_its_marker_says(marker: str, command: str, code: int) -> None:
    text = script(blocks(f"<!-- run: {marker} -->\n```sh\n{command}\n```\n"))
    assert subprocess.run(["bash", "-c", text], capture_output=True, check=False).returncode == code


@pytest.mark.parametrize(
    ("marker", "message"),
    [
        ("", "mark the block"),
        ("<!-- not run: no -->\n", "say why"),
        ("<!-- run: tests/nowhere.py -->\n", "does not exist"),
    ],
)
def test_a_block_that_nobody_runs_is_named(marker: str, message: str) -> None:
    wrong = unmarked(Path("page.md"), blocks(f"{marker}```sh\nls\n```\n"))
    assert [each for each in wrong if message in each and each.startswith("page.md:")]
