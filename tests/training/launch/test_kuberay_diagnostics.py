"""The reason why a run waits is reported in plain words that name the fix."""

from __future__ import annotations

from typing import Any

import pytest

from trainfleet.training.launch.kuberay.pod_log import whole_seconds
from trainfleet.training.launch.remote import pod_diagnostics
from trainfleet.training.launch.remote.log_stream import Line, Once, parse

MESSAGES = {
    "0/3 nodes are available: 1 Insufficient nvidia.com/gpu, 2 node(s) had untolerated taint {nvidia.com/gpu: present}. preemption: 0/3 nodes "
    "are available: 3 Preemption is not helpful for scheduling.": [
        "none of 3 nodes fits",
        "1 has too little free GPUs (nvidia.com/gpu)",
        "2 have the taint nvidia.com/gpu: present",
    ],
    "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector. no new claims to deallocate, preemption: 0/1 nodes are "
    "available: 1 Preemption is not helpful for scheduling.": [
        "none of 1 node fits",
        "1 lacks the labels asked for",
    ],
    "0/3 nodes are available: 1 Insufficient nvidia.com/gpu, 2 node(s) didn't match pod affinity rules.": [
        "none of 3 nodes fits",
        "1 has too little free GPUs (nvidia.com/gpu)",
        "2 are in other node groups than the first worker",
    ],
    "0/2 nodes are available: 2 Insufficient cpu, 2 Insufficient memory.": [
        "2 have too little free CPU",
        "2 have too little free memory",
    ],
    "0/1 nodes are available: 1 node(s) had untolerated taint(s). no new claims to deallocate, preemption: 0/1 nodes are available: "
    "1 Preemption is not helpful for scheduling.": [
        "none of 1 node fits",
        "1 has a taint that the pod does not tolerate",
    ],
    "no nodes available to schedule pods": ["no nodes available"],
    "": ["no node has been found yet"],
}


@pytest.mark.parametrize("message", sorted(MESSAGES))
def test_messages_of_the_scheduler_are_explained(message: str) -> None:
    output = pod_diagnostics.unschedulable(message)
    assert all(part in output for part in MESSAGES[message]), output
    assert "preemption" not in output.lower()


def test_nodes_without_enough_resources_are_reported() -> None:
    def node(name: str, **conditions: str) -> dict[str, Any]:
        return {
            "metadata": {"name": name},
            "status": {
                "conditions": [{"type": kind, "status": status} for kind, status in conditions.items()]
            },
        }

    well = node("well", Ready="True", DiskPressure="False", MemoryPressure="Unknown")
    assert pod_diagnostics.node_pressure([well]) == ""
    output = pod_diagnostics.node_pressure(
        [well, node("full", DiskPressure="True"), node("tight", MemoryPressure="True")]
    )
    assert output == "node full is short of disk, tight is short of memory and accepts no new pods until then"


def pod(
    role: str = "worker",
    *,
    waiting: dict[str, Any] | None = None,
    ready: bool = False,
    unscheduled: str = "",
    **status: Any,
) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    conditions += [{"type": "PodScheduled", "status": "False", "message": unscheduled}] if unscheduled else []
    statuses = [{"name": "ray", "image": "me/trainfleet:1", "state": {"waiting": waiting}}] if waiting else []
    return {
        "metadata": {"name": f"{role}-1", "labels": {"ray.io/node-type": role}},
        "status": {
            "phase": "Running" if ready else "Pending",
            "conditions": conditions,
            "containerStatuses": statuses,
            **status,
        },
    }


IMAGES = {
    'failed to pull and unpack image "me/trainfleet:1": failed to resolve reference: me/trainfleet:1: not found': "no such image or tag",
    "failed to authorize: 401 unauthorized": "requires a login",
    "dial tcp: lookup registry.example: no such host": "name does not resolve",
    "dial tcp 10.0.0.1:443: connect: connection refused": "does not answer",
}


@pytest.mark.parametrize("message", sorted(IMAGES))
def test_an_image_that_cannot_be_pulled_is_reported_with_its_reason(message: str) -> None:
    wait = pod_diagnostics.pod_wait(pod(waiting={"reason": "ErrImagePull", "message": message}))
    assert wait.kind == "image"
    assert IMAGES[message] in wait.text
    assert "me/trainfleet:1" in wait.text


def test_waiting_for_a_node_is_not_waiting_for_an_image() -> None:
    assert (
        pod_diagnostics.pod_wait(pod(unscheduled="0/1 nodes are available: 1 Insufficient cpu.")).kind
        == "node"
    )
    assert pod_diagnostics.pod_wait(pod()).kind == "start"
    assert pod_diagnostics.pod_wait(pod(ready=True)).kind == "none"


def test_a_missing_secret_is_reported_by_name() -> None:
    wait = pod_diagnostics.pod_wait(
        pod(waiting={"reason": "CreateContainerConfigError", "message": 'secret "s3-keys" not found'})
    )
    assert (wait.kind, 's3-keys" not found' in wait.text) == ("config", True)


def test_a_container_that_ran_out_of_memory_is_reported() -> None:
    crashing = pod(waiting={"reason": "CrashLoopBackOff"})
    crashing["status"]["containerStatuses"][0]["lastState"] = {
        "terminated": {"reason": "OOMKilled", "exitCode": 137}
    }
    assert "ran out of memory" in pod_diagnostics.pod_wait(crashing).text


def test_a_quota_is_reported_with_its_numbers() -> None:
    message = 'pods "x" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=4, used: requests.nvidia.com/gpu=0, limited: requests.nvidia.com/gpu=0'
    output = pod_diagnostics.exceeded_quota(message)
    assert (
        output
        == "the namespace's quota `gpus` allows 0 requests.nvidia.com/gpu, 0 are used, and this needs 4 more"
    )
    assert pod_diagnostics.exceeded_quota("something else") is None
    events = [
        {
            "type": "Warning",
            "reason": "FailedToCreateWorkerPod",
            "message": f"Failed to create worker Pod: {message}",
        }
    ]
    assert pod_diagnostics.why_not_created(events) == output


def test_the_newest_failure_is_reported() -> None:
    events = [
        {
            "type": "Warning",
            "reason": "FailedToCreateHeadPod",
            "message": "Failed: old",
            "lastTimestamp": "2026-01-01T00:00:00Z",
        },
        {
            "type": "Warning",
            "reason": "FailedToCreateHeadPod",
            "message": "Failed: new",
            "lastTimestamp": "2026-01-01T00:00:01Z",
        },
        {
            "type": "Normal",
            "reason": "CreatedHeadPod",
            "message": "made",
            "lastTimestamp": "2026-01-01T00:00:02Z",
        },
    ]
    assert pod_diagnostics.why_not_created(events) == "new"


def test_the_reason_for_waiting_in_the_queue_is_reported() -> None:
    condition = {
        "type": "QuotaReserved",
        "status": "False",
        "message": "insufficient unused quota for nvidia.com/gpu in flavor l4, 4 more needed",
    }
    assert "insufficient unused quota" in pod_diagnostics.queued(
        {"status": {"conditions": [condition]}}, "training"
    )
    assert pod_diagnostics.queued(None, "training") == "queued in `training`"


def test_pods_that_wait_for_the_same_reason_share_one_line() -> None:
    lacking = "0/1 nodes are available: 1 Insufficient cpu."
    text = pod_diagnostics.summary(
        [pod("head", ready=True), pod(unscheduled=lacking), pod(unscheduled=lacking)], 2
    )
    assert text.startswith("setting up: 0 of 2 workers and the head ready; 2 pods (worker) wait:")
    assert text.count("CPU") == 1


def test_nothing_is_reported_if_all_pods_are_ready() -> None:
    assert pod_diagnostics.summary([pod("head", ready=True), pod(ready=True)], 1) == ""


def received(lines: list[Line]) -> list[Line]:
    once = Once()
    return [line for line in lines if once(line)]


ATTEMPT: dict[str, Any] = {"kind": "attempt", "started": "1"}


def test_a_log_that_begins_again_is_not_received_twice() -> None:
    again = {"kind": "attempt", "started": "1"}
    assert received([ATTEMPT, "a", "b", again, "a", "b", "c"]) == [ATTEMPT, "a", "b", "c"]


def test_a_log_that_begins_again_within_a_repetition_is_not_received_twice() -> None:
    again = {"kind": "attempt", "started": "1"}
    assert received([ATTEMPT, "a", "b", "c", again, "a", again, "a", "b", "c", "d"]) == [
        ATTEMPT,
        "a",
        "b",
        "c",
        "d",
    ]


def test_a_new_attempt_is_received_from_its_start() -> None:
    second = {"kind": "attempt", "started": "2"}
    assert received([ATTEMPT, "a", "b", second, "a"]) == [ATTEMPT, "a", "b", second, "a"]


def test_lines_of_the_submitter_itself_are_ignored() -> None:
    waiting = {"kind": "submitter", "text": "waiting"}
    again = {"kind": "attempt", "started": "1"}
    assert received([waiting, ATTEMPT, "a", waiting, again, "a", "b"]) == [
        waiting,
        ATTEMPT,
        "a",
        waiting,
        "b",
    ]


@pytest.mark.parametrize("text", ["plain", '{"kind": "step", "step": 3', '{"kind": 3}', '{"other": 1}', ""])
def test_a_line_without_an_event_is_passed_on_unchanged(text: str) -> None:
    assert parse(text) == text


def test_a_line_with_an_event_is_parsed() -> None:
    assert parse('{"kind": "step", "step": 3, "total": 9}') == {"kind": "step", "step": 3, "total": 9}


@pytest.mark.parametrize("zone", ["Z", "+02:00"])
def test_times_are_rounded_to_whole_seconds(zone: str) -> None:
    assert whole_seconds(f"2026-11-22T00:30:35.123456789{zone}") == f"2026-11-22T00:30:35{zone}"
    assert whole_seconds("") is None


@pytest.mark.parametrize("first", ["Evicted", "QuotaReserved"])
def test_a_preempted_run_says_why_also_while_it_waits_for_quota(first: str) -> None:
    conditions = [
        {"type": "Evicted", "status": "True", "message": "Preempted to accommodate a workload"},
        {"type": "QuotaReserved", "status": "False", "message": "insufficient unused quota"},
    ]
    conditions.sort(key=lambda each: each["type"] != first)
    assert pod_diagnostics.queued({"status": {"conditions": conditions}}, "training") == (
        "requeued in `training`: Preempted to accommodate a workload; insufficient unused quota"
    )
