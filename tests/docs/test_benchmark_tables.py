"""Tables of figures come from files, which a benchmark records or which say that they were entered by hand."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from benchmarks import checkpoint_files, command
from tools import benchmark_tables, figures
from tools.benchmark_tables import BLOCK, RESULTS, rendered
from trainfleet.errors import InputError

PAGE = figures.ROOT / "docs" / "benchmarks.md"
BY_HAND = """
entered = "by hand"
command = "`make it`"
date = "2026-11-26"
machine = "2 CPUs"
load = "idle"
runs = "once"
columns = ["what", "s"]
rows = [["first", "1.0"], ["second", ""]]
"""


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in the place of benchmarks/results."""
    monkeypatch.setattr(command, "RESULTS", tmp_path)
    return tmp_path


def test_every_table_of_the_page_comes_from_a_file() -> None:
    outside = BLOCK.sub("", PAGE.read_text())
    assert [line for line in outside.splitlines() if line.startswith("|")] == []


def test_every_result_is_on_a_page_once() -> None:
    shown = [found["name"] for page in figures.pages() for found in BLOCK.finditer(page.read_text())]
    assert sorted(shown) == sorted(file.stem for file in RESULTS.iterdir())


def test_another_figure_on_the_page_is_found() -> None:
    text = PAGE.read_text()
    changed = re.sub(r"(\| trainfleet --help \| )[\d.]+", r"\g<1>9.99", text)
    assert changed != text
    assert benchmark_tables.updated(changed) == text


def test_a_benchmark_records_what_it_prints(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["checkpoint_files", "--mib", "1", "--record"])
    assert checkpoint_files.main() == 0
    printed = capsys.readouterr().out
    recorded = json.loads((results / "checkpoint_files.json").read_text())
    assert recorded["command"] == "python -m benchmarks.checkpoint_files --mib 1"
    assert {"date", "machine", "load", "rounds"} <= recorded["document"].keys()
    head, _, text = rendered("checkpoint_files", results).partition(":\n\n")
    assert head == f"`{recorded['command']}`, recorded at {recorded['commit']}"
    around, rule, table = text.partition("\n\n|")
    assert around.strip().split("; ") == printed.partition("\n\n|")[0].splitlines()
    assert (rule + table).strip() == "".join(printed.partition("\n\n|")[1:]).strip()
    (results / "checkpoint_files.toml").write_text(BY_HAND)
    with pytest.raises(InputError, match=r"checkpoint_files\.json is newer"):
        rendered("checkpoint_files", results)


def test_a_short_run_is_not_recorded(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["checkpoint_files", "--smoke", "--record"])
    with pytest.raises(SystemExit):
        checkpoint_files.main()
    assert list(results.iterdir()) == []


def test_what_was_entered_by_hand_says_so(tmp_path: Path) -> None:
    (tmp_path / "it.toml").write_text(BY_HAND)
    caption, _, table = rendered("it", tmp_path).partition("\n\n")
    assert caption == "`make it`, entered by hand: 2026-11-26, 2 CPUs; load: idle; once."
    assert table == "| what | s |\n|---|---|\n| first | 1.0 |\n| second | |\n"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('entered = "by hand"', "", "entered"),
        ('load = "idle"', 'weight = "idle"', "weight"),
        ('["first", "1.0"]', '["first"]', "another number of cells"),
    ],
)
def test_a_mistake_in_a_file_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    (tmp_path / "it.toml").write_text(BY_HAND.replace(old, new))
    with pytest.raises(InputError, match=r"it\.toml") as wrong:
        rendered("it", tmp_path)
    assert message in str(wrong.value)
    with pytest.raises(InputError, match=r"python -m benchmarks\.absent --record"):
        rendered("absent", tmp_path)
