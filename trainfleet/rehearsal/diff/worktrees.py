"""Clean copies of the project from git for the base and the head of a diff, deleted at the end.

Git's index and folder are never written to (private index, no `git worktree`), so a read-only checkout works
and nothing has to be pruned.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from trainfleet.errors import InputError, MissingToolError, Problem
from trainfleet.rehearsal.engine.sandbox import unwritable
from trainfleet.suggestions import did_you_mean

MAIN_BRANCHES = ("origin/HEAD", "origin/main", "origin/master", "main", "master")
"""Candidates for the branch that the change will be merged into, in order of preference."""
SOURCES = (".py", ".yaml", ".yml", ".toml", ".tpl", ".tmpl", ".j2", ".tgz")
"""Ends of untracked files that affect a build, as every file of a chart does; others, such as a report in the
checkout, are ignored.
"""
_WORKTREE = "working tree"


@dataclass(frozen=True)
class Revision:
    """One side of a diff: a commit, or the working tree (then `tree` is empty)."""

    shown_as: str
    commit: str
    tree: str
    subject: str = ""

    @property
    def short(self) -> str:
        """The abbreviated commit, or a name for the working tree."""
        return self.commit[:9] or self.shown_as


class Repository:
    """The git repository that contains a project folder.

    Raises:
        InputError: the folder is in no repository, or git cannot read it.
        MissingToolError: git is not installed.
    """

    def __init__(self, root: Path) -> None:
        # A project of the base alone has no folder here.
        self.root = next(each for each in (root, *root.parents) if each.is_dir())
        code, output = self._try("rev-parse", "--show-toplevel")
        if code != 0:
            fix = "run it inside a clone" if "not a git repository" in output else ""
            raise InputError(
                "the project is not in a git repository",
                [Problem(str(root), output.removeprefix("fatal: "), fix)],
            )
        self.top = Path(output)
        below = root.relative_to(self.root)
        found = PurePosixPath(self.git("rev-parse", "--show-prefix").strip("/"), *below.parts)
        self.prefix = str(found) if found.parts else ""

    def git(self, *arguments: str, index: Path | None = None) -> str:
        """Run git and return its output.

        Raises:
            InputError: git failed; contains its message.
        """
        code, output = self._try(*arguments, index=index)
        if code != 0:
            raise InputError("git failed", [Problem("git", output.removeprefix("fatal: "))])
        return output

    def _try(self, *arguments: str, index: Path | None = None) -> tuple[int, str]:
        environment = {
            key: value
            for key, value in os.environ.items()
            if key not in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")
        }
        environment |= {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
        if index is not None:
            environment["GIT_INDEX_FILE"] = str(index)
        settings = (
            "-c",
            "core.fsmonitor=false",
            "-c",
            "core.splitIndex=false",
            "-c",
            "core.quotePath=false",
            "-c",
            "advice.detachedHead=false",
        )
        try:
            done = subprocess.run(
                ["git", *settings, *arguments],
                cwd=self.root,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
        except FileNotFoundError as error:
            raise MissingToolError(
                "a diff needs git", [Problem("git", "is not on PATH", "install git")]
            ) from error
        return done.returncode, (done.stdout if done.returncode == 0 else done.stderr or done.stdout).strip(
            "\n"
        )

    def revision(self, ref: str, flag: str) -> Revision:
        """Resolve a revision name to a commit.

        Raises:
            InputError: the revision does not exist; suggests a similar branch or tag.
        """
        code, commit = self._try("rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
        if code != 0:
            raise InputError(
                "unknown revision", [Problem(flag, f"git has no commit `{ref}`", self._offered(ref))]
            )
        tree, subject = self.git("log", "-1", "--format=%T%n%s", commit).partition("\n")[::2]
        return Revision(ref, commit, tree, subject)

    def _offered(self, ref: str) -> str:
        if self.git("rev-parse", "--is-shallow-repository") == "true":
            return "the clone is shallow: git fetch --unshallow (in CI: check out the full history)"
        names = self.git(
            "for-each-ref", "--format=%(refname:short)", "refs/heads", "refs/tags", "refs/remotes"
        ).splitlines()
        return did_you_mean(ref, names) if names else "commit something first"

    def default_base(self, head: Revision) -> Revision:
        """Return the merge base of the head and the main branch.

        On the main branch itself, return the previous commit, or HEAD if the head is the working tree.

        Raises:
            InputError: there is nothing to compare with.
        """
        commit = head.commit or self.revision("HEAD", "HEAD").commit
        for branch in MAIN_BRANCHES:
            code, main = self._try("rev-parse", "--verify", "--quiet", f"{branch}^{{commit}}")
            if code != 0:
                continue
            code, fork = self._try("merge-base", main, commit)
            if code == 0 and fork and fork != commit:
                return self.named(fork, f"merge base with {branch}")
        if not head.tree:
            return self.named(commit, "HEAD")
        code, parent = self._try("rev-parse", "--verify", "--quiet", f"{commit}^1")
        if code != 0:
            fix = "name one with --base, or --worktree to compare uncommitted changes"
            raise InputError(
                "nothing to compare with", [Problem("--base", f"{head.short} has no commit before it", fix)]
            )
        return self.named(parent, "the commit before")

    def named(self, commit: str, shown_as: str) -> Revision:
        """Return a commit with a display name."""
        found = self.revision(commit, "--base")
        return Revision(shown_as, found.commit, found.tree, found.subject)

    def working_tree(self) -> Revision:
        """Return the working tree as a revision."""
        return Revision(_WORKTREE, "", "")

    def uncommitted(self) -> list[str]:
        """Return the uncommitted files of the project as lines of `git status --porcelain`."""
        output = self.git("status", "--porcelain", "--untracked-files=all", "--no-renames", "--", ".")
        return [
            line
            for line in output.splitlines()
            if not line.startswith("??")
            or (name := line[3:].strip('"')).endswith(SOURCES)
            or of_chart(self.top, name)
        ]

    def check_out(self, revision: Revision, folder: Path) -> Path:
        """Write the files of a revision to a folder and return the project's path in it.

        Raises:
            InputError: no space left, or git cannot read an object.
        """
        folder.mkdir()
        if revision.tree:
            index = folder.with_suffix(".index")
            self.git("read-tree", revision.commit, index=index)
            self.git(
                "-C",
                str(self.top),
                "checkout-index",
                "--all",
                "--force",
                "--quiet",
                f"--prefix={folder}/",
                index=index,
            )
            index.unlink(missing_ok=True)
        else:
            listed = self.git(
                "-C", str(self.top), "ls-files", "-z", "--cached", "--others", "--exclude-standard"
            )
            for name in filter(None, listed.split("\0")):
                _copy(self.top / name, folder / name)
        return folder / self.prefix if self.prefix else folder


def of_chart(root: Path, name: str) -> bool:
    """Return whether a file is in the folder of a Helm chart below `root`, whatever its name."""
    folders = PurePosixPath(name).parents
    return any((root / folder / "Chart.yaml").is_file() for folder in folders)


def _copy(source: Path, target: Path) -> None:
    if source.is_symlink() or source.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target, follow_symlinks=False)


def refuse_uncommitted(repository: Repository) -> None:
    """Reject uncommitted changes, which a diff of commits would miss.

    Raises:
        InputError: there are uncommitted changes; lists the files.
    """
    found = repository.uncommitted()
    if not found:
        return
    shown = [
        Problem(line[3:].strip('"'), _STATES.get(line[:2].strip()[:1], "is changed")) for line in found[:20]
    ]
    if len(found) > len(shown):
        shown.append(Problem("", f"and {len(found) - len(shown)} more"))
    shown.append(
        Problem(
            "",
            "a diff compares commits",
            "commit them, or add --worktree to compare the files as they are, or --head HEAD to ignore them",
        )
    )
    raise InputError("the working tree has changes that are not committed", shown)


_STATES = {
    "?": "is untracked",
    "A": "is staged but not committed",
    "D": "is deleted",
    "M": "is changed",
    "U": "is in conflict",
}


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """Create a temporary folder for both copies and always delete it.

    Raises:
        InputError: the folder cannot be created.
    """
    import signal

    try:
        folder = Path(tempfile.mkdtemp(prefix="trainfleet-diff-"))
    except OSError as error:
        raise unwritable(error, Path(tempfile.gettempdir())) from error
    try:
        yield folder
    except OSError as error:
        if error.errno in (28, 30, 13):
            raise unwritable(error, folder) from error
        raise
    finally:
        with contextlib.suppress(ValueError):  # not the main thread
            before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(ValueError, UnboundLocalError):
            signal.signal(signal.SIGINT, before)
