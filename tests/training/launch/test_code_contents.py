"""What `--code` archives: git's ignore rules, equal digests, links, limits."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.training.user_code import tree
from trainfleet.errors import InputError
from trainfleet.training.launch import code
from trainfleet.training.launch.code import Code, packed
from trainfleet.training.runtime import code_archive


def names_in(found: Code) -> set[str]:
    return set(code_archive.read(found.data, found.digest))


RULES = {
    "names": "*.log\ndata\n!keep.log\n",
    "anchored": "/top.py\nsub/inner.py\n",
    "folders": "data/\nsub/*/\n!sub/deep/\n",
    "stars": "**/deep/*.py\na/**/z.py\nsub/**\n",
    "classes": "[abc].py\nx[!1].py\n?.log\n\\#odd.py\n\\!odd.py\n",
    "sets": "[[:upper:]][^a].py\n[a\\-c]q\n[\\]]d\n[z-a].py\nx[!].py\n[[:any:]].py\n[d.py\ntop.py\\\n[]-]y\n",
    "lines": "\ufefftop.py\r\na.py\fd.py\n\u2028x1.py\n/\na//z.py\na/***/c/z.py\n",
    "spaces": "with space.py\ntrailing.py   \n# a comment.py\n\n",
    "nested": "*.py\n!sub/**/*.py\n!top.py\n",
}
NAMES = (
    *(
        "top.py",
        "a.py",
        "d.py",
        "x1.py",
        "x2.py",
        "y.log",
        "keep.log",
        "#odd.py",
        "!odd.py",
        "# a comment.py",
    ),
    *("with space.py", "trailing.py", "data/big.bin", "data/keep.log", "sub/inner.py", "sub/top.py"),
    *("Ab.py", "Aa.py", "-q", "bq", "aq", "]d", "[d.py", "]y", "-y", "b2.py"),
    *("sub/deep/inner.py", "sub/deep/keep.log", "sub/flat/b.py", "a/b/c/z.py", "a/z.py", "sub/data/x1.py"),
)


@pytest.mark.parametrize("case", sorted(RULES))
def test_the_rules_of_gitignore_mean_what_they_mean_to_git(case: str, tmp_path: Path) -> None:
    tree(tmp_path, *NAMES)
    (tmp_path / ".gitignore").write_bytes(RULES[case].encode())
    (tmp_path / "sub" / ".gitignore").write_text("flat/\n!/inner.py\n")
    git = ["git", "-C", str(tmp_path), "-c", "core.excludesFile=/dev/null", "-c", "core.quotePath=false"]
    subprocess.run([*git, "init", "-q"], check=True)
    listed = subprocess.run(
        [*git, "ls-files", "-z", "--others", "--exclude-standard"], capture_output=True, text=True, check=True
    )
    assert names_in(packed(tmp_path, "home")) == set(listed.stdout.strip("\0").split("\0"))


def test_caches_keys_runs_and_what_a_checkout_ignores_stay_here(tmp_path: Path) -> None:
    folder = tree(
        tmp_path / "exp", "mine.py", ".env", "a.ckpt", "__pycache__/mine.pyc", ".venv/x.py", "runs/a/b"
    )
    tree(folder, "data/x.bin", "pack/util.py", "pack/__pycache__/util.pyc")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".gitignore").write_text("*.ckpt\n/mine.py\n")  # another mine.py
    (folder / ".trainfleetignore").write_text("data/\n")
    found = packed(folder, "home", (folder / "runs",))
    assert names_in(found) == {"mine.py", "pack/util.py", ".trainfleetignore"}
    (folder / ".trainfleetignore").write_text("data/\n!.env\n")
    assert ".env" in names_in(packed(folder, "home", (folder / "runs",)))


def test_equal_folders_have_equal_digests_whatever_their_place_and_times(tmp_path: Path) -> None:
    one, two = (tree(tmp_path / name, "b.py", "a/c.py") for name in ("one", "two"))
    os.utime(two / "b.py", (1, 1))
    (two / "b.py").chmod(0o600)
    assert packed(one, "home").digest == packed(two, "home").digest
    (two / "b.py").write_text("changed")
    assert packed(one, "home").digest != packed(two, "home").digest


def test_links_are_archived_as_files_if_they_stay_in_the_folder(tmp_path: Path) -> None:
    folder = tree(tmp_path / "exp", "pack/util.py", "mine.py")
    (folder / "again").symlink_to("pack")
    (folder / "same.py").symlink_to("mine.py")
    assert names_in(packed(folder, "home")) == {"pack/util.py", "again/util.py", "mine.py", "same.py"}


def test_what_cannot_be_archived_is_refused_by_name_all_at_once(tmp_path: Path) -> None:
    folder = tree(tmp_path / "exp", "mine.py", "pack/util.py")
    tree(tmp_path, "secret.txt")
    (folder / "out").symlink_to("../secret.txt")
    (folder / "nothing").symlink_to("missing")
    (folder / "pack" / "loop").symlink_to("..")
    (folder / "itself").symlink_to("itself")
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "ipc.sock"))
    with pytest.raises(InputError) as caught:
        packed(folder, "home")
    messages = {problem.where: problem.what for problem in caught.value.problems}
    assert messages == {
        "out": f"is a link out of the folder, to {tmp_path / 'secret.txt'}",
        "nothing": "is a link to nothing",
        "itself": "is a link to nothing",
        "pack/loop": "is a link to a folder around it",
        "pipe": "is neither a file nor a folder",
        "ipc.sock": "is neither a file nor a folder",
    }
    (folder / ".trainfleetignore").write_text("\n".join(messages))
    assert names_in(packed(folder, "home")) == {"mine.py", "pack/util.py", ".trainfleetignore"}


def test_a_folder_that_cannot_be_read_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tree(tmp_path / "exp", "mine.py", "pack/util.py")
    allowed = os.scandir

    def scandir(path: Path) -> Iterator[os.DirEntry[str]]:
        """What the system says to a user who may not read the folder; root may read every one."""
        if path == folder / "pack":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return allowed(path)

    monkeypatch.setattr("os.scandir", scandir)
    with pytest.raises(InputError) as caught:
        packed(folder, "home")
    assert [(each.where, each.what) for each in caught.value.problems] == [("pack", "Permission denied")]


def test_a_folder_that_is_too_large_is_refused_with_its_largest_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tree(tmp_path / "exp", *(f"{number}.py" for number in range(9)))
    (folder / "data.bin").write_bytes(bytes(3 * 2**20))
    (folder / "more.bin").write_bytes(bytes(2 * 2**20))
    monkeypatch.setattr(code, "MAX_BYTES", 4 * 2**20)
    with pytest.raises(InputError) as caught:
        packed(folder, "home")
    whole, *largest = map(str, caught.value.problems)
    assert "has 5.0 MiB in 11 files, more than 4.0 MiB" in whole
    assert ".trainfleetignore" in whole
    assert largest[:2] == ["data.bin: 3.0 MiB", "more.bin: 2.0 MiB"]
    assert len(largest) == 5
    monkeypatch.setattr(code, "MAX_FILES", 5)
    with pytest.raises(InputError, match="more than 5 files"):
        packed(folder, "home")
