"""What `cluster up` does with the state of a local cluster, without a cluster."""

from __future__ import annotations

from collections.abc import Set
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest

from trainfleet.local_cluster import builds, checks, dns, pins, start, state
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
