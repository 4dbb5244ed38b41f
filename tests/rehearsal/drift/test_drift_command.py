"""`trainfleet drift` when something is missing: the message says what, and no traceback is shown."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.rehearsal.drift.recordings import BUCKET, changed, read, state, write
from trainfleet.rehearsal.drift.refresh import explained

Trainfleet = Callable[..., "subprocess.CompletedProcess[str]"]
RUNS = state(BUCKET, "runs", {"tags": {"team": "ml"}})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty Pulumi project with a stack."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "Pulumi.yaml").write_text("name: tiny\nruntime: python\n")
    (project / "Pulumi.one.yaml").write_text("config: {}\n")
    return project


def pulumi(folder: Path, body: str) -> dict[str, str]:
    """Put a program in the place of the user's Pulumi."""
    file = folder / "bin" / "pulumi"
    file.parent.mkdir()
    file.write_text(f'#!/bin/sh\n[ "$1" = version ] && echo v3.220.0 && exit 0\n{body}\n')
    file.chmod(0o755)
    return {"PATH": f"{file.parent}:{os.environ['PATH']}", "TRAINFLEET_PULUMI": ""}


REASONS = [
    ("error: PULUMI_ACCESS_TOKEN must be set for login during non-interactive CLI sessions", "no login"),
    ("error: getting stack: Get https://api.pulumi.com: dial tcp: lookup: no such host", "network"),
    ("error: incorrect passphrase, please set PULUMI_CONFIG_PASSPHRASE", "decrypted"),
    ("error: the stack is currently locked by 1 lock(s)", "working on the stack"),
    ("error: No valid credential sources found", "login to the cloud"),
    ("error: AccessDenied: not authorized to perform: ec2:DescribeVpcs", "may not read"),
    ("error: no stack named 'one' found", "not deployed"),
    ("error: something of its own", "Pulumi failed"),
]


@pytest.mark.parametrize(("output", "summary"), REASONS, ids=[each[1] for each in REASONS])
def test_a_failure_says_what_to_do(output: str, summary: str) -> None:
    error = explained(("preview", "--refresh"), f"Previewing\n{output}\n", [])
    assert summary in error.summary
    assert error.problems[0].what in output
    assert error.problems[0].fix


def test_credentials_in_a_message_are_not_repeated() -> None:
    text = "error: open https://user:hunter2@example.com/state?sig=abcdef: no such host"
    assert not {"hunter2", "abcdef"} & set(
        str(explained(("stack", "export"), text, [])).replace("=", " ").split()
    )
    assert "hunter2" not in str(explained(("stack", "export"), text, []))


def test_a_missing_pulumi_is_one_message(trainfleet: Trainfleet, folder: Path) -> None:
    path = os.pathsep.join(
        p for p in os.environ["PATH"].split(os.pathsep) if not (Path(p) / "pulumi").exists()
    )
    done = trainfleet("drift", str(folder), cwd=folder, PATH=path, TRAINFLEET_PULUMI="")
    assert (done.returncode, done.stdout) == (1, "")
    assert "is not on PATH" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_failing_pulumi_is_one_message(trainfleet: Trainfleet, folder: Path, tmp_path: Path) -> None:
    own = pulumi(tmp_path, "echo 'error: PULUMI_ACCESS_TOKEN must be set for login' >&2; exit 255")
    done = trainfleet("drift", str(folder), cwd=folder, **own)
    assert (done.returncode, done.stdout) == (1, "")
    assert "pulumi login URL" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_cancels_pulumi_and_leaves_nothing(
    number: signal.Signals, folder: Path, tmp_path: Path
) -> None:
    mark = tmp_path / "cancelled"
    own = pulumi(
        tmp_path, f"trap 'touch {mark}; exit 1' INT; touch {tmp_path}/began; while :; do sleep 0.1; done"
    )
    child = subprocess.Popen(
        [sys.executable, "-m", "trainfleet", "drift", str(folder)],
        env={**os.environ, **own},
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 120
    while not (tmp_path / "began").exists():
        assert time.monotonic() < deadline
        assert child.poll() is None
        time.sleep(0.05)
    below = psutil.Process(child.pid).children(recursive=True)
    child.send_signal(number)
    _, text = child.communicate(timeout=60)
    assert child.returncode == 130
    assert "nothing has changed" in text
    assert "Traceback" not in text
    assert mark.exists()
    assert not [each for each in below if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]


def test_options_that_have_no_meaning_are_refused(trainfleet: Trainfleet, tmp_path: Path) -> None:
    file = write(tmp_path, *read(RUNS, RUNS))
    done = trainfleet("drift", "--events", str(file), "--all", "--refresh-only", cwd=tmp_path)
    assert done.returncode == 2
    assert "--all" in done.stderr
    assert "--refresh-only" in done.stderr


def test_a_recording_needs_no_pulumi_and_no_project(trainfleet: Trainfleet, tmp_path: Path) -> None:
    file = write(tmp_path, *read(RUNS, changed(RUNS, tags={"team": "other", "x\x1b[2J": "\x1b]0;y\x07"})))
    done = trainfleet(
        "drift", "--events", str(file), "--markdown", "issue.md", cwd=tmp_path, TRAINFLEET_PULUMI="/none"
    )
    assert done.returncode == 3, done.stderr
    assert "tags.team: ml → other" in done.stdout
    assert not {"\x1b", "\x07"} & set(done.stdout)
    assert "tags.team" in (tmp_path / "issue.md").read_text()
    other = trainfleet("drift", "dev", "--events", str(file), cwd=tmp_path)
    assert other.returncode == 2
    assert "is of the stack `prod`, not `dev`" in other.stderr
