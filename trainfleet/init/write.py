"""Creates the files of a new repository: all of them or none."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from trainfleet import __version__
from trainfleet.errors import InputError, Problem
from trainfleet.files import write_whole
from trainfleet.init.answers import Answers
from trainfleet.init.requirement import WHEELS, Requirement

RECORD = ".trainfleet-init.json"
"""The version that made the repository, the answers, and each file as it was made: the base of an upgrade."""


def record(answers: Answers, files: Mapping[str, str]) -> str:
    """Return the text of RECORD."""
    document = {"trainfleet": __version__, "answers": asdict(answers), "files": dict(files)}
    return json.dumps(document, indent=1) + "\n"


def refuse_existing(root: Path, files: Mapping[str, str]) -> None:
    """Refuse to overwrite anything.

    Raises:
        InputError: lists the files that exist already.
    """
    if (root / RECORD).exists():
        raise InputError(
            "the folder is a repository of `trainfleet init` already",
            [Problem(str(root), f"has {RECORD}", "add --upgrade to merge the files of this version")],
        )
    if root.exists() and not root.is_dir():
        raise InputError(
            "cannot create the repository", [Problem(str(root), "is a file", "name another folder")]
        )
    if existing := [name for name in files if (root / name).exists() or (root / name).is_symlink()]:
        problems = [Problem(str(root / name), "exists already") for name in existing]
        raise InputError(
            "these files would be overwritten; choose another folder, or move them away", problems
        )


def create(root: Path, answers: Answers, files: Mapping[str, str], requirement: Requirement) -> None:
    """Write every file, the wheel and RECORD; remove what was written if one cannot be.

    Raises:
        InputError: a file cannot be written.
    """
    created = CreatedFiles(root)
    try:
        for name, text in {**files, RECORD: record(answers, files)}.items():
            created.folder((root / name).parent)
            created.files.append(root / name)
            write_whole(root / name, text)
        if requirement.wheel is not None:
            created.folder(root / WHEELS)
            created.files.append(root / WHEELS / requirement.wheel.name)
            write_whole(created.files[-1], requirement.wheel.read_bytes())
    except OSError as error:
        created.undo()
        what = error.strerror or str(error)
        raise InputError(
            "cannot create the repository", [Problem(str(root), what, "choose another folder")]
        ) from error
    except BaseException:
        created.undo()
        raise


class CreatedFiles:
    """The files and folders that this process created."""

    def __init__(self, root: Path) -> None:
        self.root, self.files, self.folders = root, list[Path](), list[Path]()

    def folder(self, path: Path) -> None:
        """Create a folder and its missing parents."""
        missing = [each for each in (path, *path.parents) if not each.exists()]
        for each in reversed(missing):
            self.folders.append(each)
            each.mkdir()

    def undo(self) -> None:
        """Remove the files, and the folders that are empty then."""
        for path in self.files:
            with contextlib.suppress(OSError):
                path.unlink()
        for path in reversed(self.folders):
            with contextlib.suppress(OSError):
                path.rmdir()


def start_git(root: Path) -> bool:
    """Start a Git repository on branch `main`, unless the folder is in one. Returns whether it did."""
    with contextlib.suppress(FileNotFoundError):
        inside = subprocess.run(
            ["git", "-C", root, "rev-parse", "--git-dir"], capture_output=True, text=True, check=False
        )
        if inside.returncode != 0:
            done = subprocess.run(
                ["git", "init", "--quiet", "--initial-branch=main", root], capture_output=True, check=False
            )
            return done.returncode == 0
    return False
