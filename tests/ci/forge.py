"""A code host on this machine: a bare Git repository with pull requests, reviews, labels, comments and issues.

Its data is one JSON file, which the `gh` of the harness (gh.py) reads and writes, too.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

REPOSITORY = "acme/platform"
IDENTITY = ("-c", "user.name=ada", "-c", "user.email=ada@example.com")


def git(folder: Path, *arguments: str) -> str:
    """Run Git and return what it prints."""
    done = subprocess.run(
        ["git", "-C", folder, *IDENTITY, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"git {' '.join(arguments)}: {done.stderr}"
    return done.stdout.strip()


class Forge:
    """The host. `bare` is the repository, `clone` the checkout of its developer."""

    def __init__(self, folder: Path, first: Path) -> None:
        """Create the repository from a folder with files, in which Git was started."""
        self.folder, self.clone, self.bare = folder, first, folder / "repository.git"
        self.data = folder / "forge.json"
        self._save({"pulls": [], "issues": [], "labels": []})
        git(first, "add", "--all")
        git(first, "commit", "--quiet", "--message", "Create the platform")
        subprocess.run(["git", "clone", "--quiet", "--bare", first, self.bare], check=True)
        git(first, "remote", "add", "origin", str(self.bare))

    def accept_push_options(self) -> None:
        """Open a merge request for a push that asks for one, as GitLab does."""
        git(self.bare, "config", "receive.advertisePushOptions", "true")
        hook, script = self.bare / "hooks" / "post-receive", Path(__file__).with_name("post_receive.py")
        hook.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{script}" "{self.data}"\n')
        hook.chmod(0o755)

    def read(self) -> dict[str, Any]:
        """Return the data."""
        found: dict[str, Any] = json.loads(self.data.read_text())
        return found

    def _save(self, document: dict[str, Any]) -> None:
        self.data.write_text(json.dumps(document, indent=1))

    @property
    def main(self) -> str:
        """The commit of the branch main."""
        return git(self.bare, "rev-parse", "main")

    def push_main(self, message: str) -> str:
        """Commit everything in the clone on main and push it, without a pull request."""
        git(self.clone, "switch", "--quiet", "main")
        git(self.clone, "add", "--all")
        git(self.clone, "commit", "--quiet", "--message", message)
        git(self.clone, "push", "--quiet", "origin", "main")
        return self.main

    def open_pull_request(self, branch: str, message: str, *, fork: bool = False) -> int:
        """Push the changed files of the clone as a branch, and open a pull request; return its number."""
        git(self.clone, "switch", "--quiet", "--create", branch)
        git(self.clone, "add", "--all")
        git(self.clone, "commit", "--quiet", "--message", message)
        git(self.clone, "push", "--quiet", "origin", branch)
        git(self.clone, "switch", "--quiet", "main")
        document = self.read()
        number = len(document["pulls"]) + 1
        document["pulls"].append(
            {
                "number": number,
                "title": message,
                "state": "open",
                "branch": branch,
                "author": {"login": "ada"},
                "labels": [],
                "reviews": [],
                "comments": [],
                "headRefOid": git(self.bare, "rev-parse", branch),
                "base": self.main,
                "head_repository": "mallory/platform" if fork else REPOSITORY,
                "mergeCommit": None,
            }
        )
        self._save(document)
        git(self.bare, "update-ref", f"refs/pull/{number}/merge", self._merged(branch, number))
        return number

    def _merged(self, branch: str, number: int) -> str:
        tree = git(self.bare, "merge-tree", "--write-tree", "main", branch)
        message = f"Merge pull request #{number}"
        return git(self.bare, "commit-tree", tree, "-p", "main", "-p", branch, "-m", message)

    def pull(self, number: int) -> dict[str, Any]:
        """Return a pull request."""
        found: dict[str, Any] = self.read()["pulls"][number - 1]
        return found

    def change_pull(self, number: int, **changes: Any) -> None:
        """Change fields of a pull request."""
        document = self.read()
        document["pulls"][number - 1].update(changes)
        self._save(document)

    def label(self, number: int, name: str) -> None:
        """Add a label to a pull request."""
        self.change_pull(number, labels=[*self.pull(number)["labels"], {"name": name}])

    def approve(self, number: int, who: str) -> None:
        """Approve the last commit of a pull request."""
        pull = self.pull(number)
        review = {
            "author": {"login": who},
            "state": "APPROVED",
            "authorAssociation": "MEMBER",
            "commit": {"oid": pull["headRefOid"]},
        }
        self.change_pull(number, reviews=[*pull["reviews"], review])

    def merge(self, number: int) -> str:
        """Merge a pull request into main and return the commit."""
        commit = git(self.bare, "rev-parse", f"refs/pull/{number}/merge")
        git(self.bare, "update-ref", "refs/heads/main", commit)
        self.change_pull(number, state="merged", mergeCommit={"oid": commit})
        git(self.clone, "pull", "--quiet", "origin", "main")
        return commit

    def pull_request_event(self, number: int) -> dict[str, Any]:
        """Return the payload of `pull_request`."""
        pull = self.pull(number)
        return {
            "number": number,
            "pull_request": {
                "number": number,
                "labels": pull["labels"],
                "base": {"sha": pull["base"], "ref": "main"},
                "head": {"sha": pull["headRefOid"], "repo": {"full_name": pull["head_repository"]}},
            },
        }
