"""Which engine is used, and that it is built once, completely or not at all. `go` and `pulumi` are fakes on
PATH.
"""

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

from trainfleet import toolchain
from trainfleet.errors import MissingToolError, TrainfleetError
from trainfleet.rehearsal.engine import build
from trainfleet.rehearsal.engine.find import find_engine, installed, is_enough

LIMIT = 60.0


def script(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set a PATH of one folder of fakes and the system's tools, and an empty cache. Returns the folder of
    fakes.
    """
    fakes = tmp_path / "fakes"
    fakes.mkdir()
    monkeypatch.setenv("PATH", f"{fakes}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("TRAINFLEET_PULUMI", raising=False)
    return fakes


def fake_go(folder: Path, build_body: str, version: str = "go1.99.0") -> Path:
    """A `go` that knows `version`, and for `build` finds in $OUT the file it should write."""
    find_out = 'while [ "$1" != -o ]; do shift; done; OUT=$2'
    return script(
        folder / "go",
        f'if [ "$1" = version ]; then echo "go version {version} linux/amd64"; exit 0;'
        f" fi\n{find_out}\n{build_body}",
    )


@pytest.mark.parametrize(
    ("version", "enough"),
    [("v3.200.0", True), ("3.201.1", True), ("v4.0.0-alpha", True), ("v3.199.9", False), ("nonsense", False)],
)
def test_the_minimum_version(version: str, enough: bool) -> None:
    assert is_enough(version) is enough


def test_a_new_pulumi_on_path_is_used(only: Path) -> None:
    path = script(only / "pulumi", "echo v3.215.0")
    engine = find_engine()
    assert (engine.path, engine.version, engine.built) == (path, "3.215.0", False)


def test_asking_for_the_version_writes_nothing_into_the_users_home(
    only: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("PULUMI_HOME", raising=False)
    home = "${PULUMI_HOME:-$HOME/.pulumi}"
    script(only / "pulumi", f'mkdir -p "{home}/logs" && : > "{home}/logs/version.log" && echo v3.274.1')
    assert find_engine().version == "3.274.1"
    assert not (tmp_path / "home").exists()


def test_an_old_or_broken_pulumi_on_path_is_not_used(only: Path) -> None:
    script(only / "pulumi", "echo v3.100.0")
    assert installed() is None
    script(only / "pulumi", "exit 1")
    assert installed() is None


def test_a_named_engine_comes_first_and_must_be_new(
    only: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(only / "pulumi", "echo v3.215.0")
    monkeypatch.setenv("TRAINFLEET_PULUMI", str(script(tmp_path / "mine", "echo v3.201.0")))
    assert find_engine().version == "3.201.0"
    script(tmp_path / "mine", "echo v3.1.0")
    with pytest.raises(MissingToolError, match=r"Pulumi 3\.1\.0, older than 3\.200\.0"):
        find_engine()


def test_a_build_is_cached_with_its_shims(only: Path) -> None:
    fake_go(only, 'echo built >> "$COUNT"; echo engine > "$OUT"')
    os.environ["COUNT"] = str(only / "count")
    lines: list[str] = []
    first, second = find_engine(lines.append), find_engine(lines.append)
    assert first == second
    assert first.built
    assert (only / "count").read_text() == "built\n"
    assert {path.name for path in first.path.parent.iterdir()} == {"pulumi", *build.SHIMS}
    assert any("building Pulumi" in line for line in lines)


def test_an_engine_whose_shims_name_other_modules_is_another_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """An earlier release's shims start modules that this one may not have."""
    key = build.key()
    monkeypatch.setattr(build, "SHIMS", dict.fromkeys(build.SHIMS, "moved.module"))
    assert build.key() != key


def test_two_processes_make_one_build(only: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = only / "gate"
    os.mkfifo(gate)
    monkeypatch.setenv("COUNT", str(only / "count"))
    monkeypatch.setenv("GATE", str(gate))
    fake_go(only, 'echo built >> "$COUNT"; read line < "$GATE"; echo engine > "$OUT"')
    command = [sys.executable, "-m", "trainfleet.rehearsal.engine.find"]
    both = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)
    ]
    _wait_for((only / "count").exists)
    with gate.open("w") as open_gate:
        open_gate.write("go\n")
    outputs = [process.communicate(timeout=LIMIT)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert outputs[0] == outputs[1]
    assert (only / "count").read_text() == "built\n"


def test_a_failed_build_reports_why_and_leaves_nothing(only: Path) -> None:
    fake_go(only, "echo 'no such module' >&2; exit 1")
    with pytest.raises(TrainfleetError, match="no such module"):
        find_engine()
    assert _folders() == []


def test_ctrl_c_kills_go_and_leaves_no_partial_build(only: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIDS", str(only / "pids"))
    fake_go(only, 'echo part > "$OUT"; echo $$ > "$PIDS"; exec tail -f /dev/null')
    child = subprocess.Popen(
        [sys.executable, "-m", "trainfleet.rehearsal.engine.find"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    _wait_for(lambda: (only / "pids").exists() and (only / "pids").read_text().strip() != "")
    go = psutil.Process(int((only / "pids").read_text()))
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=LIMIT)
    assert child.returncode == 130
    assert "Traceback" not in errors
    assert not go.is_running() or go.status() == psutil.STATUS_ZOMBIE
    assert _folders() == []


def test_without_pulumi_and_go_the_error_names_what_to_install(
    only: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_go(only, "exit 1", version="go1.1")
    monkeypatch.setattr(sys, "executable", str(script(only / "python", "echo 'no index'; exit 1")))
    with pytest.raises(MissingToolError) as caught:
        find_engine()
    assert "install Pulumi >= 3.200.0, or Go >= 1.26" in str(caught.value)
    assert _folders() == []


def test_the_pins_are_found_and_name_the_engine() -> None:
    assert toolchain.pinned("github.com/pulumi/pulumi/pkg/v3") == "3.200.0"
    assert toolchain.pinned("go") == "1.26"


def _folders() -> list[str]:
    cache = toolchain.cache_folder()
    return [path.name for path in cache.iterdir() if path.is_dir()] if cache.is_dir() else []


def _wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end, "nothing happened in time"
        os.sched_yield()
