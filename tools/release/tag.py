"""Makes this commit's successor a release: `make tag VERSION=0.2.0`.

Writes the version into the three files that have it, commits them, and creates the annotated tag, from which
`make release` reads the version. Nothing is pushed.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from datetime import UTC, date, datetime
from pathlib import Path

from packaging.version import InvalidVersion, Version

from tools.release.checkout import (
    CHANGELOG,
    HEADING,
    POLICY_PACK,
    SOURCE,
    VERSION,
    change_problems,
    git,
    newest_release,
)
from trainfleet.errors import Problem, TrainfleetError

ROOT = Path(__file__).resolve().parents[2]
PACK_VERSION = re.compile(r"^version: .+$", re.M)


class TagError(TrainfleetError):
    """A commit that cannot become a release."""


def main() -> int:
    """Tag a release. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="make tag", description=__doc__.splitlines()[0])
    parser.add_argument("version", help="the version, such as 0.2.0")
    try:
        name = tag(ROOT, parser.parse_args().version, datetime.now(UTC).date())
    except TrainfleetError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        print(f"error: {' '.join(map(str, error.cmd))} failed\n{error.stderr}", file=sys.stderr)
        return 1
    print(f"created {name}: make release builds it, git push --follow-tags publishes the tag")
    return 0


def tag(root: Path, version: str, today: date) -> str:
    """Commit the version and tag it; return the name of the tag.

    Raises:
        TagError: nothing was written.
        subprocess.CalledProcessError: Git refuses; the files are as before, unless the commit was created.
    """
    if problems := [*_version_problems(root, version), *_changelog_problems(root), *change_problems(root)]:
        raise TagError(f"{version} cannot be released from this checkout", problems)
    files = (str(SOURCE), str(POLICY_PACK), str(CHANGELOG))
    _replace(root / SOURCE, VERSION, f'__version__ = "{version}"')
    _replace(root / POLICY_PACK, PACK_VERSION, f"version: {version}")
    _replace(root / CHANGELOG, HEADING, f"## {version} - {today}")
    try:
        git(root, "commit", "--quiet", "--message", f"Release {version}", "--", *files)
    except subprocess.CalledProcessError:
        git(root, "checkout", "--quiet", "HEAD", "--", *files)
        raise
    git(root, "tag", "--annotate", f"v{version}", "--message", f"Trainfleet {version}")
    return f"v{version}"


def _version_problems(root: Path, version: str) -> list[Problem]:
    try:
        given = Version(version)
    except InvalidVersion:
        return [Problem("VERSION", f"{version!r} is not a version", "for example 0.2.0")]
    if str(given) != version or given.local:
        return [Problem("VERSION", f"is {version}", given.public)]
    newest = newest_release(root)
    if newest is not None and given <= newest:
        return [Problem("VERSION", f"{version} is not later than v{newest}", "a later version")]
    if git(root, "tag", "--list", f"v{version}"):
        return [Problem("git", f"has the tag v{version} on another branch", "a later version")]
    return []


def _changelog_problems(root: Path) -> list[Problem]:
    """The first section has to be `Unreleased`, with the changes of this release."""
    text = (root / CHANGELOG).read_text(encoding="utf-8")
    found = HEADING.search(text)
    if found is None or found[1] != "Unreleased":
        first = found[0].removeprefix("## ") if found else "no section"
        return [Problem(str(CHANGELOG), f"begins with {first}", "## Unreleased, with the changes")]
    section = re.split(r"^## ", text[found.end() :], maxsplit=1, flags=re.M)[0]
    if not any(line.strip() and not line.startswith("#") for line in section.splitlines()):
        return [Problem(str(CHANGELOG), "lists no change under Unreleased", "what is new in this version")]
    return []


def _replace(file: Path, what: re.Pattern[str], text: str) -> None:
    before = file.read_text(encoding="utf-8")
    after, count = what.subn(text, before, count=1)
    if not count:
        raise TagError("the version has no place", [Problem(str(file), f"does not match {what.pattern}")])
    file.write_text(after, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
