"""What NCCL's log says about the network that it used. Pure.

Reads lines of NCCL_DEBUG=INFO (subsystems INIT, NET), of any number of processes and in any order:

    host:pid:thread [gpu] NCCL INFO Using network Libfabric
    host:pid:thread [gpu] NCCL INFO Channel 04/1 : 15[7] -> 2[2] [receive] via NET/IB/0/GDRDMA
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

_LINE = re.compile(r"(?P<host>[^\s:\[\]]*):(?P<pid>\d+):\d+ \[\s*\d+\s*\] .*?NCCL (?:INFO|WARN) (?P<text>.*)")
_VERSION = re.compile(r"NCCL version (\d+\.\d+\.\d+)")
_NETWORK = re.compile(r"Using network (?P<name>.+)")
_CHANNEL = re.compile(r"via NET/(?P<name>[^/]+)/\d+(?:\(\d+\))?(?P<options>(?:/\w+)*)")
_FAILURES = (
    re.compile(r"Error: network .+ not found"),
    re.compile(r"NET/IB ?: No device found"),
    re.compile(r"NET/OFI .*(?:failed|[Nn]o .*provider)"),
    re.compile(r"cannot open shared object file"),
    re.compile(r"version `.+' not found"),
    re.compile(r"Failed to find ncclNetPlugin symbol"),
    re.compile(r"Failed to initialize (?:any )?NET plugin"),
)
"""Lines that say why a network was not available. All of them also occur in logs of working networks."""


@dataclass
class Process:
    """One process with NCCL."""

    host: str
    networks: set[str] = field(default_factory=set)
    """Selected, or used by a channel; empty if NCCL did not get that far."""
    channels: int = 0
    """Channels to other nodes."""
    direct: int = 0
    """Channels with GPUDirect RDMA: the adapter reads and writes the GPU's memory."""


@dataclass
class NcclLog:
    """The facts of a run's log."""

    versions: set[str] = field(default_factory=set)
    processes: dict[tuple[str, int], Process] = field(default_factory=dict)
    """By host and process id."""
    failures: list[str] = field(default_factory=list)
    """Why networks were not available, each text once, in order."""

    @property
    def gpu_direct(self) -> bool | None:
        """Whether every channel to another node uses GPUDirect RDMA; None if the log shows no channel."""
        channels = sum(process.channels for process in self.processes.values())
        return sum(process.direct for process in self.processes.values()) == channels if channels else None


def read_nccl_log(lines: Iterable[str]) -> NcclLog:
    """The facts of a log; lines of other programs are skipped."""
    log = NcclLog()
    for line in lines:
        log.versions.update(_VERSION.findall(line))
        if match := _LINE.search(line):
            key = (match["host"], int(match["pid"]))
            _read(match["text"].strip(), log.processes.setdefault(key, Process(match["host"])), log)
    return log


def _read(text: str, process: Process, log: NcclLog) -> None:
    if network := _NETWORK.fullmatch(text):
        process.networks.add(network["name"])
    elif channel := _CHANNEL.search(text):
        process.networks.add(channel["name"])
        process.channels += 1
        process.direct += "/GDRDMA" in channel["options"]
    elif any(failure.search(text) for failure in _FAILURES) and text not in log.failures:
        log.failures.append(text)
