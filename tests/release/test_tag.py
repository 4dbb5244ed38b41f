"""`make tag`: the commit and the tag of a release, and what refuses them, in a clone of this checkout."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest

from tools.release import __main__ as making
from tools.release.build import ReleaseError
from tools.release.checkout import checkout_problems, git, release_version
from tools.release.tag import TagError, tag
from trainfleet import __version__

TODAY = date(2027, 1, 31)
FILES = ["CHANGELOG.md", "policies/PulumiPolicy.yaml", "trainfleet/__init__.py"]


@pytest.fixture
def clone(root: Path, tmp_path: Path) -> Path:
    """The files of this checkout that have the version, as a repository that continues the release 0.1.9."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(root / name, tmp_path / name)
    log = tmp_path / "CHANGELOG.md"
    log.write_text(
        "# Changelog\n\n## Unreleased\n\n### Added\n\n- A change.\n\n## 0.1.9 - 2026-11-26\n\nText.\n"
    )
    git(tmp_path, "init", "--quiet", "--initial-branch", "main")
    for key, value in (("user.name", "ada"), ("user.email", "ada@example.com"), ("tag.gpgSign", "false")):
        git(tmp_path, "config", key, value)
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "--quiet", "--message", "Start")
    git(tmp_path, "tag", "v0.1.9")
    return tmp_path


def test_a_release_is_one_commit_with_an_annotated_tag(clone: Path) -> None:
    before = git(clone, "rev-parse", "HEAD")
    assert tag(clone, "0.2.0", TODAY) == "v0.2.0"
    assert git(clone, "rev-parse", "HEAD~1") == before
    assert git(clone, "log", "-1", "--format=%s") == "Release 0.2.0"
    assert git(clone, "cat-file", "-t", "v0.2.0") == "tag"
    assert git(clone, "rev-parse", "v0.2.0^{commit}") == git(clone, "rev-parse", "HEAD")
    assert git(clone, "diff", "--name-only", "HEAD~1").splitlines() == FILES
    changed = git(clone, "diff", "--unified=0", "HEAD~1").splitlines()
    assert [line for line in changed if line.startswith("+") and not line.startswith("+++")] == [
        "+## 0.2.0 - 2027-01-31", "+version: 0.2.0", '+__version__ = "0.2.0"',
    ]  # fmt: skip
    assert git(clone, "status", "--porcelain") == ""
    assert release_version(clone) == "0.2.0"
    assert checkout_problems(clone) == []


@pytest.mark.parametrize(
    ("version", "what"),
    [
        ("0.1.9", "0.1.9 is not later than v0.1.9"),
        ("0.1.8", "0.1.8 is not later than v0.1.9"),
        ("0.2.0rc1", ""),
        ("v0.2.0", "is v0.2.0"),
        ("0.2.0+local", "is 0.2.0+local"),
        ("next", "'next' is not a version"),
        ("", "'' is not a version"),
    ],
)
def test_a_version_has_to_be_later_than_the_last_tag(clone: Path, version: str, what: str) -> None:
    before = git(clone, "rev-parse", "HEAD")
    if not what:
        assert tag(clone, version, TODAY) == f"v{version}"
        return
    with pytest.raises(TagError) as raised:
        tag(clone, version, TODAY)
    assert [each.what for each in raised.value.problems] == [what]
    assert (git(clone, "rev-parse", "HEAD"), git(clone, "tag")) == (before, "v0.1.9")


def dirty(clone: Path) -> None:
    (clone / "new.py").touch()


def empty_section(clone: Path) -> None:
    log = clone / "CHANGELOG.md"
    log.write_text(log.read_text().replace("- A change.\n", ""))
    git(clone, "commit", "--quiet", "--all", "--message", "Nothing")


def released_section(clone: Path) -> None:
    log = clone / "CHANGELOG.md"
    log.write_text(log.read_text().replace("## Unreleased\n\n### Added\n\n- A change.\n\n", ""))
    git(clone, "commit", "--quiet", "--all", "--message", "Nothing")


def other_branch(clone: Path) -> None:
    git(clone, "switch", "--quiet", "--create", "other")
    git(clone, "commit", "--quiet", "--allow-empty", "--message", "Other")
    git(clone, "tag", "v0.2.0")
    git(clone, "switch", "--quiet", "main")


@pytest.mark.parametrize(
    ("spoil", "what"),
    [
        (dirty, "is not committed"),
        (empty_section, "lists no change under Unreleased"),
        (released_section, "begins with 0.1.9 - 2026-11-26"),
        (other_branch, "has the tag v0.2.0 on another branch"),
    ],
)
def test_a_checkout_that_is_not_ready_is_refused_unchanged(
    clone: Path, spoil: Callable[[Path], None], what: str
) -> None:
    spoil(clone)
    before = git(clone, "rev-parse", "HEAD"), git(clone, "status", "--porcelain"), git(clone, "tag")
    with pytest.raises(TagError) as raised:
        tag(clone, "0.2.0", TODAY)
    assert [each.what for each in raised.value.problems] == [what]
    assert (git(clone, "rev-parse", "HEAD"), git(clone, "status", "--porcelain"), git(clone, "tag")) == before


def test_a_commit_that_a_hook_refuses_leaves_the_files_as_they_were(clone: Path) -> None:
    hook = clone / ".git" / "hooks" / "pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)
    with pytest.raises(subprocess.CalledProcessError):
        tag(clone, "0.2.0", TODAY)
    assert (git(clone, "status", "--porcelain"), git(clone, "tag")) == ("", "v0.1.9")


def test_a_release_is_built_from_the_tag_alone(
    clone: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tag(clone, "0.2.0", TODAY)
    git(clone, "commit", "--quiet", "--allow-empty", "--message", "Later")
    with pytest.raises(ReleaseError, match="the checkout is not a release") as raised:
        making.release(clone, tmp_path / "dist", draft=False)
    assert [each.what for each in raised.value.problems] == ["this commit has no tag of a release"]


def test_the_command_refuses_this_checkout_with_an_old_version(root: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tools.release.tag", "nonsense"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "'nonsense' is not a version" in done.stderr
    assert f'__version__ = "{__version__}"' in (root / "trainfleet" / "__init__.py").read_text()
