"""Check that no commit changes the held-out mistakes together with the rules that they measure.

    python -m tools.heldout     check the whole history

Exit codes: 0 no such commit, or no git history, 1 there is one.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HELD_OUT = "tests/rehearsal/heldout/"
RULES = ("trainfleet/rehearsal/simulation/", "policies/")


def problems(root: Path = ROOT) -> list[str]:
    """Name the commits that change held-out mistakes and rules together.

    A merge counts with the files that differ from all its parents, that is with what was changed by hand.
    """
    log = subprocess.run(
        [
            *("git", "log", "--full-history", "--full-diff", "--diff-merges=combined", "--no-renames"),
            *("--name-only", "--format=%x00%h %s", "--", HELD_OUT),
        ],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    if log.returncode != 0:
        return []
    found = []
    for entry in log.stdout.split("\0")[1:]:
        commit, *files = [line for line in entry.splitlines() if line]
        held_out = [file for file in files if file.startswith(HELD_OUT)]
        rules = [file for file in files if file.startswith(RULES)]
        if held_out and rules:
            found.append(
                f"{commit}: changes {held_out[0]} together with {rules[0]}: make two commits, so that no rule"
                " is written for a held-out mistake"
            )
    return found


def main() -> int:
    """Print the commits. Returns the exit code."""
    found = problems()
    for text in found:
        print(text)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
