"""The command line that the benchmarks share."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from benchmarks import checks, command, diff


def run(subject: str, *arguments: str, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """What a benchmark with this subject is called with."""
    called: list[tuple[str, bool]] = []

    def measure(name: str, smoke: bool) -> dict[str, Any]:
        called.append((name, smoke))
        return {}

    monkeypatch.setattr(sys, "argv", ["it", *arguments])
    assert command.run("It.", subject, measure, lambda _: None) == 0
    return called


def test_a_benchmark_gets_the_name_of_its_subject(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("stack", "--stack", "aws-dev", monkeypatch=monkeypatch) == [("aws-dev", False)]
    assert run("stack", "--smoke", monkeypatch=monkeypatch) == [("", True)]


def test_one_without_a_subject_has_no_option_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("", monkeypatch=monkeypatch) == [("", False)]
    with pytest.raises(SystemExit):
        run("", "--name", "aws-dev", monkeypatch=monkeypatch)


def test_the_checks_are_the_commands_of_ci() -> None:
    shown = checks.commands()
    assert shown[0] == "python3 -m tools.pages README.md"
    assert shown[1:] == ["make lint", "make test", "make test-cluster SHORT=yes", "make bench-smoke"]


def test_the_setting_that_the_diff_changes_is_one_of_its_stack() -> None:
    name, before, after = diff.SETTING
    text = (diff.ROOT / "stacks" / f"Pulumi.{diff.STACK}.yaml").read_text()
    assert text.count(f"{name}: {before}") == 1
    assert f"{name}: {after}" not in text
