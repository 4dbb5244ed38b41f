"""A pod that is drained: Ray gets a preemption notice, and the pod stays until its ranks saved."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainfleet.training.runtime import pod_drain
from trainfleet.training.runtime.pod_drain import RANKS, SAVED, RankNote, drain, unsaved


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that trains in this pod until its input ends, and its note."""
    code = (
        "import os, sys; from trainfleet.training.runtime.pod_drain import RankNote\n"
        "with RankNote(os.environ): print('ready', flush=True); sys.stdin.read()"
    )
    env = {**os.environ, RANKS: str(tmp_path / "ranks")}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", code], env=env, stdin=pipe, stdout=pipe, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        end(process)


def end(process: subprocess.Popen[str]) -> None:
    if process.stdin is not None and not process.stdin.closed:
        process.stdin.close()
    process.wait()


def ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int = 0) -> Path:
    """A `ray` on the path, in the place of Ray's own command; returns the file with its arguments."""
    program = tmp_path / "bin" / "ray"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/arguments\nexit {code}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return tmp_path / "arguments"


def never(_seconds: float) -> None:
    raise AssertionError("there is nothing to wait for")


def test_a_pod_without_ranks_ends_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ray(tmp_path, monkeypatch)
    (tmp_path / "ranks").mkdir()
    (tmp_path / "ranks" / "999999999-1").write_text("training")  # its process was killed
    assert drain(tmp_path / "ranks", 60, never)
    assert drain(tmp_path / "missing", 60, never)
    assert not arguments.exists()


def test_a_pod_stays_until_its_ranks_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: subprocess.Popen[str]
) -> None:
    arguments, folder, waits = ray(tmp_path, monkeypatch), tmp_path / "ranks", []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        assert unsaved(folder) == [rank.pid]
        (note,) = folder.iterdir()
        note.write_text(SAVED if len(waits) == 2 else "training")

    assert drain(folder, 480, wait)
    assert len(waits) == 2
    assert arguments.read_text().split(" --", maxsplit=1)[0] == "drain-node"
    assert "--reason DRAIN_NODE_REASON_PREEMPTION" in arguments.read_text()
    assert "--deadline-remaining-seconds 480" in arguments.read_text()


@pytest.mark.parametrize("same", ["process", "thread"])
def test_the_number_of_a_rank_of_the_container_before_may_be_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, same: str
) -> None:
    arguments, over = ray(tmp_path, monkeypatch), threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        number = os.getpid() if same == "process" else thread.native_id
        assert Path("/proc", str(number)).exists(), "the kernel shows threads by number, too"
        folder = tmp_path / "ranks"
        folder.mkdir()
        (folder / f"{number}-1").write_text("training")
        assert drain(folder, 60, never)
        assert not arguments.exists()
    finally:
        over.set()
        thread.join()


def test_a_pod_does_not_wait_for_a_rank_that_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: subprocess.Popen[str]
) -> None:
    ray(tmp_path, monkeypatch)
    assert drain(tmp_path / "ranks", 480, lambda _: end(rank))


def test_a_pod_ends_if_the_checkpoint_takes_too_long(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rank: subprocess.Popen[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    ray(tmp_path, monkeypatch)
    assert rank.poll() is None
    monkeypatch.setenv(RANKS, str(tmp_path / "ranks"))
    assert pod_drain.main(["-1"]) == 0
    assert "the pod ends before its ranks saved" in capsys.readouterr().err


def test_nobody_waits_for_a_ray_that_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: subprocess.Popen[str]
) -> None:
    ray(tmp_path, monkeypatch, code=1)
    assert rank.poll() is None
    assert not drain(tmp_path / "ranks", 480, never)


def test_a_rank_notes_its_state_while_it_trains(tmp_path: Path) -> None:
    with RankNote({RANKS: str(tmp_path)}) as note:
        assert unsaved(tmp_path) == [os.getpid()]
        note.saved()
        assert unsaved(tmp_path) == []
        assert len(list(tmp_path.iterdir())) == 1
    assert list(tmp_path.iterdir()) == []


def test_outside_a_pod_nothing_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with RankNote({}) as note:
        note.saved()
    assert list(tmp_path.iterdir()) == []
