"""What `cluster up` does with the state of a local cluster, without a cluster."""

from __future__ import annotations

from collections.abc import Set
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest

from trainfleet.errors import InputError
from trainfleet.local_cluster import (
    builds,
    cgroups,
    checks,
    dns,
    images,
    pins,
    pki,
    servers,
    start,
    state,
)
from trainfleet.local_cluster.node_settings import NodeOptions
from trainfleet.local_cluster.pins import Program

NETWORK = IPv4Network("10.213.0.0/16")


class Calls:
    """What `up` does not do here: the programs that it would build, and the simulated nodes."""

    def __init__(self) -> None:
        self.built: list[set[Program]] = []
        self.simulated = False

    def build_all(self, _: Any, optional: Set[Program]) -> None:
        self.built.append(set(optional))

    def start_servers(self, *_: Any, simulated: bool) -> None:
        self.simulated = simulated


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Calls:
    calls = Calls()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(checks, "require_supported", lambda: None)
    monkeypatch.setattr(checks, "require_resources", lambda *_, **__: None)
    monkeypatch.setattr(builds, "build_all", calls.build_all)
    monkeypatch.setattr(dns, "remove_outdated", lambda _: None)
    monkeypatch.setattr(start, "_write_nodes", lambda *_: None)
    monkeypatch.setattr(start, "_start_nodes", lambda _: [])
    monkeypatch.setattr(start, "_start_servers", calls.start_servers)
    return calls


def test_what_another_up_turned_on_during_the_build_stays(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepare(*_: Any) -> Path:  # meanwhile, `up --queue --no-network-policies --fake-node ...` ends
        other = state.create("both", NETWORK)
        other.queue, other.network_policies = True, False
        other.settings = NodeOptions(2, devices=["node2:nvidia.com/gpu=8"]).merged(other.settings)
        other.save()
        start.set_processes(other.control_plane, {"kwok": {}})
        return Path("/store")

    monkeypatch.setattr(start, "_prepare", prepare)
    start.start_cluster("both", lambda _: None, image=False)
    found = state.load("both")
    assert found is not None
    assert (found.queue, found.network_policies, calls.simulated) == (True, False, True)
    assert [each.devices for each in found.settings] == [{}, {"nvidia.com/gpu": 8}]
    assert calls.built == [{pins.KWOK, pins.KUEUE, pins.DEVICE_PLUGIN}]


@pytest.mark.parametrize("given", [True, False, None])
def test_the_options_are_kept_for_a_later_up(
    calls: Calls, monkeypatch: pytest.MonkeyPatch, given: bool | None
) -> None:
    prepared: list[set[Program]] = []
    monkeypatch.setattr(start, "_prepare", lambda _p, _i, optional: prepared.append(set(optional)))
    start.start_cluster("one", lambda _: None, image=False, enforce_policies=given, queue=True)
    found = start.start_cluster("one", lambda _: None, image=False)
    assert (found.queue, found.network_policies, calls.simulated) == (True, given is not False, False)
    programs = {pins.KUEUE} if given is False else {pins.KUEUE, pins.NETWORK_POLICIES}
    assert prepared == calls.built == [programs, programs]
    changed = start.start_cluster("one", lambda _: None, image=False, enforce_policies=given is False)
    assert changed.network_policies == (given is False)


def test_control_groups_of_a_cluster_of_another_home_are_refused_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups, done = tmp_path / "groups", list[str]()
    monkeypatch.setattr(cgroups, "hierarchies", lambda: [groups])
    monkeypatch.setattr(checks, "require_supported", lambda: None)
    monkeypatch.setattr(images, "clone", lambda node, _: done.append(node.short))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    pod = groups / "trainfleet-same-2" / "kubepods"
    pod.mkdir(parents=True)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "second"))
    cluster = state.create("same", NETWORK)
    cluster.settings = NodeOptions(2).merged(cluster.settings)
    cluster.save()
    with pytest.raises(InputError, match="another cluster has this name") as refused:
        start._write_nodes(cluster, tmp_path)
    assert [each.where for each in refused.value.problems] == [str(pod.parent)]
    assert (done, cluster.resources) == ([], [])
    assert start.remove_cluster("same", lambda _: None)
    assert pod.is_dir()


def test_the_own_control_groups_are_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "hierarchies", lambda: [tmp_path])
    monkeypatch.setattr(images, "clone", lambda *_: None)
    monkeypatch.setattr(pki, "create", lambda _: None)
    for module in (servers, dns):
        monkeypatch.setattr(module, "write_configuration", lambda _: None)
    monkeypatch.setattr(start, "write_shim", lambda _: None)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    state.create("same", NETWORK)
    for number in (1, 1, 2):
        cluster = state.load("same")
        assert cluster is not None
        cluster.settings = NodeOptions(number).merged(cluster.settings)
        start._write_nodes(cluster, tmp_path)
        assert (tmp_path / cluster.nodes[-1].cgroup).is_dir()
