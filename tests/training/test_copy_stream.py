"""Copies of batches to a GPU on a stream of their own, with stand-ins for the GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from trainfleet.training.workloads.transfer import CopyStream


def test_a_gpu_copies_on_a_stream_of_its_own_and_nothing_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for a GPU: it records the calls. None of them is one that waits for the device."""
    calls: list[Any] = []

    class Stream:
        def __init__(self, name: Any) -> None:
            self.name = name

        def wait_event(self, event: Any) -> None:
            calls.append((self.name, "waits for", event.recorded_on))

    class Event:
        recorded_on = ""

        def record(self) -> None:
            self.recorded_on = active[-1].name

    class Active:
        def __init__(self, stream: Any) -> None:
            self.stream = stream

        def __enter__(self) -> None:
            active.append(self.stream)

        def __exit__(self, *_: Any) -> None:
            active.pop()

    active = [Stream("compute")]
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream("copies"))
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "stream", Active)
    monkeypatch.setattr(torch.cuda, "device", lambda device: Active(active[-1]))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: active[-1])

    def record_stream(_: Any, stream: Any) -> None:
        calls.append((stream.name, "record_stream"))

    monkeypatch.setattr(torch.Tensor, "record_stream", record_stream)

    class Recorded(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func in (torch.Tensor.pin_memory, torch.Tensor.to):
                calls.append((active[-1].name, func.__name__, kwargs or None))
                return args[0]
            return func(*args, **(kwargs or {}))

    copies = CopyStream("cuda:1")
    with Recorded():
        copying = copies.start({"x": torch.zeros(2)})
        assert calls == [("copies", "pin_memory", None), ("copies", "to", {"non_blocking": True})]
        calls.clear()
        copies.finish(copying)
    assert calls == [("compute", "waits for", "copies"), ("compute", "record_stream")]


def test_a_cpu_copies_nothing() -> None:
    batch = {"x": torch.zeros(2)}
    copies = CopyStream("cpu")
    assert copies.finish(copies.start(batch))["x"] is batch["x"]
