"""What must be true of a checkout before a release is built from it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import yaml
from packaging.version import InvalidVersion, Version

from trainfleet.errors import Problem

HEADING = re.compile(r"^## (\S+)(?: - (\d{4}-\d{2}-\d{2}))?$", re.M)
SOURCE = Path("trainfleet", "__init__.py")
"""The only place of the version: wheel, sdist, `--version`, stack outputs and image tags are made from it."""
POLICY_PACK = Path("policies", "PulumiPolicy.yaml")
"""Pulumi reads the version of a policy pack from this file alone."""


def git(root: Path, *arguments: str) -> str:
    """The output of a git command, without the end of the line.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    done = subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True)
    return done.stdout.rstrip("\n")


def version_of(root: Path) -> str:
    """The version of a checkout."""
    found = re.search(r'^__version__ = "([^"]+)"$', (root / SOURCE).read_text(encoding="utf-8"), re.M)
    if found is None:
        raise ValueError(f"{root / SOURCE} has no __version__")
    return found[1]


def checkout_problems(root: Path) -> list[Problem]:
    """Versions that differ, a tag that is missing or newer, and files that are not committed."""
    version, problems = version_of(root), []
    pack = yaml.safe_load((root / POLICY_PACK).read_text(encoding="utf-8"))["version"]
    if str(pack) != version:
        problems.append(Problem(str(POLICY_PACK), f"has {pack}", version))
    found = HEADING.search((root / "CHANGELOG.md").read_text(encoding="utf-8"))
    if found is None or found.groups()[0] != version or not found[2]:
        first = found[0].removeprefix("## ") if found else "no section"
        problems.append(Problem("CHANGELOG.md", f"begins with {first}", f"## {version} - the date"))
    problems += _tag_problems(root, version)
    changed = git(root, "status", "--porcelain", "--untracked-files=all").splitlines()
    problems += [Problem(line[3:], "is not committed") for line in changed[:10]]
    if len(changed) > 10:
        problems.append(Problem("git", f"{len(changed) - 10} more files are not committed"))
    return problems


def _tag_problems(root: Path, version: str) -> list[Problem]:
    """The tag of this commit is that of the version, and no earlier commit has the tag of a later one."""
    here = [each for each in git(root, "tag", "--points-at", "HEAD").splitlines() if _release(each)]
    if here != [f"v{version}"]:
        what = f"the tags of this commit are {', '.join(here)}" if here else "this commit has no tag"
        return [Problem("git", what, f"git tag --annotate v{version}, or the version of the tag in {SOURCE}")]
    before = git(root, "tag", "--merged", "HEAD").splitlines()
    newest = max(filter(None, map(_release, before)))
    if newest > Version(version):
        return [Problem(str(SOURCE), f"has {version}, and v{newest} was tagged before", "a later version")]
    return []


def _release(tag: str) -> Version | None:
    """The version that a tag names; None for other tags."""
    try:
        return Version(tag[1:]) if tag.startswith("v") else None
    except InvalidVersion:
        return None
