"""The test targets of the Makefile: together they run every test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
COMMAND = re.compile(r'pytest -m "(?P<marks>[^"]+)"(?P<places>(?: tests/\S+)*)')
MARKED = re.compile(r"pytest\.mark\.(launch|cluster|deep)\b")


def commands() -> dict[str, list[str]]:
    """The folders of each pytest command of the Makefile, by its marks; none are all tests."""
    text = (ROOT / "Makefile").read_text()
    return {found["marks"]: found["places"].split() for found in COMMAND.finditer(text)}


def test_each_kind_of_test_has_a_command() -> None:
    assert set(commands()) == {
        "not deep and not launch",
        "launch and not deep",
        "deep and not launch",
        "deep and launch",
        "cluster and not deep$(if $(SHORT), and not slow)",
        "cluster and deep",
    }


@pytest.mark.parametrize("marks", commands())
def test_a_command_reaches_every_file_that_has_its_marks(marks: str) -> None:
    expected = {"launch", "cluster", "deep"} & set(re.sub(r"not \w+", "", marks).split())
    places = [ROOT / place for place in commands()[marks]]
    missed = [
        str(file.relative_to(ROOT))
        for file in sorted((ROOT / "tests").rglob("test_*.py"))
        if expected
        and expected <= set(MARKED.findall(file.read_text()))
        and places
        and not any(place in file.parents for place in places)
    ]
    assert missed == []
