"""Parallel work: each item is done once and keeps its number, and a killed process is one clear error."""

from __future__ import annotations

import os
import pickle
import signal
from pathlib import Path

import pytest

from trainfleet.errors import InputError, Problem, TrainfleetError
from trainfleet.training.data.worker_pool import Via, cpus, map_unordered, run_packed, unpacked


def square(value: int) -> tuple[int, int]:
    return value * value, os.getpid()


def killed(value: int) -> int:
    if value == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return value


@pytest.mark.parametrize("via", ["here", "processes"])
def test_each_item_is_done_once_and_keeps_its_number(via: Via) -> None:
    found = dict(map_unordered(square, range(9), via, processes=2))
    assert {number: value for number, (value, _) in found.items()} == {
        number: number * number for number in range(9)
    }
    assert (os.getpid() in {process for _, process in found.values()}) == (via == "here")


def test_a_killed_process_is_one_clear_error() -> None:
    with pytest.raises(TrainfleetError, match="a data preparation process was killed"):
        list(map_unordered(killed, range(9), "processes", processes=2))


def refused(where: str) -> None:
    raise InputError("the data cannot be used", [Problem(where, "is empty", "remove it")])


def missing(where: str) -> bytes:
    return Path(where).read_bytes()


def test_the_error_of_a_task_on_another_machine_keeps_its_type_and_problems() -> None:
    assert unpacked(run_packed(pickle.dumps(square), pickle.dumps(3))) == (9, os.getpid())
    with pytest.raises(InputError, match="cannot be used") as raised:
        unpacked(run_packed(pickle.dumps(refused), pickle.dumps("a.txt")))
    assert raised.value.problems == (Problem("a.txt", "is empty", "remove it"),)
    with pytest.raises(FileNotFoundError) as not_found:
        unpacked(run_packed(pickle.dumps(missing), pickle.dumps("/none")))
    assert not_found.value.filename == "/none"


def test_no_items_end_at_once() -> None:
    assert list(map_unordered(square, [], "processes")) == []
    assert cpus() >= 1
