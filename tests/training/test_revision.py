"""A run records the revision of the code that trained it, and marks code with local changes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from trainfleet.training.runs.revision import revision


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A committed package in its own checkout."""
    folder = tmp_path / "checkout" / "package"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    for arguments in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "first"],
    ):
        subprocess.run(["git", "-C", str(folder.parent), *arguments], check=True)
    return folder


def test_files_outside_the_package_do_not_change_its_revision(package: Path) -> None:
    head = subprocess.run(
        ["git", "-C", str(package), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    ).stdout
    (package.parent / "notes.txt").write_text("mine")
    assert revision(package) == head[:12]


def test_changed_code_is_marked(package: Path) -> None:
    (package / "__init__.py").write_text("changed = True")
    assert revision(package).endswith(" and changes")


def test_an_untracked_package_has_no_revision(package: Path, tmp_path: Path) -> None:
    installed = package.parent / "site-packages"
    installed.mkdir()
    (installed / "__init__.py").write_text("")
    assert revision(installed) == ""
    assert revision(tmp_path) == ""


def test_without_git_there_is_no_revision(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert revision(package) == ""
