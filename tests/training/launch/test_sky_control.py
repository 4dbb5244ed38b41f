"""The control of a run by SkyPilot: from any folder, through SkyPilot, the pods or the storage, with SkyPilot's
client replaced."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.training.launch.fake_sky import FakeSky
from trainfleet.errors import TrainfleetError
from trainfleet.training.launch.control import ALREADY_ENDED, SAVED, RunRef
from trainfleet.training.launch.sky import control as module
from trainfleet.training.launch.sky import job_state
from trainfleet.training.launch.sky.control import SkyControl
from trainfleet.training.stores.lease import LEASE

STEP = '(head, rank=0, pid=7) {"kind": "step", "step": %d, "total": 9}\n'
RESULT = '{"kind": "result", "status": "finished", "step": 9}\n'
EXIT = '{"kind": "exit", "code": 0}\n'


class ClusterDoesNotExist(ValueError):  # noqa: N818 - SkyPilot's own name
    """Has the name of SkyPilot's own error."""


class Sky(FakeSky):
    """SkyPilot's client with one run. `logs`: what each reading of its log gives; an error interrupts it."""

    def __init__(self, logs: list[list[str | Exception]], *, known: bool = True) -> None:
        jobs = [SimpleNamespace(job_id=each, job_name="tf-night") for each in (1, 2)]
        super().__init__(live=[SimpleNamespace(name="tf-night")] if known else [])
        self.queued = [*jobs, SimpleNamespace(job_id=3, job_name="tf-other")]
        self.logs = iter(logs)
        self.ended: Iterator[bool | Exception] = iter([])

    def tail_logs(self, name: str, job: int, follow: bool, output_stream: Any) -> int:
        self.calls.append(("log", name, job))
        for each in next(self.logs):
            if isinstance(each, Exception):
                raise each
            output_stream.write(each)
        return 0

    def state(self) -> Any:
        answer = next(self.ended)
        if isinstance(answer, Exception):
            raise answer
        return SimpleNamespace(is_terminal=lambda: answer)


class Jobs(ModuleType):
    """Managed jobs. `answers`: what each question for those that have not ended gives."""

    def __init__(self, sky: FakeSky, logs: list[list[str]], answers: list[bool | Exception]) -> None:
        super().__init__("sky.jobs")
        self.logs, self.answers, self.calls = iter(logs), iter(answers), sky.calls
        sky.get = self.get

    def queue_v2(self, *, all_users: bool, **_: Any) -> str:
        assert not all_users, "a job of another user is not this run"
        return "jobs"

    def cancel(self, job_ids: list[int]) -> str:
        self.calls.append(("cancel managed", *job_ids))
        return "cancel"

    def tail_logs(self, name: str, follow: bool, output_stream: Any) -> None:
        for line in next(self.logs):
            output_stream.write(line)

    def get(self, request: str) -> Any:
        if request != "jobs":
            return None
        answer = next(self.answers)
        if isinstance(answer, Exception):
            raise answer
        return ([SimpleNamespace(job_name="tf-night", job_id=4)] if answer else [], 0, {}, 0)


@pytest.fixture
def controlled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., SkyControl]:
    """Returns a function that makes the control of the run `night` with a client."""
    monkeypatch.setattr(module, "RECONNECT_S", (0.0,))
    monkeypatch.setattr(job_state, "POLL_S", 0.0)
    monkeypatch.setattr(module, "ask_to_stop", lambda *_: pytest.fail("nothing is to be asked"))
    monkeypatch.setattr(module, "delete_pods", lambda *_: False)

    def make(sky: Any, jobs: Jobs | None = None, **place: Any) -> SkyControl:
        if jobs is not None:
            package = ModuleType("sky")
            package.jobs = jobs  # type: ignore[attr-defined]  # a module made here
            monkeypatch.setitem(sys.modules, "sky", package)
            monkeypatch.setitem(sys.modules, "sky.jobs", jobs)
        found = {"contexts": {"near": "training"}, "managed": jobs is not None, **place}
        control = SkyControl(RunRef("night", str(tmp_path), {"on": "sky", "place": found}))
        vars(control)["_sky"] = sky
        return control

    return make


def shown(control: SkyControl, *, follow: bool = True) -> list[Any]:
    """The steps of the lines, and the kind of each other event."""
    events = [line for line in control.lines(follow=follow) if isinstance(line, dict)]
    return [event.get("step") if event["kind"] == "step" else event["kind"] for event in events]


def test_the_log_of_the_last_job_of_the_runs_name_is_followed_to_its_exit(
    controlled: Callable[..., SkyControl],
) -> None:
    sky = Sky([[STEP % 3, RESULT, EXIT]])
    assert shown(controlled(sky)) == [3, "result"]
    assert sky.calls[-1] == ("log", "tf-night", 2)


def test_a_log_that_is_interrupted_is_read_again_until_skypilot_reports_the_end(
    controlled: Callable[..., SkyControl],
) -> None:
    sky = Sky([[STEP % 3, ConnectionError("the server was killed")], [STEP % 3, STEP % 4], [RESULT]])
    sky.ended = iter([RuntimeError("no server"), False, True])
    assert shown(controlled(sky)) == [3, "note", 3, 4, "result"]


@pytest.mark.parametrize("kept", [True, False])
def test_the_client_has_the_options_of_the_cluster(
    kept: bool, controlled: Callable[..., SkyControl], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool | str] = []
    monkeypatch.setattr(module, "messages_to_stderr", lambda: seen.append("plain messages"))
    monkeypatch.setattr(module, "require_skypilot", lambda: None)
    monkeypatch.setattr(module, "ensure_server", lambda *_: None)
    monkeypatch.setattr(module, "set_client_options", lambda *, kept: seen.append(kept))
    monkeypatch.setitem(sys.modules, "sky", client := ModuleType("sky"))
    control = controlled(None, kept=kept, cluster="shared")
    del vars(control)["_sky"]
    assert control._sky is client
    assert seen == [kept, "plain messages"]


def test_a_job_that_has_ended_is_shown_without_waiting(controlled: Callable[..., SkyControl]) -> None:
    assert shown(controlled(Sky([[STEP % 3]])), follow=False) == [3]


def test_a_managed_job_whose_server_does_not_answer_has_not_ended(
    controlled: Callable[..., SkyControl],
) -> None:
    sky = Sky([])
    jobs = Jobs(sky, [[STEP % 3], [STEP % 4], [RESULT]], [True, RuntimeError("no server"), True, False])
    assert shown(controlled(sky, jobs)) == [3, "note", 4, "result"]


@pytest.mark.parametrize(
    "sky",
    [
        pytest.param(None, id="not installed"),
        pytest.param(Sky([], known=False), id="another machine's"),
    ],
)
def test_a_run_that_skypilot_does_not_know_here_is_read_from_its_storage(
    sky: Sky | None, controlled: Callable[..., SkyControl], tmp_path: Path
) -> None:
    row = {"kind": "train", "step": 5, "loss": 1.0}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    lines = list(controlled(sky).lines(follow=False))
    assert [each["row"]["step"] for each in lines if isinstance(each, dict) and "row" in each] == [5]


@pytest.mark.parametrize(
    ("error", "is_answer"),
    [
        (ClusterDoesNotExist("tf-night"), True),
        (RuntimeError("the server does not answer"), True),
        (ConnectionError("reset"), True),
        (Exception("UnknownError: of a later server"), True),
        (TypeError("a mistake of this program"), False),
        (KeyError("a mistake of this program"), False),
    ],
)
def test_errors_of_skypilot_are_answers_and_mistakes_of_this_program_are_raised(
    error: Exception, is_answer: bool, controlled: Callable[..., SkyControl], monkeypatch: pytest.MonkeyPatch
) -> None:
    sky = Sky([])

    def fail(_: str) -> Any:
        raise error

    monkeypatch.setattr(sky, "get", fail)
    control = controlled(sky)
    if is_answer:
        assert control._job is None
    else:
        with pytest.raises(type(error)):
            _ = control._job


RELEASED = {
    "own pods": ({}, ("down", "tf-night")),
    "long-lived": ({"kept": True, "cluster": "shared"}, ("cancel_job", "shared", 2)),
}


@pytest.mark.parametrize("now", [False, True], ids=["saved", "now"])
@pytest.mark.parametrize("kind", RELEASED)
def test_a_stop_saves_and_then_releases_what_the_run_holds(
    kind: str,
    now: bool,
    controlled: Callable[..., SkyControl],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place, released = RELEASED[kind]
    sky, asked = Sky([]), []
    (tmp_path / LEASE).write_text("{}")

    def ask(contexts: dict[str, str], selector: str) -> int:
        asked.append((contexts, selector))
        (tmp_path / LEASE).unlink()
        return 2

    monkeypatch.setattr(module, "ask_to_stop", ask)
    control = controlled(sky, selector="trainfleet.io/run=night", **place)
    how = control.stop(now=now, within_s=30, report=lambda _: None)
    assert how == ("ended at once" if now else SAVED)
    assert asked == ([] if now else [({"near": "training"}, "trainfleet.io/run=night")])
    assert sky.calls[-1] == released


def test_a_stop_of_a_managed_job_cancels_it(controlled: Callable[..., SkyControl]) -> None:
    sky = Sky([])
    control = controlled(sky, Jobs(sky, [], [True]))
    control.stop(now=True, within_s=1, report=lambda _: None)
    assert sky.calls[-1] == ("cancel managed", 4)


def test_a_stop_of_a_run_that_has_ended_deletes_its_pods_and_asks_nobody(
    controlled: Callable[..., SkyControl], tmp_path: Path
) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"status": "finished", "step": 9}))
    sky = Sky([])
    assert controlled(sky).stop(now=False, within_s=1, report=lambda _: None) == ALREADY_ENDED
    assert sky.calls[-1] == ("down", "tf-night")


class ClusterNotUpError(RuntimeError):
    """Has the name of SkyPilot's own error."""


@pytest.mark.parametrize("reached", [False, True], ids=["no pods yet", "some pods"])
def test_a_stop_of_a_run_that_has_no_job_yet_ends_its_launch(
    controlled: Callable[..., SkyControl], monkeypatch: pytest.MonkeyPatch, reached: bool
) -> None:
    """Deleting its pods alone would let SkyPilot continue elsewhere."""

    class Starting(Sky):
        def queue(self, cluster_name: str, **_: Any) -> str:
            raise ClusterNotUpError("Getting job queue: skipped for cluster 'tf-night' (status: INIT).")

    monkeypatch.setattr(module, "delete_pods", lambda *_: reached)
    sky = Starting([])
    assert controlled(sky).stop(now=True, within_s=1, report=lambda _: None) == "ended at once"
    assert sky.calls[-1] == ("down", "tf-night")


def test_pods_that_cannot_be_reached_are_left_to_skypilot_and_named(
    controlled: Callable[..., SkyControl],
) -> None:
    text = controlled(None).stop(now=True, within_s=1, report=lambda _: None)
    assert "SkyPilot releases its pods, which cannot be reached from here" in text


def test_pods_that_skypilot_does_not_delete_are_named_with_the_command(
    controlled: Callable[..., SkyControl], monkeypatch: pytest.MonkeyPatch
) -> None:
    sky = Sky([])

    def refused(_: str) -> str:
        raise RuntimeError("no permission")

    monkeypatch.setattr(sky, "down", refused)
    with pytest.raises(TrainfleetError, match=r"(?s)did not delete.*no permission.*sky down tf-night"):
        controlled(sky).stop(now=True, within_s=1, report=lambda _: None)
