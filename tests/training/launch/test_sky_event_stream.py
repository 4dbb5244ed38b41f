"""What is read in SkyPilot's log: the events of a run, its progress, and the reasons of a failure."""

from __future__ import annotations

from typing import Any

import pytest

from trainfleet.training.launch.sky.event_stream import EventStream, note_of, reasons_in


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
            "node(s) didn't match pod affinity rules",
            "the node group of the run's first worker has no free node",
        ),
        (
            "any instances satisfying the request: 1x Kubernetes(cpus=3, mem=6, image_id={'near'})",
            "no node has 3 CPUs and 6 GiB",
        ),
        ("Back-off: ErrImagePull", "the image cannot be pulled (ErrImagePull)"),
        ("(401) Reason: Unauthorized", "the context's token is no longer valid"),
        (
            '(403) Reason: Forbidden: pods "x-head" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot',
            "the namespace's Pod Security level `restricted` forbids SkyPilot's pods",
        ),
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
