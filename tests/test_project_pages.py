"""CONTRIBUTING.md, SECURITY.md and docs/versioning.md say what the code says: paths, versions, glossary."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from trainfleet import __version__
from trainfleet.infra.outputs.contract import CONTRACT_VERSION
from trainfleet.infra.outputs.migrations import MIGRATIONS

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "docs/versioning.md")
TOP = tuple(f"{path.name}/" for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith("."))
VERSIONING = (ROOT / "docs/versioning.md").read_text(encoding="utf-8")


def paths_in(page: str) -> list[str]:
    """Every `path` of the checkout that a page names, without placeholders such as `<cloud>`."""
    text = (ROOT / page).read_text(encoding="utf-8")
    named = re.findall(r"`([\w./-]+)`", text)
    return [each for each in dict.fromkeys(named) if each.startswith(TOP) or each in TOP]


def glossary() -> list[tuple[str, str]]:
    """Term and meaning of each row."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("\n## Glossary\n")[2]
    rows = [row.strip("| ").split(" | ") for row in text.splitlines() if row.startswith("| ")]
    return [(row[0], row[1]) for row in rows if row[0] != "term"]


@pytest.mark.parametrize(("page", "path"), [(page, path) for page in PAGES for path in paths_in(page)])
def test_every_path_on_a_page_exists(page: str, path: str) -> None:
    assert (ROOT / path).exists(), f"{page} names {path}"


def test_paths_are_found_at_all() -> None:
    assert len(paths_in("CONTRIBUTING.md")) > 20


def test_the_glossary_explains_each_term_once() -> None:
    terms = [term.strip() for each, _ in glossary() for term in each.split(",")]
    assert len(terms) >= 100
    assert [term for term, count in Counter(terms).items() if count > 1] == []
    assert [term for term, meaning in glossary() if not meaning.endswith(".")] == []


def test_the_page_on_versions_has_the_version_of_the_contract() -> None:
    assert f"`contract_version` is a whole number, currently {CONTRACT_VERSION}." in VERSIONING
    assert [f"version {old} is migrated to {old + 1}" in VERSIONING for old in MIGRATIONS] == [True] * len(
        MIGRATIONS
    )


def test_the_page_on_versions_has_the_formats_of_checkpoints_and_data() -> None:
    from trainfleet.training.checkpoint import files
    from trainfleet.training.data import blocks

    assert f"carry `format`, currently {files.FORMAT}." in VERSIONING
    assert f"this Trainfleet reads {files.FORMAT}`" in VERSIONING
    assert f"`manifest.json` carries `format`, currently {blocks.FORMAT}," in VERSIONING


def test_the_page_on_versions_names_every_key_that_a_resume_may_change() -> None:
    from trainfleet.training.recipe.changes import FREE_KEYS

    paragraph = next(each for each in VERSIONING.split("\n\n") if each.startswith("A resume compares"))
    named = set(re.findall(r"`([a-z_]+)(?:\.[a-z_]+)*`", paragraph))
    summarized = {"checkpoint", "workload"}  # as retention, and as limits of the data
    assert {key.partition(".")[0] for key in FREE_KEYS} - summarized == named - summarized


def test_the_changelog_has_the_current_version() -> None:
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[0] == "Unreleased"
    assert __version__.partition(".dev")[0] in headings or ".dev" in __version__


OTHERS = ("failed to load checkpoint: EOF", "grpc: the client connection is closing", "FAILED_...")
"""Messages of Pulumi and SkyPilot."""


def quoted_messages() -> list[str]:
    """The messages in the first column of the page on troubleshooting; commands are not messages."""
    rows = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8").splitlines()
    cells = [row.split(" | ")[0] for row in rows if row.startswith("| ")]
    found = [
        double or single for cell in cells for double, single in re.findall(r"``(.+?)``|`([^`]+)`", cell)
    ]
    return [each for each in found if not each.startswith(("make ", "trainfleet"))]


def test_troubleshooting_quotes_messages_that_exist() -> None:
    files = [file for folder in ("infra", "training", "trainfleet") for file in (ROOT / folder).rglob("*.py")]
    code = re.sub(r'"\s*\n\s*f?"', "", "\n".join(file.read_text(encoding="utf-8") for file in files))
    messages = quoted_messages()
    assert len(messages) > 20
    assert [each for each in messages if each not in code and each not in OTHERS] == []
