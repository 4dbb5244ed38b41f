"""Merges the files of a later version into a repository: a three-way merge with the files as first made."""

from __future__ import annotations

import difflib
import json
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from trainfleet.errors import InputError, MissingToolError, Problem
from trainfleet.init.answers import Answers
from trainfleet.init.requirement import REQUIREMENTS, with_one_line
from trainfleet.init.write import RECORD


class Fate(StrEnum):
    """What an upgrade does to a file."""

    ADD = "added"
    UPDATE = "updated"
    MERGE = "merged with your changes"
    CONFLICT = "conflict: both sides changed the same lines"
    KEEP = "kept: deleted or replaced here"
    REMOVE = "removed"
    LEFT = "no longer used; kept because you changed it"


@dataclass(frozen=True)
class Merged:
    """A file after the upgrade; `text` None: it does not exist."""

    name: str
    fate: Fate
    before: str | None
    text: str | None

    def diff(self) -> str:
        """Return the unified diff of the change in the repository."""
        lines = difflib.unified_diff(
            (self.before or "").splitlines(keepends=True),
            (self.text or "").splitlines(keepends=True),
            f"a/{self.name}" if self.before is not None else "/dev/null",
            f"b/{self.name}" if self.text is not None else "/dev/null",
        )
        return "".join(lines)


@dataclass(frozen=True)
class Record:
    """A read RECORD."""

    version: str
    answers: Answers
    files: Mapping[str, str]


def read_record(root: Path) -> Record:
    """Read RECORD.

    Raises:
        InputError: the folder has none, or it is not valid.
    """
    path = root / RECORD
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        return Record(document["trainfleet"], Answers.from_json(document["answers"]), dict(document["files"]))
    except FileNotFoundError:
        fix = "run `trainfleet init` without --upgrade in a new folder"
        raise InputError("nothing to upgrade", [Problem(str(root), f"has no {RECORD}", fix)]) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        problem = Problem(str(path), f"cannot be read: {error}", "restore it from Git")
        raise InputError("nothing to upgrade", [problem]) from error


def merge(root: Path, old: Mapping[str, str], new: Mapping[str, str]) -> list[Merged]:
    """Return what happens to each file that changes. Nothing is written.

    Args:
        root: the repository.
        old: the files as the earlier version made them.
        new: the files as this version makes them.

    Raises:
        InputError: a file is not text.
        MissingToolError: a file needs a merge, and git is not installed.
    """
    found = (_merged(root, name, old.get(name), new.get(name)) for name in dict.fromkeys((*old, *new)))
    return [each for each in found if each is not None]


def _merged(root: Path, name: str, base: str | None, new: str | None) -> Merged | None:
    here = _text(root / name)
    if new in (base, here):
        return None
    if here == base:
        fate = Fate.ADD if base is None else Fate.REMOVE if new is None else Fate.UPDATE
        return Merged(name, fate, here, new)
    if here is None:
        return Merged(name, Fate.KEEP, None, None)
    if new is None:
        return Merged(name, Fate.LEFT, here, here)
    base, mine = base or "", here
    if name == REQUIREMENTS:
        base, mine, new = with_one_line(base, here, new)
    text, clean = _three_way(name, mine, base, new)
    if clean and text == here:
        return None
    return Merged(name, Fate.MERGE if clean else Fate.CONFLICT, here, text)


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            "cannot merge a file", [Problem(str(path), f"cannot be read as text: {error}")]
        ) from error


def _three_way(name: str, here: str, base: str, new: str) -> tuple[str, bool]:
    with tempfile.TemporaryDirectory(prefix="trainfleet-init-") as folder:
        files = []
        for label, text in (("here", here), ("base", base), ("new", new)):
            files.append(Path(folder) / label)
            files[-1].write_text(text, encoding="utf-8")
        labels = ("-L", "yours", "-L", "as it was made", "-L", "this version")
        try:
            done = subprocess.run(
                ["git", "merge-file", "-p", *labels, *files], capture_output=True, text=True, check=False
            )
        except FileNotFoundError:
            problem = Problem("git", "is not installed", "install it")
            raise MissingToolError(f"{name} needs a three-way merge", [problem]) from None
    if done.returncode < 0 or done.returncode > 127:
        raise InputError(
            "cannot merge a file", [Problem(name, done.stderr.strip() or "git merge-file failed")]
        )
    return done.stdout, done.returncode == 0
