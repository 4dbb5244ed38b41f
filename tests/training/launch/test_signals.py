"""What ends a launch, and what ends its run: Ctrl-C, a closed terminal, `nohup`, and a launcher that is ended."""

from __future__ import annotations

import inspect
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.training.launch import launch_elsewhere
from tests.training.launches import wait_for
from trainfleet.process import Reaction
from trainfleet.training.cli.runs import stop_command
from trainfleet.training.launch import base, supervise

QUESTION = "Enter: continue ?"
WAIT_S = 60


class Launch:
    """A launch that follows its run, with or without a terminal."""

    def __init__(self, folder: Path, *prefix: str, attached: bool = False, terminal: bool = False) -> None:
        self.run = folder / "run"
        self.output_file = folder / "output"
        files = [str(self.run), str(folder / "runs")]
        # The tests themselves may run under nohup, which their child processes inherit.
        own = [
            "env",
            "--default-signal=HUP",
            "TERM=xterm",
            *prefix,
            sys.executable,
            launch_elsewhere.__file__,
        ]
        command = [*own, *files, *(["attached"] if attached else [])]
        self.master: int | None = None
        if terminal:
            self.master, slave = os.openpty()
            # A session whose controlling terminal is this one, as a login shell has.
            self.process = subprocess.Popen(
                ["setsid", "--ctty", *command], stdin=slave, stdout=slave, stderr=slave
            )
            os.close(slave)
            os.set_blocking(self.master, False)
            self.seen = ""
        else:
            with self.output_file.open("wb") as file:
                self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        self.advances()

    def output(self) -> str:
        """What it has printed."""
        if self.master is None:
            return self.output_file.read_text()
        try:
            while text := os.read(self.master, 4096):
                self.seen += text.decode()
        except OSError:  # nothing now, or no process has it open
            pass
        return self.seen

    def type(self, text: str) -> None:
        """Type into its terminal. Ctrl-C is \\x03."""
        assert self.master is not None
        os.write(self.master, text.encode())

    def asks(self, times: int = 1) -> None:
        """Wait until it has asked."""
        wait_for(lambda: self.output().count(QUESTION) == times, "no question", WAIT_S)

    def continues(self) -> None:
        """Wait until it has read the answer: Ctrl-C discards what is typed and not read."""
        wait_for(lambda: "starting" in self.output().rpartition(QUESTION)[2], "no progress", WAIT_S)

    def close_terminal(self) -> None:
        """Close its terminal."""
        assert self.master is not None
        os.close(self.master)
        self.master = None
        self.output_file.touch()

    def advances(self) -> None:
        """Wait until it has followed the run further."""
        before = self.run.read_text() if self.run.exists() else ""
        wait_for(
            lambda: self.run.exists() and self.run.read_text() not in ("", before), self.output(), WAIT_S
        )

    def ended(self) -> tuple[int, bool]:
        """Wait for its end: the exit code, and whether the run is still there."""
        wait_for(lambda: self.output() is not None and self.process.poll() is not None, "no end", WAIT_S)
        self.output()
        return self.process.returncode, self.run.exists()

    def kill(self) -> None:
        """End what is left."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.master is not None:
            os.close(self.master)


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Launch]]:
    started: list[Launch] = []

    def start(*prefix: str, **options: bool) -> Launch:
        started.append(Launch(tmp_path, *prefix, **options))
        return started[-1]

    yield start
    for each in started:
        each.kill()


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_launcher_that_is_ended_leaves_its_run_alone(launch: Callable[..., Launch], number: int) -> None:
    one = launch()
    one.process.send_signal(number)
    assert one.ended() == (0, True), one.output()
    assert "the run is still there" in one.output()


def test_a_run_that_fails_while_its_launcher_detaches_is_reported(launch: Callable[..., Launch]) -> None:
    one = launch()
    one.run.with_name(launch_elsewhere.FAILS).touch()
    one.process.send_signal(signal.SIGTERM)
    assert one.ended()[0] == 1, one.output()
    assert "its loss is not finite" in one.output()


@pytest.mark.parametrize("full", [False, True], ids=["reader-ended", "disk-full"])
def test_an_output_that_cannot_be_written_leaves_the_run_alone(tmp_path: Path, full: bool) -> None:
    # As in `trainfleet launch ... | head -1`, and in `... > file` on a disk that is full.
    run = tmp_path / "run"
    run.with_name(launch_elsewhere.REPORTS).touch()
    command = [sys.executable, launch_elsewhere.__file__, str(run), str(tmp_path / "runs")]
    with open("/dev/full" if full else os.devnull, "wb") as nowhere:  # noqa: PTH123
        stdout = nowhere if full else subprocess.PIPE
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE, text=True
        )
        if process.stdout is not None:
            assert process.stdout.readline()
            process.stdout.close()
        _, errors = process.communicate(timeout=WAIT_S)
    assert (process.returncode, run.exists()) == (0, True), errors
    assert "the output cannot be written" in errors


def test_a_run_that_finished_while_its_launcher_was_away_has_not_failed(
    launch: Callable[..., Launch],
) -> None:
    """What the launcher follows has been released meanwhile; the run's files say that it has finished."""
    one = launch()
    file = one.run.parent / "runs" / "lm-tiny" / "run.json"
    record = json.loads(file.read_text())
    stored = {
        "status": "finished",
        "asked": 40,
        "step": 40,
        "metrics": {"validation/loss": 1.5},
        "baseline": {},
    }
    file.write_text(json.dumps(record | stored))
    one.run.with_name(launch_elsewhere.FAILS).touch()
    one.process.send_signal(signal.SIGTERM)
    assert one.ended()[0] == 0, one.output()
    assert "finished 40 steps" in one.output()
    last = json.loads(file.read_text())["launches"][-1]
    assert last["status"] == "finished"
    assert "error" not in last


@pytest.mark.parametrize(("starts", "code", "status"), [(1, 130, "stopped"), (0, 1, "failed")])
def test_a_run_that_stopped_while_its_launcher_was_away_has_stopped(
    starts: int, code: int, status: str, launch: Callable[..., Launch]
) -> None:
    """A run that has not started since was stopped by an earlier launch."""
    one = launch()
    file = one.run.parent / "runs" / "lm-tiny" / "run.json"
    record = json.loads(file.read_text())
    stored = {"status": "stopped", "asked": 0, "step": 20, "metrics": {}, "baseline": {}}
    file.write_text(json.dumps(record | stored | {"starts": [{"from_step": 0}] * starts}))
    one.run.with_name(launch_elsewhere.FAILS).touch()
    one.process.send_signal(signal.SIGTERM)
    assert one.ended()[0] == code, one.output()
    assert ("stopped after step 20, which is saved" in one.output()) is bool(starts)
    assert json.loads(file.read_text())["launches"][-1]["status"] == status


def test_a_run_that_stopped_while_attach_was_away_has_stopped(launch: Callable[..., Launch]) -> None:
    """It started before `runs attach` followed it."""
    first = launch()
    first.process.send_signal(signal.SIGTERM)
    assert first.ended()[0] == 0, first.output()
    file = first.run.parent / "runs" / "lm-tiny" / "run.json"
    stored = {"status": "stopped", "asked": 0, "step": 20, "metrics": {}, "baseline": {}}
    file.write_text(json.dumps(json.loads(file.read_text()) | {"starts": [{"from_step": 0}]}))
    one = launch(attached=True)
    file.write_text(json.dumps(json.loads(file.read_text()) | stored))
    one.run.with_name(launch_elsewhere.FAILS).touch()
    one.process.send_signal(signal.SIGTERM)
    assert one.ended()[0] == 130, one.output()
    assert "stopped after step 20, which is saved" in one.output()


def test_ctrl_c_without_a_terminal_stops_the_run(launch: Callable[..., Launch]) -> None:
    one = launch()
    one.process.send_signal(signal.SIGINT)
    assert one.ended() == (130, False), one.output()


def test_ctrl_c_only_leaves_a_run_that_another_launch_started(launch: Callable[..., Launch]) -> None:
    one = launch(attached=True, terminal=True)
    one.type("\x03")
    assert one.ended() == (0, True), one.output()
    assert QUESTION not in one.output()


def test_nohup_is_respected(launch: Callable[..., Launch]) -> None:
    one = launch("nohup")
    one.process.send_signal(signal.SIGHUP)
    one.advances()
    one.advances()
    one.process.send_signal(signal.SIGTERM)
    assert one.ended() == (0, True), one.output()


def test_a_closed_terminal_leaves_the_run_alone(launch: Callable[..., Launch]) -> None:
    one = launch(terminal=True)
    one.close_terminal()
    assert one.ended() == (0, True)
    one = launch(terminal=True)
    one.type("\x03")
    one.asks()
    one.close_terminal()
    assert one.ended() == (0, True), "the question had no answer"


@pytest.mark.parametrize(
    ("typed", "ends"), [("s\n", (130, False)), ("d\n", (0, True)), ("\x03", (130, False))]
)
def test_ctrl_c_asks_what_to_do_with_the_run(
    launch: Callable[..., Launch], typed: str, ends: tuple[int, bool]
) -> None:
    one = launch(terminal=True)
    one.type("\x03")
    one.asks()
    one.type("what\n")
    one.asks(2)
    one.type("\n")
    one.continues()
    one.type("\x03")
    one.asks(3)
    one.type(typed)
    assert one.ended() == ends, one.output()


@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize("job", ["", "{}"], ids=["training", "evaluation"])
def test_what_saves_nothing_is_not_waited_for(job: str, remote: bool, tmp_path: Path) -> None:
    shown: list[str] = []
    launch = SimpleNamespace(
        reported=SimpleNamespace(stepped=True),
        target=SimpleNamespace(request=SimpleNamespace(job=job)),
        launcher=SimpleNamespace(remote=remote),
        _show=lambda event: shown.append(event["text"]),
    )
    reaction = supervise._Launch._stop(launch, tmp_path)  # type: ignore[arg-type]
    at_once = bool(job) and not remote
    assert reaction is (Reaction.END_NOW if at_once else Reaction.END_SOON)
    assert (tmp_path / "stop").exists() is not at_once
    assert [each.partition(" (")[0] for each in shown] == {
        ("", False): ["stopping: saving a checkpoint first"],
        ("", True): ["stopping: saving a checkpoint first"],
        ("{}", False): [],
        ("{}", True): ["stopping: deleting what was started"],
    }[job, remote]


def test_every_launcher_waits_for_the_last_save_as_long_as_runs_stop_does() -> None:
    """`runs stop` signals the launcher of a run on this machine."""
    minutes = inspect.signature(stop_command).parameters["within"].default
    assert {on: base.find(on).grace_seconds >= 60 * minutes for on in base.LAUNCHERS} == dict.fromkeys(
        base.LAUNCHERS, True
    )
