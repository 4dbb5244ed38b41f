"""A git repository with a project in it, which tests of the diff change by a line."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).with_name("project")
STACK = "stacks/Pulumi.one.yaml"
PARTS = "infra/parts.py"


@dataclass(frozen=True)
class Repo:
    """A git repository with a project in it."""

    root: Path
    top: Path

    def git(self, *arguments: str) -> str:
        settings = (
            "-c",
            "user.name=t",
            "-c",
            "user.email=t@example.com",
            "-c",
            "commit.gpgsign=false",
            "-c",
            "init.defaultBranch=main",
        )
        done = subprocess.run(
            ["git", *settings, *arguments], cwd=self.root, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def commit(self, message: str = "change") -> str:
        self.git("add", "-A", ".")
        self.git("commit", "-q", "-m", message, "--allow-empty")
        return self.git("rev-parse", "HEAD")

    def replace(self, file: str, old: str, new: str) -> None:
        path = self.root / file
        text = path.read_text()
        assert old in text, f"{old} is not in {file}"
        path.write_text(text.replace(old, new))

    def write(self, file: str, text: str) -> None:
        path = self.root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def make_repo(folder: Path, source: Path, below: str = "") -> Repo:
    """Copy a project into a new repository, committed on main."""
    root = folder / below if below else folder
    shutil.copytree(
        source, root, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True
    )
    repo = Repo(root, folder)
    subprocess.run(["git", "init", "-q", "-b", "main", str(folder)], check=True)
    (folder / ".gitignore").write_text("__pycache__/\nignored.py\n")
    subprocess.run(["git", "add", "-A"], cwd=folder, check=True)
    repo.commit("first")
    return repo
