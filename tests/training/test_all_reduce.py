"""The program of `trainfleet fabric check`: two real processes on this machine, and nccl-tests' arithmetic."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from trainfleet.training.runtime.all_reduce import SIZES, Timing, line, read_timings, sizes


def _start(machine: int, port: int, **more: str) -> subprocess.Popen[str]:
    options = {"backend": "gloo", "machines": 2, "machine": machine, "per-machine": 1, "port": port}
    given = {name: str(value) for name, value in options.items()} | {"address": "127.0.0.1"} | more
    command = [sys.executable, "-m", "trainfleet.training.runtime.all_reduce"]
    return subprocess.Popen(
        [*command, *(f"--{name}={value}" for name, value in given.items())],
        env=os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.mark.deep
def test_two_machines_time_all_reduces_and_rank_0_prints_them() -> None:
    port = _free_port()
    programs = [_start(machine, port) for machine in range(2)]
    try:
        outputs = [program.communicate(timeout=120) for program in programs]
    finally:
        for program in programs:
            program.kill()
    assert [program.returncode for program in programs] == [0, 0], outputs
    timings = read_timings(outputs[0][0].splitlines())
    assert [each.size for each in timings] == sizes(*SIZES["gloo"])
    assert {each.ranks for each in timings} == {2}
    assert all(each.seconds > 0 for each in timings)
    assert read_timings(outputs[1][0].splitlines()) == []


@pytest.mark.deep
def test_a_machine_that_waits_in_vain_ends_with_an_error() -> None:
    alone = _start(0, _free_port(), wait="0.2")
    _, errors = alone.communicate(timeout=120)
    assert alone.returncode == 1
    assert "error: an all-reduce failed:" in errors


@pytest.mark.parametrize(
    ("size", "seconds", "ranks", "algorithm", "bus"),
    [(1_000_000_000, 0.01, 16, 100.0, 187.5), (2_000_000_000, 0.1, 2, 20.0, 20.0)],
)
def test_bandwidths_are_those_of_nccl_tests(
    size: int, seconds: float, ranks: int, algorithm: float, bus: float
) -> None:
    timing = Timing(size, seconds, ranks)
    assert timing.algorithm_bandwidth == pytest.approx(algorithm)
    assert timing.bus_bandwidth == pytest.approx(bus)


def test_results_are_read_among_other_lines() -> None:
    timings = [Timing(8, 0.5, 2), Timing(16, 0.25, 2)]
    assert read_timings(["a:1:2 [0] NCCL INFO Using network IB", line(timings), "later"]) == timings
    assert read_timings(["nothing"]) == []


def test_sizes_double_up_to_the_largest() -> None:
    assert sizes(8, 33) == [8, 16, 32]
