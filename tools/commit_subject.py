"""Check a commit message: a subject of at most 72 characters, and an empty line before the body.

    python -m tools.commit_subject FILE     run by git's commit-msg hook (.pre-commit-config.yaml)

Exit codes: 0 the message is valid, 1 it is not, 2 it cannot be read.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

LONGEST_SUBJECT = 72
_SCISSORS = re.compile(r"^# -+ >8 -+$")
_BY_GIT = re.compile(r'^(Merge |Revert "|Reapply ")')
_AUTOSQUASH = re.compile(r"^(?:(?:fixup|squash|amend)! )+")


def problems(message: str) -> list[str]:
    """What is wrong with a message. Lines that git drops (comments, the diff of `commit -v`) do not count.

    Subjects that git writes itself (merges and reverts) may be of any length.
    """
    lines = _kept(message)
    if not lines:
        return ["the message is empty: write a subject"]
    found = []
    subject = _AUTOSQUASH.sub("", lines[0])
    if len(subject) > LONGEST_SUBJECT and not _BY_GIT.match(subject):
        found.append(
            f"the subject has {len(subject)} characters: write at most {LONGEST_SUBJECT}, and the rest in "
            f"the body"
        )
    if len(lines) > 1 and lines[1].strip():
        found.append("the second line is not empty: leave an empty line between subject and body")
    return found


def _kept(message: str) -> list[str]:
    """The lines that git keeps, from the first that is not empty."""
    lines: list[str] = []
    for line in message.splitlines():
        if _SCISSORS.match(line):
            break
        if not line.startswith("#") and (lines or line.strip()):
            lines.append(line.rstrip())
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Run the check; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.commit_subject", description="Check a commit message."
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="the file that holds the message")
    file = parser.parse_args(argv).file
    try:
        message = file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        print(f"error: cannot read {file}: {error.strerror}", file=sys.stderr)
        return 2
    found = problems(message)
    for each in found:
        print(f"commit message: {each}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
