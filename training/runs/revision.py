"""The git revision of the code that trained, for run.json and the report."""

from __future__ import annotations

import subprocess
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]


def revision(package: Path = PACKAGE) -> str:
    """Such as `1f0c2d3e4a5b`, followed by ` and changes` if the package's files were modified. Empty if git
    does
    not track them, as for an installed package.
    """
    tracked = git(package, "ls-files", "--error-unmatch", "__init__.py")
    head = git(package, "rev-parse", "--short=12", "HEAD") if tracked else None
    if not head:
        return ""
    unchanged = git(package, "diff-index", "--quiet", "HEAD", "--", str(package)) is not None
    return head if unchanged else f"{head} and changes"


def git(folder: Path, *arguments: str) -> str | None:
    """The output of git; None if it fails, is not installed or times out."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
