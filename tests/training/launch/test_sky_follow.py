"""Following a run on SkyPilot, with a fake SkyPilot: what is reported, what is deleted, and how failures are
explained.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from trainfleet.errors import InputError, TrainfleetError
from trainfleet.training.launch.sky import follow, pods
from trainfleet.training.launch.sky.event_stream import EventStream, note_of, reasons_in
from trainfleet.training.launch.sky.follow import Follower
from trainfleet.training.launch.sky.messages import SkySpec
from trainfleet.training.launch.sky.recovery import Pod, RecoveryWatcher, describe

ORDER = {
    "task": {"resources": {"ordered": [{"infra": "k8s/near"}, {"infra": "k8s/far"}]}, "run": "true"},
    "cluster": "tf-night",
    "run": "night",
    "managed": False,
    "detach": False,
    "within_s": 600.0,
    "contexts": {"near": "training", "far": "training"},
    "left_out": [],
}
LOG = [
    "Launching on Kubernetes near.\n",
    '(head, rank=0, pid=7) {"kind": "step", "step": 3, "total": 9}\n',
    '(head, rank=0, pid=7) {"kind": "exit", "code": 0}\n',
]


class ResourcesUnavailableError(Exception):
    """Has the name of SkyPilot's own error."""


class FakeSky(SimpleNamespace):
    """The part of SkyPilot that a follower calls."""

    def __init__(
        self, log: list[str] | None = None, failure: Exception | None = None, live: list[Any] | None = None
    ) -> None:
        super().__init__(
            calls=[],
            log=LOG if log is None else log,
            failure=failure,
            live=live or [],
            blocked=threading.Event(),
        )

    def status(self, cluster_names: list[str]) -> str:
        self.calls.append(("status", *cluster_names))
        return "status"

    def launch(self, task: Any, **options: Any) -> str:
        self.calls.append(("launch", options["cluster_name"], options["down"]))
        return "launch"

    def get(self, request: str) -> Any:
        return self.live if request == "status" else None

    def stream_and_get(self, request: str, output_stream: Any) -> Any:
        if self.failure is not None:
            raise self.failure
        output_stream.write("\x1b[33mCluster launched: tf-night\x1b[0m\n")
        return 1, None

    def tail_logs(self, name: str, job: int, follow: bool, output_stream: Any) -> int:
        for line in self.log:
            output_stream.write(line)
        return 0

    def down(self, name: str) -> str:
        self.calls.append(("down", name))
        return "down"

    def api_cancel(self, request: str, silent: bool) -> str:
        self.calls.append(("cancel", request))
        return "cancel"


@pytest.fixture
def reported(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    monkeypatch.setattr(follow, "context_problem", lambda context, namespace: None)
    monkeypatch.setattr(follow, "parse", lambda document: document)
    return []


def driven(reported: list[dict[str, Any]], sky: FakeSky, **order: Any) -> Follower:
    spec = SkySpec.model_validate(json.loads(json.dumps(ORDER)) | order)
    return Follower(spec, lambda kind, **fields: reported.append({"kind": kind, **fields}), sky)


def test_a_run_is_reported_and_its_pods_are_deleted(reported: list[dict[str, Any]]) -> None:
    sky = FakeSky()
    assert driven(reported, sky).run() == 0
    assert {"kind": "step", "step": 3, "total": 9} in reported
    assert ("launch", "tf-night", True) in sky.calls, "if this process is killed, SkyPilot must delete them"
    assert sky.calls[-1] == ("down", "tf-night")
    assert any(each.get("text") == "pods are up; setting up SkyPilot in them" for each in reported)


def test_the_exit_code_of_the_training_is_that_of_the_run(reported: list[dict[str, Any]]) -> None:
    assert driven(reported, FakeSky(['{"kind": "exit", "code": 3}\n'])).run() == 3


def test_detaching_keeps_the_run_and_prints_how_to_attach(reported: list[dict[str, Any]]) -> None:
    sky = FakeSky()
    assert driven(reported, sky, detach=True).run() == 0
    assert reported[-1]["kind"] == "detached"
    assert "sky logs tf-night 1" in " ".join(reported[-1]["how"])
    assert ("down", "tf-night") not in sky.calls


def test_a_lack_of_capacity_everywhere_reports_each_attempt(reported: list[dict[str, Any]]) -> None:
    reason = 'pods "tf-night-head" is forbidden: exceeded quota: none, requested: pods=1, used: pods=0'
    sky = FakeSky(failure=ResourcesUnavailableError(reason))
    with pytest.raises(TrainfleetError, match="no capacity anywhere; tried near, far") as raised:
        driven(reported, sky).run()
    assert "the quota `none` does not allow pods=1 more" in str(raised.value)
    assert ("cancel", "launch") in sky.calls
    assert sky.calls[-1] == ("down", "tf-night"), "a run that did not start must not keep GPUs"


def test_a_second_launch_of_one_name_is_rejected_and_the_first_is_kept(
    reported: list[dict[str, Any]],
) -> None:
    sky = FakeSky(live=[SimpleNamespace(name="tf-night")])
    with pytest.raises(InputError, match="already in progress"):
        driven(reported, sky).run()
    assert sky.calls == [("status", "tf-night")]


def test_a_context_that_does_not_answer_is_left_out(
    reported: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        follow, "context_problem", lambda context, namespace: "it is off" if context == "near" else None
    )
    one = driven(reported, FakeSky())
    assert one.run() == 0
    assert one.spec.task["resources"]["ordered"] == [{"infra": "k8s/far"}]
    assert {"kind": "warning", "text": "near is left out: it is off"} in reported


def test_nothing_starts_if_no_context_answers(
    reported: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "context_problem", lambda context, namespace: "it is off")
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
        assert (list(contexts), run) == (["near", "far"], "night")
        asked.set()
        return 2

    monkeypatch.setattr(follow, "ask_to_stop", ask)
    monkeypatch.setenv("TRAINFLEET_STOP_FILE", str(tmp_path / "stop"))
    assert driven(reported, Training()).run() == 0


class FakeJobs(ModuleType):
    """The part of SkyPilot's managed jobs that a follower calls: a log and a status for each set of pods."""

    def __init__(self, lives: list[tuple[list[str], str]], reason: str = "", controller: str = "") -> None:
        super().__init__("sky.jobs")
        self.lives, self.reason, self.controller = iter(lives), reason, controller
        self.calls: list[tuple[str, ...]] = []
        self.status = "PENDING"
        self.cancelled = threading.Event()

    def queue_v2(
        self, refresh: bool, skip_finished: bool = False, job_ids: list[int] | None = None, fields: Any = ()
    ) -> str:
        return "none" if skip_finished else "job"

    def launch(self, task: Any, name: str) -> None:
        self.calls.append(("launch", name))

    def cancel(self, name: str) -> None:
        self.calls.append(("cancel", name))
        self.cancelled.set()

    def tail_logs(self, job_id: int, follow: bool, output_stream: Any, controller: bool = False) -> None:
        if controller:
            output_stream.write(self.controller)
            return
        log, self.status = next(self.lives)
        for line in log:
            output_stream.write(line)

    def record(self) -> Any:
        status = SimpleNamespace(
            value=self.status,
            is_terminal=lambda: self.status in ("SUCCEEDED", "FAILED", "FAILED_NO_RESOURCE"),
        )
        return SimpleNamespace(status=status, failure_reason=self.reason)


@pytest.fixture
def managed(reported: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Follower]:
    """Returns a function that follows a managed job."""

    def make(jobs: FakeJobs, **order: Any) -> Follower:
        package = ModuleType("sky")
        package.jobs = jobs  # type: ignore[attr-defined]  # a module made here
        monkeypatch.setitem(sys.modules, "sky", package)
        monkeypatch.setitem(sys.modules, "sky.jobs", jobs)
        monkeypatch.setattr(follow, "list_pods", lambda contexts, run: [])
        sky = FakeSky()
        monkeypatch.setattr(
            sky, "get", lambda request: ([jobs.record()] if request == "job" else [], 0, {}, 0)
        )
        monkeypatch.setattr(sky, "stream_and_get", lambda request, output_stream: ([4], None))
        return driven(
            reported, sky, managed=True, task={"resources": {"infra": "k8s/near"}, "num_nodes": 2}, **order
        )

    return make


def test_a_stop_request_before_the_first_step_deletes_the_pods(
    reported: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    down = threading.Event()

    class Starting(FakeSky):
        def tail_logs(self, name: str, job: int, follow: bool, output_stream: Any) -> int:
            (tmp_path / "stop").touch()
            assert down.wait(60), "the pods were not deleted"
            return 0

        def down(self, name: str) -> str:
            down.set()
            return super().down(name)

    monkeypatch.setattr(follow, "ask_to_stop", lambda *_: pytest.fail("there is nothing to save"))
    monkeypatch.setenv("TRAINFLEET_STOP_FILE", str(tmp_path / "stop"))
    with pytest.raises(TrainfleetError, match="stopped before the first step"):
        driven(reported, Starting()).run()


def test_a_managed_job_is_queued_followed_and_not_deleted_after_its_end(
    managed: Callable[..., Follower],
) -> None:
    jobs = FakeJobs([(LOG, "SUCCEEDED")])
    assert managed(jobs).run() == 0
    assert jobs.calls == [("launch", "tf-night")]


def test_a_first_managed_job_does_not_need_a_controller(
    managed: Callable[..., Follower], monkeypatch: pytest.MonkeyPatch
) -> None:
    class ClusterNotUpError(Exception):
        """Has the name of SkyPilot's own error."""

    jobs = FakeJobs([(LOG, "SUCCEEDED")])
    one = managed(jobs)
    answer = one.sky.get

    def get(request: str) -> Any:
        if request == "none":
            raise ClusterNotUpError
        return answer(request)

    monkeypatch.setattr(one.sky, "get", get)
    assert one.run() == 0


def test_a_second_managed_job_of_one_name_is_rejected_and_the_first_is_kept(
    managed: Callable[..., Follower], monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = FakeJobs([])
    one = managed(jobs)
    monkeypatch.setattr(one.sky, "get", lambda request: ([SimpleNamespace(job_name="tf-night")], 1, {}, 1))
    with pytest.raises(InputError, match="already in progress"):
        one.run()
    assert jobs.calls == []


def test_the_last_events_of_lost_pods_do_not_decide_the_result(
    managed: Callable[..., Follower], reported: list[dict[str, Any]]
) -> None:
    lost = [
        '{"kind": "crash", "rank": 1, "error": "worker gone", "trace": ""}\n',
        '{"kind": "exit", "code": 1}\n',
    ]
    jobs = FakeJobs([(lost, "RUNNING"), ([], "RECOVERING"), (LOG, "SUCCEEDED")])
    assert managed(jobs).run() == 0
    assert not any(each["kind"] == "crash" for each in reported)
    assert {"kind": "step", "step": 3, "total": 9} in reported


def test_a_failure_on_healthy_pods_is_reported_with_its_exit_code(
    managed: Callable[..., Follower], reported: list[dict[str, Any]]
) -> None:
    failed = [
        '{"kind": "error", "summary": "no data", "problems": [], "exit_code": 2}\n',
        '{"kind": "exit", "code": 2}\n',
    ]
    assert managed(FakeJobs([(failed, "FAILED")])).run() == 2
    assert reported[-1] == {"kind": "error", "summary": "no data", "problems": [], "exit_code": 2}


def test_a_managed_job_that_never_ran_reports_the_reason_of_its_controller(
    managed: Callable[..., Follower],
) -> None:
    refused = 'pods "tf-night-head" is forbidden: exceeded quota: none, requested: pods=1, used: pods=0'
    jobs = FakeJobs([([], "FAILED_NO_RESOURCE")], reason="all places refused", controller=f"{refused}\n")
    with pytest.raises(TrainfleetError, match="the managed job ended: FAILED_NO_RESOURCE") as raised:
        managed(jobs).run()
    assert "the quota `none` does not allow pods=1 more" in str(raised.value)


def test_a_managed_job_without_capacity_ends_at_the_launch_timeout(
    managed: Callable[..., Follower],
) -> None:
    class Waiting(FakeJobs):
        def tail_logs(self, job_id: int, follow: bool, output_stream: Any, controller: bool = False) -> None:
            if not controller:
                assert self.cancelled.wait(60), "the job was not cancelled"
            super().tail_logs(job_id, follow, output_stream, controller)

    jobs = Waiting([([], "CANCELLING")], controller="exceeded quota: none, requested: pods=1\n")
    with pytest.raises(
        TrainfleetError, match="no capacity anywhere within 0 minutes; tried near, far"
    ) as raised:
        managed(jobs, within_s=0.0).run()
    assert "the quota `none` does not allow" in str(raised.value)
    assert jobs.calls == [("launch", "tf-night"), ("cancel", "tf-night")]


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


def test_each_event_is_found_once_between_other_lines_and_in_parts() -> None:
    received: list[dict[str, Any]] = []
    other: list[str] = []
    stream = EventStream(received.append, other.append)
    line = '(worker1, rank=1, pid=9, ip=10.0.0.2) {"kind": "interval", "row": {"step": 1}}\n'
    for piece in (
        line[:30],
        line[30:55],
        line[55:],
        line,
        "words {not json\n",
        '{"kind": 3}\n',
        "\x1b[36mlast\x1b[0m",
    ):
        stream.write(piece)
    stream.finish()
    assert received == [{"kind": "interval", "row": {"step": 1}}], (
        "a log that is fetched again repeats the event"
    )
    assert other == ["words {not json", '{"kind": 3}', "last"]
    assert stream.exit_code is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0/3 nodes are available: 3 Insufficient nvidia.com/gpu.", "no node has enough nvidia.com/gpu left"),
        (
            "1 node(s) had untolerated taint {nvidia.com/gpu: present}",
            "no node without the taint nvidia.com/gpu: present has capacity",
        ),
        (
            "node(s) didn't match Pod's node affinity/selector",
            "the pool has no node, and none was added in time",
        ),
        (
            "any instances satisfying the request: 1x Kubernetes(cpus=3, mem=6, image_id={'near'})",
            "no node has 3 CPUs and 6 GiB",
        ),
        ("Back-off: ErrImagePull", "the image cannot be pulled (ErrImagePull)"),
        ("(401) Reason: Unauthorized", "the context's token is no longer valid"),
        ("(403) Forbidden", "permission denied to the launcher's account"),
        ("HTTPSConnectionPool: Max retries exceeded with url", "the cluster does not answer"),
    ],
)
def test_a_failure_is_explained_once(text: str, says: str) -> None:
    found = reasons_in(f"{text}\n{text}")
    assert len(found) == 1
    assert says in found[0]


def test_only_changes_are_reported() -> None:
    assert note_of("Launching on Kubernetes ctx-a.") == "requesting pods from ctx-a"
    assert note_of("some chatter") is None


@pytest.mark.parametrize(
    ("output", "why"),
    [
        ('error: context "gone" does not exist', "there is no context `gone` in the kubeconfig"),
        ("error: You must be logged in to the server (Unauthorized)", "its token is not valid"),
        ("no", "its user may not create pods in training"),
        (
            "Unable to connect to the server: dial tcp 10.0.0.1:443: i/o timeout",
            "the cluster does not answer",
        ),
    ],
)
def test_the_error_of_a_context_is_explained(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, output: str, why: str
) -> None:
    program = tmp_path / "kubectl"
    program.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{output}\nEND\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert why in (pods.context_problem("gone", "training") or "")
