"""What must be true of a checkout before a release is built from it."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import trainfleet
from trainfleet.errors import Problem

HEADING = re.compile(r"^## (\S+)(?: - (\d{4}-\d{2}-\d{2}))?$", re.M)


def git(root: Path, *arguments: str) -> str:
    """The output of a git command, without the end of the line.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    done = subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True)
    return done.stdout.rstrip("\n")


def version_of(root: Path) -> str:
    """The version in pyproject.toml."""
    return str(tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"])


def checkout_problems(root: Path) -> list[Problem]:
    """Versions that differ, a tag that is missing, and files that are not committed."""
    version, problems = version_of(root), []
    if trainfleet.__version__ != version:
        problems.append(Problem("trainfleet/__init__.py", f"has {trainfleet.__version__}", version))
    found = HEADING.search((root / "CHANGELOG.md").read_text(encoding="utf-8"))
    if found is None or found.groups()[0] != version or not found[2]:
        first = found[0].removeprefix("## ") if found else "no section"
        problems.append(Problem("CHANGELOG.md", f"begins with {first}", f"## {version} - the date"))
    tags = git(root, "tag", "--points-at", "HEAD").splitlines()
    if f"v{version}" not in tags:
        what = f"the tags of this commit are {', '.join(tags)}" if tags else "this commit has no tag"
        problems.append(Problem("git", what, f"git tag --annotate v{version}"))
    changed = git(root, "status", "--porcelain", "--untracked-files=all").splitlines()
    problems += [Problem(line[3:], "is not committed") for line in changed[:10]]
    if len(changed) > 10:
        problems.append(Problem("git", f"{len(changed) - 10} more files are not committed"))
    return problems
