"""What `cluster up` asks of its nodes, and the names and addresses of nodes. No cluster is started."""

from __future__ import annotations

import os
from ipaddress import IPv4Network
from itertools import combinations
from pathlib import Path

import pytest

from trainfleet.errors import InputError
from trainfleet.local_cluster import life_cycle, nodes, servers, state, status
from trainfleet.local_cluster.node_settings import NodeOptions
from trainfleet.local_cluster.state import MOST_NODES, Settings, State


def cluster(count: int, folder: Path = Path("/nowhere")) -> State:
    settings = [Settings() for _ in range(count)]
    return State("local", folder, IPv4Network("10.213.0.0/16"), "0123", [], settings)


def test_the_first_node_has_the_names_and_addresses_of_a_cluster_with_one() -> None:
    first = cluster(3).nodes[0]
    assert (first.name, first.token, first.cgroup) == ("trainfleet-local-node", "0123", "trainfleet-local")
    assert (str(first.gateway), str(first.address)) == ("10.213.0.1", "10.213.0.2")
    assert first.folder == Path("/nowhere")
    assert str(first.pods) == "10.213.128.0/20"


def test_no_two_nodes_share_a_name_a_folder_or_an_address() -> None:
    it = cluster(MOST_NODES)
    for one, other in combinations(it.nodes, 2):
        assert len({one.name, other.name, one.token, other.token, one.cgroup, other.cgroup}) == 6
        assert one.folder != other.folder
        assert not one.pods.overlaps(other.pods)
        assert len({one.address, one.gateway, other.address, other.gateway}) == 4
    assert all(node.pods.subnet_of(it.pods) for node in it.nodes)
    assert all(node.address not in it.services and node.address not in it.pods for node in it.nodes)


def test_settings_survive_in_the_state_file_and_an_older_file_has_one_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    it = state.create("local", IPv4Network("10.213.0.0/16"))
    it.settings = NodeOptions(2, ["disk=fast"], ["node2:spot:NoExecute"], ["rdma/ib=2"]).merged(it.settings)
    it.save()
    again = state.load("local")
    assert again is not None
    assert again.settings == [
        Settings({"disk": "fast"}, [], {"rdma/ib": 2}),
        Settings({"disk": "fast"}, ["spot:NoExecute"], {"rdma/ib": 2}),
    ]
    file = it.file("state.json")
    file.write_text(file.read_text().replace('"nodes"', '"other"'))
    assert (older := state.load("local")) is not None
    assert older.settings == [Settings()]


def test_a_later_up_adds_to_earlier_ones() -> None:
    options = NodeOptions(
        3, ["a=1", "node3:a=3"], ["node2:x=1:NoSchedule"], ["nvidia.com/gpu=8", "node2:rdma/ib=1"]
    )
    before = options.merged([Settings()])
    assert [each.labels for each in before] == [{"a": "1"}, {"a": "1"}, {"a": "3"}]
    assert [each.devices.get("rdma/ib") for each in before] == [None, 1, None]
    after = NodeOptions(None, ["node2:b=2"], ["x=2:NoSchedule", "x=2:NoExecute"]).merged(before)
    assert after[1].labels == {"a": "1", "b": "2"}
    assert [each.taints for each in after] == [["x=2:NoSchedule", "x=2:NoExecute"]] * 3
    assert before[1].taints == ["x=1:NoSchedule"], "the argument is not changed"


@pytest.mark.parametrize(
    ("options", "existing", "where", "what", "fix"),
    [
        (NodeOptions(2), 3, "--nodes", "the cluster has 3 nodes", "cluster down"),
        (NodeOptions(9), 1, "--nodes", "9 are more than 8", "at most 8"),
        (NodeOptions(labels=["node2:a=b"]), 1, "--node-label", "names node2", "a larger --nodes"),
        (NodeOptions(labels=["a"]), 1, "--node-label", "'a' does not have the form", "node2:disk=fast"),
        (NodeOptions(labels=["a=b c"]), 1, "--node-label", "does not have the form", "node2:disk=fast"),
        (NodeOptions(taints=["a=b"]), 1, "--node-taint", "does not have the form", ":NoSchedule"),
        (NodeOptions(taints=["a=b:Never"]), 1, "--node-taint", "does not have the form", ":NoSchedule"),
        (NodeOptions(devices=["amd.com/gpu=1"]), 1, "--devices", "no stand-in for 'amd.com/gpu'", "rdma/ib"),
        (NodeOptions(devices=["nvidia.com/gpu=65"]), 1, "--devices", "no number from 0 to 64", "=8"),
        (NodeOptions(devices=["nvidia.com/gpu"]), 1, "--devices", "no number", "=8"),
    ],
)
def test_a_mistake_is_refused_with_its_option(
    options: NodeOptions, existing: int, where: str, what: str, fix: str
) -> None:
    with pytest.raises(InputError) as refused:
        options.merged([Settings() for _ in range(existing)])
    (problem,) = refused.value.problems
    assert problem.where == where
    assert what in problem.what
    assert fix in (problem.fix or "")


def test_all_mistakes_are_reported_at_once() -> None:
    with pytest.raises(InputError) as refused:
        NodeOptions(1, ["a"], ["b"], ["rdma/ib=x,efa=1"]).merged([Settings(), Settings()])
    assert [problem.where for problem in refused.value.problems] == [
        "--nodes",
        "--node-label",
        "--node-taint",
        "--devices",
        "--devices",
    ]


@pytest.mark.parametrize(
    ("name", "what"), [("node4", "is not a node"), ("node", "runs the control plane"), ("x", "is not a node")]
)
def test_a_node_that_cannot_be_stopped_is_refused(name: str, what: str) -> None:
    with pytest.raises(InputError) as refused:
        life_cycle.find(cluster(3), name)
    assert what in refused.value.problems[0].what
    assert refused.value.problems[0].fix


def test_a_node_is_found_by_its_short_and_its_full_name() -> None:
    it = cluster(2)
    assert life_cycle.find(it, "node2") == life_cycle.find(it, "trainfleet-local-node2") == it.nodes[1]


def test_each_node_has_its_own_zone_unless_it_is_given_one() -> None:
    it = cluster(3)
    it.settings[2].labels["topology.kubernetes.io/zone"] = "local-b"
    zones = [nodes.labels_of(node)["topology.kubernetes.io/zone"] for node in it.nodes]
    assert zones == ["local-a", "local-b", "local-b"]


def test_pods_of_a_lost_node_move_sooner_only_where_another_node_exists() -> None:
    flags = [servers.control_plane(cluster(count))["kube-apiserver"].command for count in (1, 3)]
    times = [[flag.partition("=")[2] for flag in row if "toleration-seconds" in flag] for row in flags]
    assert times == [["300", "300"], ["15", "15"]]


@pytest.mark.parametrize(
    ("text", "taint"),
    [
        ("a=b:NoSchedule", {"key": "a", "value": "b", "effect": "NoSchedule"}),
        ("nvidia.com/gpu:NoExecute", {"key": "nvidia.com/gpu", "value": "", "effect": "NoExecute"}),
    ],
)
def test_a_taint_is_read_as_kubectl_reads_it(text: str, taint: dict[str, str]) -> None:
    assert servers.as_taint(text) == taint


@pytest.mark.parametrize(
    ("runs", "started", "reported", "status", "ready"),
    [
        (True, 100, "1970-01-01T00:01:40Z", "True", True),
        (True, 101, "1970-01-01T00:01:40Z", "True", False),
        (True, 100, "1970-01-01T00:01:40Z", "Unknown", False),
        (True, None, "1970-01-01T00:01:40Z", "True", False),
        (False, 100, "1970-01-01T00:01:40Z", "True", False),
    ],
    ids=["reported since its start", "reported before", "lost", "starting", "stopped"],
)
def test_a_node_is_ready_once_its_kubelet_has_reported_since_its_start(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    runs: bool,
    started: int | None,
    reported: str,
    status: str,
    ready: bool,
) -> None:
    node = cluster(1, tmp_path).nodes[0]
    monkeypatch.setattr(nodes.node_process, "pid_of", lambda _: 1 if runs else None)
    if started is not None:
        node.file("ready").touch()
        os.utime(node.file("ready"), (started, started + 0.5))
    condition = {"type": "Ready", "status": status, "lastHeartbeatTime": reported}
    assert nodes.is_ready(node, {"status": {"conditions": [condition]}}) is ready
    assert not nodes.is_ready(node, {})


@pytest.mark.parametrize(
    ("running", "registered", "answers", "lacking"),
    [
        (True, True, [True], []),
        (True, True, [False, True], []),
        (True, True, [False] * 3, ["the cluster's DNS does not answer: see the log of coredns"]),
        (False, True, [True], ["kubelet does not run"]),
        (True, False, [], ["the API server does not answer: see the log of kube-apiserver"]),
    ],
    ids=["ready", "a query is lost", "no DNS", "a server", "no API server"],
)
def test_a_cluster_that_is_not_ready_says_what_it_lacks(
    monkeypatch: pytest.MonkeyPatch, running: bool, registered: bool, answers: list[bool], lacking: list[str]
) -> None:
    it = cluster(1)
    left = iter(answers)
    monkeypatch.setattr(status, "dns_is_ready", lambda _: next(left))
    row = {"name": it.nodes[0].name, "state": "runs", "ready": True, "short_of": []}
    document = {"servers": [{"name": "kubelet", "running": running}], "nodes": [row]}
    assert status._not_ready(it, document, answers=registered) == lacking
    assert list(left) == []


def test_a_cluster_that_does_not_exist_is_not_ready_and_says_how_to_start_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    document = status.cluster_status("none")
    assert not document["ready"]
    assert document["not_ready"] == ["there is no cluster none: `trainfleet cluster up --name none`"]
