"""The command leaves no folder, process or work tree behind, whether it succeeds, fails or is interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.rehearsal.diff.conftest import Diffs
from tests.rehearsal.diff.repos import PARTS, STACK, Repo


def test_an_interrupt_leaves_no_folder_no_process_and_no_work_tree(
    repo: Repo, cache_home: Path, tmp_path: Path
) -> None:
    repo.replace(STACK, "team: ml", "team: vision")
    scratch = tmp_path / "interrupted"
    scratch.mkdir()
    environment = os.environ | {"TMPDIR": str(scratch), "XDG_CACHE_HOME": str(cache_home)}
    # Signals as a shell gives them to a command in front, also where the tests themselves run in the
    # background and ignore Ctrl-C.
    start = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from trainfleet.cli import"
        " main; main()"
    )
    command = [sys.executable, "-P", "-c", start, "diff", "one", "--worktree", "--no-cache"]
    child = subprocess.Popen(
        command,
        cwd=repo.root,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    family: set[psutil.Process] = set()
    try:
        limit = time.monotonic() + 120
        while (
            len(family) < 2 and child.poll() is None and time.monotonic() < limit
        ):  # the engine and the program
            family |= set(psutil.Process(child.pid).children(recursive=True))
        assert len(family) >= 2, child.communicate()
        os.kill(child.pid, signal.SIGINT)
        _, output = child.communicate(timeout=60)
    finally:
        child.kill()
        child.wait()
    assert child.returncode == 130, output
    assert list(scratch.iterdir()) == []
    assert [
        each
        for each in psutil.wait_procs(list(family), timeout=10)[1]
        if each.status() != psutil.STATUS_ZOMBIE
    ] == []
    assert repo.git("worktree", "list").count("\n") == 0


@pytest.mark.deep
def test_nothing_is_left_behind_after_success_and_failure(repo: Repo, diff: Diffs, tmp_path: Path) -> None:
    repo.replace(STACK, "team: ml", "team: vision")
    assert diff("one", "--worktree").returncode == 2
    repo.replace(PARTS, "def build(", "def built(")
    assert diff("one", "--worktree").returncode == 1
    assert list((tmp_path / "tmp").iterdir()) == []
