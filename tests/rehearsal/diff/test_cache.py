"""The key of a cached base: everything that decides what a simulated cloud answers is part of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import trainfleet
from trainfleet.rehearsal.diff import cache


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package with a file of each kind, and a folder that is linked, as in a checkout."""
    root = tmp_path / "trainfleet"
    for name in ("rehearsal/rules.toml", "rehearsal/facts/eks.json", "rehearsal/provider.py", "page.html"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("1")
    (tmp_path / "infra").mkdir()
    (tmp_path / "infra" / "definitions.json").write_text("1")
    (root / "infra").symlink_to(tmp_path / "infra")
    return root


@pytest.mark.parametrize(
    "file",
    [
        "rehearsal/rules.toml",
        "rehearsal/facts/eks.json",
        "rehearsal/provider.py",
        "page.html",
        "infra/definitions.json",
    ],
)
def test_a_changed_file_changes_the_digest(package: Path, file: str) -> None:
    before = cache.source_digest(package)
    (package / file).write_text("2")
    assert cache.source_digest(package) != before


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "rehearsal/rules.toml").rename(root / "rehearsal/rules.old.toml"),
        lambda root: (root / "rehearsal/rules.toml").unlink(),
        lambda root: (root / "new.json").write_text("1"),
    ],
    ids=["renamed", "removed", "added"],
)
def test_a_file_that_comes_or_goes_changes_the_digest(
    package: Path, change: Callable[[Path], object]
) -> None:
    before = cache.source_digest(package)
    change(package)
    assert cache.source_digest(package) != before


def test_what_an_import_leaves_behind_does_not_change_the_digest(package: Path) -> None:
    before = cache.source_digest(package)
    (package / "rehearsal/__pycache__").mkdir()
    (package / "rehearsal/__pycache__/provider.cpython-311.pyc").write_bytes(b"x")
    (package / "provider.pyc").write_bytes(b"x")
    assert cache.source_digest(package) == before


def test_the_digest_is_the_same_in_another_folder(package: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(package, tmp_path / "elsewhere")
    assert cache.source_digest(moved) == cache.source_digest(package)


def test_the_key_reads_the_installed_package(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    monkeypatch.setattr(cache, "source_digest", lambda root: read.append(root) or "digest")
    before = cache.key("tree", "", "one", "3.200")
    assert [root.resolve() for root in read] == [Path(trainfleet.__file__).resolve().parent]
    monkeypatch.setattr(cache, "source_digest", lambda _: "another")
    assert cache.key("tree", "", "one", "3.200") != before
