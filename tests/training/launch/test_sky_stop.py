"""A stop before a run on SkyPilot has begun: whenever it comes, nothing of the run stays, and it does not fail."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.training.launch.fake_sky import ORDER, FakeSky, driven
from trainfleet.training.launch.remote.follower import STOPPED, Stopped
from trainfleet.training.launch.sky import follow, pods
from trainfleet.training.launch.sky.messages import SkySpec


@pytest.fixture(autouse=True)
def stop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The file by which the launcher asks for a stop."""
    monkeypatch.setattr(pods, "ask_to_stop", lambda *_: pytest.fail("there is nothing to save"))
    monkeypatch.setattr(follow, "POLL_S", 0.02)
    monkeypatch.setenv("TRAINFLEET_STOP_FILE", str(tmp_path / "stop"))
    return tmp_path / "stop"


STEP = '{"kind": "step", "step": 1, "total": 2}\n'


@pytest.mark.parametrize(
    ("printed", "saves", "when"),
    [("", True, "before the first step"), (STEP, False, "before its end")],
    ids=["before the first step", "evaluation"],
)
def test_a_stop_of_a_run_that_has_nothing_to_save_deletes_the_pods(
    printed: str, saves: bool, when: str, reported: list[dict[str, Any]], stop: Path
) -> None:
    down = threading.Event()

    class Running(FakeSky):
        def tail_logs(self, name: str, job: int, follow: bool, output_stream: Any) -> int:
            output_stream.write(printed)
            stop.touch()
            assert down.wait(60), "the pods were not deleted"
            return 0

        def down(self, name: str) -> str:
            down.set()
            return super().down(name)

    with pytest.raises(Stopped):
        driven(reported, Running(), saves=saves).run()
    assert reported[-1] == {"kind": "note", "text": f"stopped {when}; its pods are deleted"}


class Submitting(FakeSky):
    """SkyPilot's client that is asked to stop before the server has answered with a request."""

    def __init__(self, stop: Path) -> None:
        super().__init__()
        self.stop, self.noticed = stop, threading.Event()

    def launch(self, task: Any, **options: Any) -> str:
        self.stop.touch()
        assert self.noticed.wait(60), "the stop was not noticed"
        return super().launch(task, **options)

    def down(self, name: str) -> str:
        self.noticed.set()
        return super().down(name)

    def tail_logs(self, *_: Any, **options: Any) -> int:
        pytest.fail("the run is followed")


def test_a_stop_while_the_launch_is_submitted_cancels_the_request(
    reported: list[dict[str, Any]], stop: Path
) -> None:
    sky = Submitting(stop)
    with pytest.raises(Stopped):
        driven(reported, sky).run()
    assert [call[0] for call in sky.calls] == ["status", "down", "launch", "cancel", "down"]


def test_a_stop_is_not_lost_when_the_process_ends_at_once(reported: list[dict[str, Any]], stop: Path) -> None:
    """The launch fails by its cancellation, before its pods are requested to be deleted."""
    failed = threading.Event()

    class Slow(FakeSky):
        def stream_and_get(self, request_id: str, output_stream: Any) -> Any:
            stop.touch()
            assert self.blocked.wait(60), "the request was not cancelled"
            failed.set()
            raise RuntimeError("Request cancelled")

        def api_cancel(self, request_ids: str, silent: bool) -> str:
            self.blocked.set()
            assert failed.wait(60)
            threading.Event().wait(0.2)
            return super().api_cancel(request_ids, silent)

    sky = Slow()
    with pytest.raises(Stopped):
        driven(reported, sky).run()
    assert sky.calls[-1] == ("down", "tf-night")


@pytest.fixture
def sigterm() -> Iterator[None]:
    """Restores the handler that the main function of a follower sets."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("sigterm")
@pytest.mark.parametrize("ended", [False, True], ids=["stopped", "and ended at once"])
def test_the_process_of_a_stopped_launch_ends_as_after_a_signal(
    reported: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, stop: Path, tmp_path: Path, ended: bool
) -> None:
    """A second Ctrl-C is a SIGTERM: it comes while the first is carried out, and must not leave pods."""

    class Exited(BaseException):
        pass

    def leave(code: int) -> None:
        raise Exited

    class Sky(Submitting):
        def api_cancel(self, request_ids: str, silent: bool) -> str:
            if ended and ("cancel", "launch") not in self.calls:
                super().api_cancel(request_ids, silent)
                os.kill(os.getpid(), signal.SIGTERM)
            return super().api_cancel(request_ids, silent)

    sky = Sky(stop)
    monkeypatch.setitem(sys.modules, "sky", sky)  # type: ignore[arg-type]
    monkeypatch.setattr(follow.os, "_exit", leave)
    sink = SimpleNamespace(send=lambda kind, **fields: None, close=lambda: None)
    monkeypatch.setattr(follow.events, "EventSink", lambda _: sink)
    monkeypatch.delenv(follow.events.PARENT, raising=False)
    SkySpec.model_validate(ORDER).write(tmp_path / "sky.json")
    if ended:
        with pytest.raises(Exited):
            follow.main([str(tmp_path / "sky.json")])
    else:
        assert follow.main([str(tmp_path / "sky.json")]) == STOPPED
    assert sky.calls[-1] == ("down", "tf-night")
    assert ("cancel", "launch") in sky.calls
