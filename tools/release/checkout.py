"""What must be true of a checkout before a release is built from it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import yaml
from packaging.version import InvalidVersion, Version

from trainfleet.errors import Problem

VERSION = re.compile(r'^__version__ = "([^"]+)"$', re.M)
HEADING = re.compile(r"^## (\S+)(?: - (\d{4}-\d{2}-\d{2}))?$", re.M)
SOURCE = Path("trainfleet", "__init__.py")
"""Wheel, sdist, `--version`, stack outputs and image tags are made from it, also without Git."""
POLICY_PACK = Path("policies", "PulumiPolicy.yaml")
"""Pulumi reads the version of a policy pack from this file alone."""
CHANGELOG = Path("CHANGELOG.md")


def git(root: Path, *arguments: str) -> str:
    """The output of a git command, without the end of the line.

    Raises:
        subprocess.CalledProcessError: it failed.
    """
    done = subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True)
    return done.stdout.rstrip("\n")


def version_of(root: Path) -> str:
    """The version that the package of a checkout has."""
    found = VERSION.search((root / SOURCE).read_text(encoding="utf-8"))
    if found is None:
        raise ValueError(f"{root / SOURCE} has no __version__")
    return found[1]


def release_version(root: Path) -> str:
    """The version that the tag of this commit names; that of the package if it has no tag of one release."""
    tags = _tags_here(root)
    return tags[0].removeprefix("v") if len(tags) == 1 else version_of(root)


def checkout_problems(root: Path) -> list[Problem]:
    """A tag that is missing or older than an earlier one, files without its version, changes."""
    return [*_tag_problems(root), *file_problems(root, release_version(root)), *change_problems(root)]


def file_problems(root: Path, version: str) -> list[Problem]:
    """The files that have another version than a release of this one."""
    problems = []
    pack = yaml.safe_load((root / POLICY_PACK).read_text(encoding="utf-8"))["version"]
    for file, has in ((SOURCE, version_of(root)), (POLICY_PACK, str(pack))):
        if has != version:
            problems.append(Problem(str(file), f"has {has}", version))
    found = HEADING.search((root / CHANGELOG).read_text(encoding="utf-8"))
    if found is None or found[1] != version or not found[2]:
        first = found[0].removeprefix("## ") if found else "no section"
        problems.append(Problem(str(CHANGELOG), f"begins with {first}", f"## {version} - the date"))
    return problems


def change_problems(root: Path) -> list[Problem]:
    """Files that are not committed."""
    changed = git(root, "status", "--porcelain", "--untracked-files=all").splitlines()
    problems = [Problem(line[3:], "is not committed") for line in changed[:10]]
    if len(changed) > 10:
        problems.append(Problem("git", f"{len(changed) - 10} more files are not committed"))
    return problems


def newest_release(root: Path) -> Version | None:
    """The latest version with a tag at this commit or before it."""
    return max(filter(None, map(_release, git(root, "tag", "--merged", "HEAD").splitlines())), default=None)


def _tags_here(root: Path) -> list[str]:
    return [each for each in git(root, "tag", "--points-at", "HEAD").splitlines() if _release(each)]


def _tag_problems(root: Path) -> list[Problem]:
    """This commit has the tag of one release, and no earlier commit has that of a later one."""
    tags, newest = _tags_here(root), newest_release(root)
    if not tags:
        return [Problem("git", "this commit has no tag of a release", "make tag VERSION=...")]
    if len(tags) > 1:
        return [Problem("git", f"the tags of this commit are {', '.join(tags)}", "the tag of one release")]
    if newest is not None and newest > Version(release_version(root)):
        return [Problem("git", f"{tags[0]} follows v{newest}", "a later version")]
    return []


def _release(tag: str) -> Version | None:
    """The version that a tag names; None for other tags."""
    try:
        return Version(tag[1:]) if tag.startswith("v") else None
    except InvalidVersion:
        return None
