"""Following a run on SkyPilot, with a fake SkyPilot: what is reported, what is deleted, and how failures are
explained.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.training.launch.fake_sky import LOG, FakeSky, ResourcesUnavailableError, driven
from trainfleet.errors import TrainfleetError
from trainfleet.training.launch.remote.follower import Stopped
from trainfleet.training.launch.sky import contexts, follow, job_state, pods
from trainfleet.training.launch.sky.recovery import Pod, RecoveryWatcher, describe

FULL = {
    "phase": "Pending",
    "conditions": [
        {"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available: 1 Insufficient cpu."}
    ],
}


def test_a_run_is_reported_and_its_pods_are_deleted(reported: list[dict[str, Any]]) -> None:
    sky = FakeSky()
    assert driven(reported, sky).run() == 0
    assert {"kind": "step", "step": 3, "total": 9} in reported
    assert ("launch", "tf-night", True) in sky.calls, "if this process is killed, SkyPilot must delete them"
    assert sky.calls[-1] == ("down", "tf-night")
    assert any(each.get("text") == "pods are up; setting up SkyPilot in them" for each in reported)


def test_the_machines_of_a_run_without_a_queue_are_held_from_the_start(
    reported: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the report counts the set-up as idle time."""
    monkeypatch.setattr(follow, "POLL_S", 0.01)
    stepped = threading.Event()

    class Waits(FakeSky):
        def tail_logs(self, *args: Any, **options: Any) -> Any:
            assert stepped.wait(60) is not None
            return super().tail_logs(*args, **options)

    def send(kind: str, **fields: Any) -> None:
        reported.append({"kind": kind, **fields})
        if kind == "admitted":
            stepped.set()

    one = driven(reported, Waits())
    one.send = send
    assert one.run() == 0
    kinds = [each["kind"] for each in reported]
    assert kinds.count("admitted") == 1
    assert kinds.index("admitted") < kinds.index("step")


def test_a_message_of_skypilot_is_shown_without_its_colors(reported: list[dict[str, Any]]) -> None:
    failure = RuntimeError("\x1b[31mFailed\x1b[0m to provision\n\n\x1b[33mtry another region\x1b[0m")
    with pytest.raises(TrainfleetError) as raised:
        driven(reported, FakeSky(failure=failure)).run()
    assert raised.value.summary == "SkyPilot could not start the run: Failed to provision"
    assert [each.what for each in raised.value.problems] == ["Failed to provision", "try another region"]


def test_the_exit_code_of_the_training_is_that_of_the_run(reported: list[dict[str, Any]]) -> None:
    assert driven(reported, FakeSky(['{"kind": "exit", "code": 3}\n'])).run() == 3


def test_detaching_keeps_the_run_and_prints_how_to_attach(reported: list[dict[str, Any]]) -> None:
    sky = FakeSky()
    assert driven(reported, sky, detach=True).run() == 0
    assert reported[-1]["kind"] == "detached"
    assert "trainfleet runs attach night" in " ".join(reported[-1]["how"])
    assert ("down", "tf-night") not in sky.calls


def test_a_lack_of_capacity_everywhere_reports_each_attempt(reported: list[dict[str, Any]]) -> None:
    reason = 'pods "tf-night-head" is forbidden: exceeded quota: none, requested: pods=1, used: pods=0'
    sky = FakeSky(failure=ResourcesUnavailableError(reason))
    with pytest.raises(TrainfleetError, match="no capacity anywhere; tried near, far") as raised:
        driven(reported, sky).run()
    assert "the quota `none` does not allow pods=1 more" in str(raised.value)
    assert ("cancel", "launch") in sky.calls
    assert sky.calls[-1] == ("down", "tf-night"), "a run that did not start must not keep GPUs"


@pytest.mark.parametrize("failures", [1, 2])
def test_a_setup_that_fails_in_a_pod_is_repeated_once_with_new_pods(
    reported: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    class Busy(FakeSky):
        def stream_and_get(self, request: str, output_stream: Any) -> Any:
            if self.calls.count(("launch", "tf-night", True)) <= failures:
                raise RuntimeError("Failed to run setup commands on an instance.")
            return super().stream_and_get(request, output_stream)

    monkeypatch.setattr(
        pods, "setup_failures", lambda contexts, selector: ["tf-night-head: env-setup failed"]
    )
    sky = Busy()
    if failures == 1:
        assert driven(reported, sky).run() == 0
    else:
        with pytest.raises(TrainfleetError, match=r"could not set up the pods\n.*env-setup failed"):
            driven(reported, sky).run()
    note = "tf-night-head: env-setup failed; starting again with new pods"
    assert [each.get("text") for each in reported].count(note) == 1
    starts_and_ends = [call[0] for call in sky.calls if call[0] in ("launch", "down")]
    assert starts_and_ends == ["launch", "down", "launch", "down"]


def test_a_setup_is_not_repeated_after_a_stop(
    reported: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    class StoppedThen(FakeSky):
        def down(self, name: str) -> str:
            follower.stopping = True
            return super().down(name)

    monkeypatch.setattr(
        pods, "setup_failures", lambda contexts, selector: ["tf-night-head: env-setup failed"]
    )
    sky = StoppedThen(failure=RuntimeError("Failed to run setup commands on an instance."))
    follower = driven(reported, sky)
    with pytest.raises(Stopped):
        follower.run()
    assert reported[-1]["text"] == "stopped before the run had pods; the request was canceled"
    assert [call[0] for call in sky.calls].count("launch") == 1


def test_a_context_that_does_not_answer_is_left_out(
    reported: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        contexts,
        "context_problem",
        lambda context, namespace, required: "it is off" if context == "near" else None,
    )
    one = driven(reported, FakeSky())
    assert one.run() == 0
    assert one.spec.task["resources"]["ordered"] == [{"infra": "k8s/far"}]
    assert {"kind": "warning", "text": "near is left out: it is off"} in reported


def test_nothing_starts_if_no_context_answers(
    reported: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contexts, "context_problem", lambda context, namespace, required: "it is off")
    sky = FakeSky()
    with pytest.raises(TrainfleetError, match="no context can be used"):
        driven(reported, sky).run()
    assert sky.calls == []


def test_a_log_that_ends_without_an_exit_code_is_a_failure(reported: list[dict[str, Any]]) -> None:
    sky = FakeSky(["Failed: ImagePullBackOff\n"])
    with pytest.raises(TrainfleetError, match="without reporting a result") as raised:
        driven(reported, sky).run()
    assert "the image cannot be pulled (ImagePullBackOff)" in str(raised.value)
    assert sky.calls[-1] == ("down", "tf-night")


class Breaking(FakeSky):
    """SkyPilot whose log is interrupted twice, and whose state of the job is asked in between."""

    def __init__(self, *answers: Any) -> None:
        super().__init__()
        self.answers = iter(answers)
        self.logs = iter([LOG[:2], None, LOG])

    def tail_logs(self, name: str, job: int, follow: bool, output_stream: Any) -> int:
        lines = next(self.logs)
        if lines is None:
            raise ConnectionError("the API server restarts")
        for line in lines:
            output_stream.write(line)
        return 0

    def state(self) -> Any:
        answer = next(self.answers)
        if isinstance(answer, Exception):
            raise answer
        return SimpleNamespace(is_terminal=lambda: answer == "ended")


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "RECONNECT_S", (0.01,))
    monkeypatch.setattr(job_state, "POLL_S", 0.01)


@pytest.mark.usefixtures("at_once")
def test_a_log_that_is_interrupted_does_not_end_a_run(reported: list[dict[str, Any]]) -> None:
    sky = Breaking("running", ConnectionError("connection refused"), "running")
    assert driven(reported, sky).run() == 0
    down = [number for number, call in enumerate(sky.calls) if call[0] == "down"]
    assert down == [len(sky.calls) - 1], "its pods were deleted before its end"
    assert "SkyPilot does not answer (connection refused); the run continues; retrying" in [
        each.get("text") for each in reported
    ]


@pytest.mark.usefixtures("at_once")
def test_the_last_lines_of_an_ended_run_are_read_after_its_log_was_interrupted(
    reported: list[dict[str, Any]],
) -> None:
    sky = Breaking("ended")
    sky.logs = iter([LOG[:2], LOG])
    assert driven(reported, sky).run() == 0


@pytest.mark.usefixtures("at_once")
def test_a_run_is_kept_if_skypilot_stops_answering(
    reported: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_state, "UNREACHABLE_S", 0.0)
    sky = Breaking(ConnectionError("connection refused"))
    with pytest.raises(TrainfleetError, match="SkyPilot no longer answers") as raised:
        driven(reported, sky).run()
    assert "the run continues; trainfleet runs attach night" in str(raised.value)
    assert ("down", "tf-night") not in sky.calls


def test_a_run_from_which_the_launcher_detaches_is_kept(
    reported: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    left = threading.Event()

    class Training(FakeSky):
        def tail_logs(self, name: str, job: int, follow: bool, output_stream: Any) -> int:
            output_stream.write(LOG[1])
            (tmp_path / "detach").touch()
            assert left.wait(60), "the launcher was not heard"
            return 0

    monkeypatch.setenv("TRAINFLEET_STOP_FILE", str(tmp_path / "stop"))
    sky = Training()
    one = driven(reported, sky)
    one.leave = lambda code: left.set()
    with pytest.raises(TrainfleetError, match="without reporting a result"):
        one.run()  # the fake does not end this process
    (detached,) = [each for each in reported if each["kind"] == "detached"]
    assert "trainfleet runs attach night" in " ".join(detached["how"])
    assert ("down", "tf-night") not in sky.calls


def test_the_time_in_a_queue_does_not_count(
    reported: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request is cancelled only after Kueue has admitted the run and no pod has started."""
    gate = {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}
    within_s = 1.0
    admitted: list[bool] = []
    looks: list[float] = []

    def live_pods(contexts: dict[str, str], run: str) -> list[tuple[str, dict[str, Any]]]:
        looks.append(time.monotonic())
        spec = gate if looks[-1] - looks[0] < 2 * within_s else {}
        if not spec:
            admitted.append(True)
        return [("near", {"metadata": {"uid": "1", "name": "night-head"}, "spec": spec, "status": FULL})]

    class Waiting(FakeSky):
        def stream_and_get(self, request: str, output_stream: Any) -> Any:
            assert self.blocked.wait(60), "the launch was not cancelled"
            raise RuntimeError("Request cancelled")

        def api_cancel(self, request: str, silent: bool) -> str:
            assert admitted, "the time in the queue was counted"
            self.blocked.set()
            return super().api_cancel(request, silent)

    monkeypatch.setattr(pods, "live_pods", live_pods)
    monkeypatch.setattr(follow, "WAITING_POLL_S", 0.0)
    monkeypatch.setattr(follow, "POLL_S", 0.02)
    with pytest.raises(TrainfleetError, match="no capacity anywhere within"):
        driven(reported, Waiting(), within_s=within_s).run()
    assert admitted
    notes = [each.get("text") for each in reported if each["kind"] == "note"]
    assert notes.count("queued: Kueue has not admitted the run yet") == 1
    assert [each["kind"] for each in reported].count("admitted") == 1
    (waits,) = [each for each in notes if str(each).startswith("waiting: ")]
    assert "night-head: " in waits
    assert "too little free CPU" in waits


def test_a_launch_that_times_out_is_cancelled(reported: list[dict[str, Any]]) -> None:
    class Waiting(FakeSky):
        def stream_and_get(self, request: str, output_stream: Any) -> Any:
            assert self.blocked.wait(60), "the launch was not cancelled"
            raise RuntimeError("Request cancelled")

        def api_cancel(self, request: str, silent: bool) -> str:
            self.blocked.set()
            return super().api_cancel(request, silent)

    sky = Waiting()
    with pytest.raises(TrainfleetError, match="no capacity anywhere within 0 minutes; tried near, far"):
        driven(reported, sky, within_s=0.0).run()
    assert ("down", "tf-night") in sky.calls


def test_a_stop_request_is_passed_to_the_pods(
    reported: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = threading.Event()

    class Training(FakeSky):
        def tail_logs(self, name: str, job: int, follow: bool, output_stream: Any) -> int:
            output_stream.write(LOG[1])
            (tmp_path / "stop").touch()
            assert asked.wait(60), "the pods did not receive the request"
            return super().tail_logs(name, job, follow, output_stream)

    def ask(contexts: dict[str, str], run: str) -> int:
        assert (list(contexts), run) == (["near", "far"], "trainfleet.io/run=night")
        asked.set()
        return 2

    monkeypatch.setattr(pods, "ask_to_stop", ask)
    monkeypatch.setenv("TRAINFLEET_STOP_FILE", str(tmp_path / "stop"))
    assert driven(reported, Training()).run() == 0


def test_the_time_of_a_move_is_split_into_its_parts() -> None:
    reported: list[dict[str, Any]] = []
    now, pods, knows = [0.0], [Pod("1", "near", True), Pod("2", "near", True)], [False]
    moves = RecoveryWatcher(2, lambda: pods, lambda: knows[0], reported.append, lambda: now[0])

    def at(seconds: float, *seen: Pod) -> None:
        now[0], pods[:] = seconds, seen
        moves.poll()

    at(1, Pod("1", "near", True), Pod("2", "near", False))
    assert not moves.settled, "one of them waits for a node"
    at(2, Pod("1", "near", True), Pod("2", "near", True))
    assert moves.settled
    moves.on_event("step")
    at(10, Pod("1", "near", True))
    moves.on_event("step")  # sent before the move, received later
    knows[0] = True
    at(18)
    at(30, Pod("3", "far", True))
    at(31, Pod("4", "far", True))  # the first new pod is gone
    at(40, Pod("4", "far", True), Pod("5", "far", True))
    now[0] = 70
    moves.on_event("note")
    now[0] = 75
    moves.on_event("step")
    assert [(each["from"], each["to"], each["seconds"], each["whole"]) for each in reported] == [
        ("near", "far", {"noticed": 8, "placed": 22, "set_up": 30, "resumed": 5}, 65)
    ]
    assert (
        describe(reported[0])
        == "moved from near to far in 65 s: 8 s until noticed, 22 for new pods, 30 to set up, 5 to the next step"
    )
    at(80, Pod("4", "far", True), Pod("5", "far", True))
    assert not moves.times, "the run has settled on the new pods"
