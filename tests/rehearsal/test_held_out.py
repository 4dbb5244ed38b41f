"""The held-out mistakes: what a row needs, how the figure is computed, and that they stay apart from rules."""

from __future__ import annotations

import re
import subprocess
import tomllib
from datetime import date
from pathlib import Path

import pytest

from tools import figures, heldout, rejection_figure
from tools.rejection_figure import HELD_OUT, Checked, Row

ROWS = list(rejection_figure.rows())
RAW = [
    (file.stem, row)
    for file in sorted(HELD_OUT.glob("*.toml"))
    for row in tomllib.loads(file.read_text())["mistake"]
]


def commit(root: Path, *files: str) -> None:
    for name in files:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write("x\n")
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", f"change {files[0]}")


def git(root: Path, *arguments: str) -> None:
    settings = ("-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *settings, *arguments], cwd=root, check=True, capture_output=True)


@pytest.fixture
def history(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q", "-b", "main")
    commit(tmp_path, "tests/rehearsal/heldout/aws.toml")
    commit(tmp_path, "trainfleet/rehearsal/simulation/rules/aws.toml", "tests/rehearsal/mistakes/aws.toml")
    return tmp_path


@pytest.mark.parametrize("rule", ["trainfleet/rehearsal/simulation/rules/aws.toml", "policies/gpu.py"])
def test_a_commit_with_both_is_found(history: Path, rule: str) -> None:
    assert heldout.problems(history) == []
    commit(history, "tests/rehearsal/heldout/aws.toml", rule)
    commit(history, "README.md")
    (found,) = heldout.problems(history)
    assert "tests/rehearsal/heldout/aws.toml" in found
    assert rule in found


@pytest.mark.parametrize("by_hand", [False, True], ids=["merged", "changed in the merge"])
def test_a_merge_counts_with_what_was_changed_by_hand(history: Path, by_hand: bool) -> None:
    git(history, "checkout", "-q", "-b", "rules", "HEAD~1")
    commit(history, "policies/gpu.py")
    git(history, "checkout", "-q", "main")
    commit(history, "tests/rehearsal/heldout/aws.toml")
    git(history, "merge", "--no-commit", "--no-ff", "rules")
    if by_hand:
        commit(history, "tests/rehearsal/heldout/aws.toml", "policies/gpu.py")
    else:
        git(history, "commit", "-q", "-m", "merge rules")
    assert len(heldout.problems(history)) == int(by_hand)


def test_this_history_keeps_them_apart() -> None:
    assert heldout.problems() == []


def test_without_a_history_nothing_is_found(tmp_path: Path) -> None:
    assert heldout.problems(tmp_path) == []


def test_lint_checks_the_history() -> None:
    makefile = (heldout.ROOT / "Makefile").read_text()
    lint = makefile[makefile.index("\nlint:") :].split("\n\n")[0]
    assert "-m tools.heldout" in lint


@pytest.mark.parametrize(
    ("package", "row"), RAW, ids=[row["source"].split("github.com/")[-1] for _, row in RAW]
)
def test_a_row_has_its_source_and_differs_by_its_correction(package: str, row: dict[str, object]) -> None:
    assert set(row) == {"source", "date", "said", "type", "property", "wrong", "right"}
    assert re.match(r"https://[^ ]+/[^ ]+$", str(row["source"]))
    assert isinstance(row["date"], date)
    assert str(row["type"]).split(".")[0].replace("_", "-") == package
    assert row["wrong"] != row["right"]


def test_the_set_covers_every_package() -> None:
    assert len(ROWS) >= 40
    assert {row.package for row in ROWS} == {"aws", "gcp", "azure-native", "kubernetes"}
    sources = [(row.source, row.type) for row in ROWS]
    assert len(set(sources)) == len(sources)


def row(property: str) -> Row:  # noqa: A002 - the field's name
    return Row("aws", "", "aws.s3.Bucket", property, {}, {})


@pytest.mark.parametrize(
    ("property", "message", "rejected"),
    [
        ("disk_size", "diskSize: conflicts with launchTemplate", True),
        ("disk_size", "instanceTypes: unknown", False),
        ("policy", "policy: 'x' is not JSON", True),
    ],
)
def test_a_rejection_counts_only_with_its_property(property: str, message: str, rejected: bool) -> None:  # noqa: A002
    assert Checked(row(property), [message], []).rejected is rejected
    assert not Checked(row(property), [], [message]).rejected


def test_a_name_that_the_sdk_does_not_know_is_a_rejection() -> None:
    (message,) = rejection_figure.messages("aws", "aws.s3.Bucket", {"buckett": "x"})
    assert "buckett" in message
    assert rejection_figure.messages("aws", "aws.s3.Bucket", {"bucket": "some-bucket-of-mine"}) == []
    assert any(
        "bucket" in each for each in rejection_figure.messages("aws", "aws.s3.Bucket", {"bucket": "A_B"})
    )


def test_the_pages_quote_the_figure() -> None:
    """tests/docs/test_pages.py compares each quoted figure with the computed one."""
    quoted = {
        match["name"] for page in figures.pages() for match in figures.QUOTED.finditer(page.read_text())
    }
    assert {"held_out_mistakes", "held_out_share"} <= quoted
