"""What the tests of the diff share: a small project in a git repository, changed by a line, and its diff."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.rehearsal.diff.repos import PROJECT, Repo, make_repo


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    """The small project, committed on main."""
    return make_repo(tmp_path / "repo", PROJECT)


@pytest.fixture(scope="session")
def cache_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder of the tests' own, in which the built engine of this machine can still be found."""
    from trainfleet.toolchain import cache_folder

    home = tmp_path_factory.mktemp("cache")
    folder = home / "trainfleet"
    folder.mkdir()
    if cache_folder().is_dir():
        for entry in cache_folder().iterdir():
            if entry.name.startswith(("engine-", "go-")):
                (folder / entry.name).symlink_to(entry)
    return home


Diffs = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def diff(repo: Repo, trainfleet: Diffs, cache_home: Path, tmp_path: Path) -> Diffs:
    """Call `trainfleet diff ARGUMENTS` in the small project, with a temporary folder and a cache of its own."""
    scratch = tmp_path / "tmp"
    scratch.mkdir()

    def call(
        *arguments: str, cwd: Path | None = None, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        settings = {"XDG_CACHE_HOME": str(cache_home), "TMPDIR": str(scratch), **environment}
        return trainfleet("diff", *arguments, cwd=cwd or repo.root, **settings)

    return call
