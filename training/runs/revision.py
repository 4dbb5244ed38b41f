"""Which code trained: git's revision of the checkout that this package lies in, for run.json and the report.

Used by `trainfleet.training.runs.writer`. Easy to get wrong: an installed package has no checkout around it,
or lies in another project's;
then nothing is said. Code that was changed and not committed has no revision, so that is said too.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]


def revision(package: Path = PACKAGE) -> str:
    """Such as `1f0c2d3e4a5b`, with ` and changes` after it where the package's files differ from it; empty
    where git tracks none of them.
    """
    tracked = git(package, "ls-files", "--error-unmatch", "__init__.py")
    head = git(package, "rev-parse", "--short=12", "HEAD") if tracked else None
    if not head:
        return ""
    return (
        head
        if git(package, "diff-index", "--quiet", "HEAD", "--", str(package)) is not None
        else f"{head} and changes"
    )


def git(folder: Path, *arguments: str) -> str | None:
    """What git answers; None where it refuses, is missing or hangs."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
