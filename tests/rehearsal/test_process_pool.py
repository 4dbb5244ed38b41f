"""Processes that rehearsals hand on to each other: the next one has its own settings, and a broken one is
nobody's.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from trainfleet.rehearsal.engine import process_pool
from trainfleet.rehearsal.engine.find import Engine
from trainfleet.rehearsal.engine.sandbox import read_project
from trainfleet.rehearsal.rehearse import RehearsalOptions, rehearsal_session

PROGRAMS = Path(__file__).with_name("programs")


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits, and nobody options for sharing."""
    monkeypatch.setattr(process_pool, "_IDLE", process_pool._Idle())


def previewed(engine: Engine) -> int:
    """The process that ran the program."""
    with rehearsal_session(read_project(PROGRAMS / "small"), engine, RehearsalOptions()) as rehearsal:
        assert rehearsal.runner.run("preview").ok
        assert rehearsal.programs.pooled is not None
        return rehearsal.programs.pooled.process.pid


@pytest.mark.deep
@pytest.mark.usefixtures("alone")
def test_the_next_rehearsal_takes_over_the_process_while_sharing_lasts(engine: Engine) -> None:
    with process_pool.sharing():
        first = previewed(engine)
        assert previewed(engine) == first
        assert Path(f"/proc/{first}").exists() or sys.platform != "linux"
    assert process_pool._IDLE.waiting == []
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)


@pytest.mark.usefixtures("alone")
def test_without_sharing_a_rehearsal_ends_its_process(engine: Engine) -> None:
    first = previewed(engine)
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)


@pytest.mark.usefixtures("alone")
def test_a_process_that_was_killed_or_has_other_paths_is_not_handed_on() -> None:
    here = dict(os.environ)
    with process_pool.sharing():
        one = process_pool.take(sys.executable, here)
        process_pool.give_back(one)
        one.process.kill()
        one.process.wait()
        two = process_pool.take(sys.executable, here)
        assert two.process.pid != one.process.pid
        two.busy = True  # a program runs in it
        process_pool.give_back(two)
        assert two.process.poll() is not None
        three = process_pool.take(sys.executable, here)
        process_pool.give_back(three)
        other = process_pool.take(sys.executable, here | {"PYTHONPATH": "/somewhere/else"})
        assert other is not three
        process_pool.give_back(other)


@pytest.mark.usefixtures("alone")
def test_an_interpreter_that_cannot_start_says_why(tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'no module named encodings' >&2\nexit 1\n")
    broken.chmod(0o755)
    process = process_pool.take(str(broken), dict(os.environ))
    assert process.run({}) == -1
    process.process.wait()
    assert process.last_output() == "no module named encodings"
    process_pool.give_back(process)
    assert process.errors.closed
