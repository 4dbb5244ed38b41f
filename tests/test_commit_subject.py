"""The commit-msg hook: which messages pass, and what is reported of the others; once with a real commit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools.commit_subject import LONGEST_SUBJECT, main, problems

ROOT = Path(__file__).resolve().parent.parent
LONGEST = "S" * LONGEST_SUBJECT


@pytest.mark.parametrize(
    "message",
    [
        "Add a policy\n",
        LONGEST,
        f"{LONGEST}\n\nWhy, in a line as long as it has to be: {'x' * 200}\n",
        f"# a comment before\n\n{LONGEST}\n# a comment between\n\nBody\n",
        f"Subject\n# ------------------------ >8 ------------------------\ndiff {'x' * 100}\n",
        f"fixup! {LONGEST}",
        f"squash! fixup! {LONGEST}",
        f"Merge branch '{'x' * 100}'",
        f'Revert "{LONGEST}"\n\nThis reverts commit 1234.\n',
        "Ü" * LONGEST_SUBJECT,
    ],
)
def test_a_valid_message_passes(message: str) -> None:
    assert problems(message) == []


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("", "the message is empty"),
        ("# only a comment\n\n", "the message is empty"),
        (f"{LONGEST}x\n", "the subject has 73 characters: write at most 72"),
        (f"\n\n{LONGEST}x\n", "the subject has 73 characters"),
        (f"fixup! {LONGEST}x", "the subject has 73 characters"),
        ("Subject\nBody\n", "the second line is not empty"),
    ],
)
def test_a_message_that_is_not_valid_is_rejected_with_what_to_write(message: str, expected: str) -> None:
    (problem,) = problems(message)
    assert problem.startswith(expected)


def test_a_file_that_does_not_exist_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "absent")]) == 2
    assert "cannot read" in capsys.readouterr().err


def test_git_refuses_a_commit_whose_message_does_not_pass(tmp_path: Path) -> None:
    def git(*arguments: str) -> subprocess.CompletedProcess[str]:
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "core.hooksPath=.git/hooks")
        return subprocess.run(
            ["git", *identity, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
        )

    git("init")
    hook = tmp_path / ".git/hooks/commit-msg"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m tools.commit_subject "$1"\n')
    hook.chmod(0o755)
    long, short = (git("commit", "--allow-empty", "-m", subject) for subject in (f"{LONGEST}x", LONGEST))
    assert (long.returncode, short.returncode) == (1, 0), (long.stderr, short.stderr)
    assert "the subject has 73 characters" in long.stderr
