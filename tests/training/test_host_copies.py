"""Snapshots of weights on a GPU: copied during the next forward pass, and before the next change. No GPU: stand-ins
record the order of the calls.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from trainfleet.training.checkpoint import plan as plan_module
from trainfleet.training.checkpoint.host_copies import Copy, HostCopies
from trainfleet.training.checkpoint.plan import Staging
from trainfleet.training.recipe.schema import Ema, Recipe
from trainfleet.training.runtime.collectives import Ranks
from trainfleet.training.trainer.context import RunResult
from trainfleet.training.trainer.weight_average import WeightAverage

Make = Callable[..., Recipe]
Run = Callable[..., RunResult]


class Gpu(TorchFunctionMode):
    """A stand-in for the streams of a GPU: what is queued on which, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.calls: list[tuple[Any, ...]] = []
        gpu, active = self, ["compute"]

        class Stream:
            device = "cuda:0"

            def __init__(self, name: str) -> None:
                self.name = name

            def wait_stream(self, other: Any) -> None:
                gpu.calls.append((self.name, "waits for stream", other.name))

            def wait_event(self, event: Any) -> None:
                gpu.calls.append((self.name, "waits for event of", event.recorded_on))

        class Event:
            recorded_on = ""

            def record(self) -> None:
                self.recorded_on = active[-1]
                gpu.calls.append((active[-1], "event"))

            def synchronize(self) -> None:
                gpu.calls.append(("this thread", "waits for event of", self.recorded_on))

        class Active:
            def __init__(self, stream: Any) -> None:
                self.name = stream.name

            def __enter__(self) -> None:
                active.append(self.name)

            def __exit__(self, *_: Any) -> None:
                active.pop()

        self.active = active
        monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream("copies"))
        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "stream", Active)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream(active[-1]))
        monkeypatch.setattr(
            torch.Tensor, "record_stream", lambda _, stream: self.calls.append((stream.name, "uses memory"))
        )

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.copy_ and (kwargs or {}).get("non_blocking"):
            self.calls.append((self.active[-1], "copy", args[0].numel()))
            return args[0]
        return func(*args, **(kwargs or {}))


def test_weights_are_copied_on_a_stream_of_their_own_and_buffers_before_the_next_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu, copies = Gpu(monkeypatch), HostCopies()
    weight, mean = torch.zeros(3), torch.zeros(2)
    with gpu:
        copies.start([Copy(torch.empty(3), weight, False), Copy(torch.empty(2), mean, True)])
        gpu.calls.append(("compute", "next pass"))
        copies.before_change()
        gpu.calls.append(("compute", "update"))
        copies.wait()
    assert gpu.calls == [
        ("compute", "copy", 2),
        ("copies", "waits for stream", "compute"),
        ("copies", "copy", 3),
        ("copies", "uses memory"),
        ("copies", "event"),
        ("compute", "next pass"),
        ("compute", "waits for event of", "copies"),
        ("compute", "update"),
        ("this thread", "waits for event of", "copies"),
    ]


def test_without_a_gpu_nothing_waits() -> None:
    copies = HostCopies()
    copies.start([])
    copies.before_change()
    copies.wait()


def test_the_averaged_weights_are_exchanged_after_the_copies() -> None:
    module, calls = torch.nn.Linear(2, 2), list[float]()
    average = WeightAverage(Ema(decay=0.9), module)
    with torch.no_grad():
        module.weight.fill_(7.0)
    average.before_exchange = lambda: calls.append(float(module.weight[0, 0]))
    with average.applied():
        assert len(calls) == 1
    assert calls[0] == 7.0
    assert calls[1] != 7.0
    assert len(calls) == 2


def test_every_step_and_validation_of_a_run_asks_for_the_copies_first(
    tiny: Make, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(HostCopies, "before_change", lambda self: asked.append("change"))
    monkeypatch.setattr(HostCopies, "wait", lambda self: asked.append("write"))
    run(
        tiny("steps=4", "optimizer.warmup=1", "checkpoint.every=4", "validation.every=2", "ema.decay=0.9"),
        tmp_path / "run",
    )
    exchanges = 2 * (2 + 1)  # there and back, in two validations and a test
    assert asked.count("change") == 4 + exchanges
    assert "write" in asked


def test_buffers_are_made_in_a_thread_before_the_first_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    real = plan_module.host_buffers

    def buffers(tensors: Mapping[Any, torch.Tensor]) -> dict[Any, torch.Tensor]:
        made.extend(threading.current_thread().name for _ in tensors)
        return real(tensors)

    monkeypatch.setattr(plan_module, "host_buffers", buffers)
    staging = Staging(Ranks())
    state = {"model": {"weight": torch.arange(4.0), "bias": torch.ones(2)}}
    staging.prepare(state)
    staged = staging.copy(state)
    assert made == ["checkpoint-buffers"] * 2
    found = {item.index.fqn: data for item, data in staged}
    assert torch.equal(found["model.weight"], torch.arange(4.0))
    staging.copy({"model": {"weight": torch.arange(6.0)}})
    assert made[2:] == [threading.current_thread().name], "another state has other buffers"
