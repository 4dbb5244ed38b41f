"""The network that NCCL used is read from real logs, and compared with the one that the platform requires."""

from __future__ import annotations

import pytest

from tests.training.launch import nccl_logs as logs
from trainfleet.training.launch.remote.fabric_use import (
    NEEDS_A_LOG,
    NEEDS_A_PLUGIN,
    NEEDS_NO_FABRIC,
    fabric_use,
)
from trainfleet.training.launch.remote.nccl_log import NcclLog, read_nccl_log


def _read(text: str) -> NcclLog:
    return read_nccl_log(text.splitlines())


def _networks(log: NcclLog) -> set[str]:
    return {name for process in log.processes.values() for name in process.networks}


@pytest.mark.parametrize(
    ("text", "network", "versions", "gpu_direct"),
    [
        (logs.EFA, {"Libfabric"}, set(), None),
        (logs.EFA_CHANNELS, {"AWS Libfabric"}, set(), True),
        (logs.EFA_WITHOUT_DEVICES, set(), set(), None),
        (logs.ROCE_2_18, {"IB"}, {"2.18.5"}, None),
        (logs.ROCE_2_19, {"IB"}, {"2.19.3"}, None),
        (logs.IBEXT, {"IBext_v8"}, set(), None),
        (logs.IB_2_28, {"IB"}, set(), None),
        (logs.WITHOUT_NETWORK_2_30, set(), {"2.30.3"}, None),
        (logs.IB_WITHOUT_GPUDIRECT, {"IB"}, set(), False),
        (logs.SOCKETS, {"Socket"}, {"2.19.3"}, None),
        (logs.GIB, {"gIB"}, set(), None),
        (logs.GIB_MISSING, set(), set(), None),
    ],
)
def test_public_logs(text: str, network: set[str], versions: set[str], gpu_direct: bool | None) -> None:
    log = _read(text)
    assert (_networks(log), log.versions, log.gpu_direct) == (network, versions, gpu_direct)


@pytest.mark.parametrize(
    ("text", "required", "processes"),
    [
        (logs.EFA_CHANNELS, "AWS Libfabric", 2),
        (logs.EFA_CHANNELS, "Libfabric", 2),
        (logs.ROCE_2_19, "IB", 2),
        (logs.IBEXT, "IB", 2),
        (logs.GIB, "gIB", 1),
        (logs.SOCKETS, "", 1),
    ],
)
def test_the_required_network_was_used(text: str, required: str, processes: int) -> None:
    assert fabric_use(_read(text), required, processes).used


@pytest.mark.parametrize(
    ("text", "required", "reason", "fix"),
    [
        (logs.SOCKETS, "IB", "NCCL used Socket instead of IB: NET/Plugin: Failed to find", NEEDS_A_PLUGIN),
        (logs.SOCKETS, "gIB", "NET/IB : No device found.", NEEDS_A_PLUGIN),
        (logs.GIB_MISSING, "gIB", "network gIB not found.; NET/Plugin: Plugin load", NEEDS_A_PLUGIN),
        (logs.EFA_WITHOUT_DEVICES, "AWS Libfabric", "fi_getinfo() call failed", NEEDS_A_PLUGIN),
        (logs.WITHOUT_NETWORK_2_30, "IB", "Failed to initialize any NET plugin", NEEDS_A_PLUGIN),
        (logs.IB_2_28, "IB", "1 of 2 processes name no network", NEEDS_A_LOG),
        (logs.EFA, "AWS Libfabric", "1 of 2 processes name no network", NEEDS_A_LOG),
        (logs.ROCE_2_18, "", "NCCL used IB instead of Socket", NEEDS_NO_FABRIC),
        ("", "IB", "2 of 2 processes name no network", NEEDS_A_LOG),
    ],
)
def test_another_network_or_none(text: str, required: str, reason: str, fix: str) -> None:
    use = fabric_use(_read(text), required, 2)
    assert not use.used
    assert reason in use.reason
    assert use.fix == fix


def test_processes_of_hosts_may_share_an_id() -> None:
    same_pid = ["a:7:8 [0] NCCL INFO Using network IB", "b:7:8 [0] NCCL INFO Using network IB"]
    assert fabric_use(read_nccl_log(same_pid), "IB", 2).used
