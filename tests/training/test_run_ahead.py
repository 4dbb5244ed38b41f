"""Between two logs, the loop never waits for its device; a run that is ahead of it decides the same.

A CPU stands in for the device: `run_ahead` is forced to the value of a GPU, and the calls that would wait for a
GPU are counted. `torch.cuda.set_sync_debug_mode` finds them on a real one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.training.training_runs import StopAfter
from tests.training.workloads import models, test_pretrained_speech
from tests.training.workloads.conversations import chat, conversations, make
from tests.training.workloads.test_speech import recipe as speech_recipe
from trainfleet.training.recipe.load import load_recipe
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.runs.reader import read_rows
from trainfleet.training.trainer import loop
from trainfleet.training.trainer.context import RunContext, RunResult
from trainfleet.training.trainer.loop import NotANumberError
from trainfleet.training.trainer.readings import RUN_AHEAD, Readings, run_ahead
from trainfleet.training.workloads.lm.workload import LanguageModel
from trainfleet.training.workloads.transfer import to_device

__all__ = ["chat", "make"]
Make = Callable[..., Recipe]
Run = Callable[..., RunResult]
CLOCKED = ("seconds", "per_second", "data_wait", "communication", "mfu")
READS = {"item", "tolist", "cpu", "numpy", "__float__", "__int__", "__bool__", "__index__", "__format__"}
"""Methods of a tensor that read its values."""
WAITING = {
    "aten._local_scalar_dense",
    "aten.equal",
    "aten.masked_select",
    "aten.nonzero",
    "aten.unique_consecutive",
    "aten._unique2",
}
"""Operations whose result, or its size, the host needs."""


class _Methods(TorchFunctionMode):
    def __init__(self, found: Counter[str]) -> None:
        super().__init__()
        self.found = found

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in READS or name in LOSSES:
            self.found[name] += 1
        return func(*args, **(kwargs or {}))


class _Operations(TorchDispatchMode):
    def __init__(self, found: Counter[str]) -> None:
        super().__init__()
        self.found = found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func.overloadpacket)
        masked = name == "aten.index" and any(
            each is not None and each.dtype == torch.bool for each in args[1]
        )
        if name in WAITING or masked:
            self.found[name] += 1
        return func(*args, **(kwargs or {}))


LOSSES = {"ctc_loss"}
"""Functions that copy the lengths of their inputs to the host, or from it, on a GPU."""


def waits_per_step(recipe: Recipe, folder: Path, cache: Path) -> list[Counter[str]]:
    """The waits in each step of a run; the values of earlier steps, which have arrived, count as `early` if they
    are taken sooner than a device may be behind.
    """
    steps: list[Counter[str]] = []
    real, take = loop._Run._step, Readings.take

    def counted(self: Any) -> Any:
        steps.append(Counter())
        self.order.indices(self.state.position, 1)  # orders the samples of the epoch, on the host
        with _Methods(steps[-1]), _Operations(steps[-1]):
            return real(self)

    def taken(self: Readings, everything: bool = False) -> Any:
        with torch._C.DisableTorchFunction():
            found = take(self, everything)
        if not everything:
            steps[-1]["early"] += sum(each.step > len(steps) - RUN_AHEAD for each in found)
        return found

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(loop._Run, "_step", counted)
        patched.setattr(Readings, "take", taken)
        loop.train(recipe, RunContext(folder, cache=cache))
    return [+step for step in steps]


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        loop, "run_ahead", lambda recipe, _, collections: run_ahead(recipe, "cuda:0", collections)
    )


FEW = ("log.every=6", "validation.every=12", "checkpoint.every=12")
RECIPES = {
    "lm": (),
    "lm, several micro batches": ("batch.micro_batch=4",),
    "lm, skipping": ("guards.nan=skip",),
    "lm, sharded": ("strategy=fsdp",),
    "lm, plateau": ("controllers.rate.kind=plateau",),
    "lm, muon": ("optimizer.name=muon",),
    "lm, averaged": ("ema.decay=0.9",),
    "lm, averaged shards": ("ema.decay=0.9", "strategy=fsdp"),
}


@pytest.mark.sampled(1)
@pytest.mark.usefixtures("ahead")
@pytest.mark.parametrize("name", RECIPES)
def test_no_step_between_two_logs_waits_for_the_device(
    tmp_path: Path, tiny: Make, cache: Path, name: str
) -> None:
    steps = waits_per_step(tiny(*FEW, *RECIPES[name]), tmp_path, cache)
    assert len(steps) == 12
    assert [dict(step) for step in steps] == [{}] * 12


@pytest.mark.usefixtures("ahead")
def test_vision_does_not_wait_for_the_device_either(tmp_path: Path, cache: Path) -> None:
    given = ("steps=6", "log.every=3", "validation.every=6", "checkpoint.every=6", "optimizer.warmup=0")
    recipe = load_recipe("vision-small", [*given, "scaling.workers=1", "log.tensorboard=false"])
    assert [dict(step) for step in waits_per_step(recipe, tmp_path, cache)] == [{}] * 6


COURSE = ("steps=6", "log.every=3", "validation.every=6", "checkpoint.every=6", "optimizer.warmup=0")
HF = {
    "packed": (),
    "packed, several micro batches": ("batch.micro_batch=3",),
    "packed, lora": ("workload.model.lora={rank: 2}",),
    "packed, sharded": ("strategy=fsdp",),
    "packed, bf16": ("precision=bf16",),
    "not packed": ("workload.data.conversations.packing=false",),
}


@pytest.mark.sampled(1)
@pytest.mark.usefixtures("ahead")
@pytest.mark.parametrize("name", HF)
def test_a_pretrained_model_does_not_wait_for_the_device_either(
    tmp_path: Path, cache: Path, make: Make, chat: Path, name: str
) -> None:
    """The first pass measures the model's head."""
    given = (f"workload.model.pretrained={chat}", *COURSE, *HF[name])
    steps = waits_per_step(make(conversations(300), *given), tmp_path / "run", cache)
    assert [dict(step) for step in steps[1:]] == [{}] * 5


SPEECH: dict[str, Callable[[Path], tuple[str, ...]]] = {
    "whisper": lambda folder: (test_pretrained_speech.model_settings("seq2seq", models.whisper(folder)),),
    "ctc": lambda _: (),
}


@pytest.mark.usefixtures("ahead")
@pytest.mark.parametrize("name", SPEECH)
def test_speech_waits_for_the_device_in_the_loss_of_ctc_only(tmp_path: Path, cache: Path, name: str) -> None:
    given = ("workload.data.longest=4", "data_loading.workers=1", *COURSE)
    recipe = speech_recipe(*SPEECH[name](tmp_path / "model"), *given)
    steps = waits_per_step(recipe, tmp_path / "run", cache)
    passes = recipe.batch.accumulation(1)
    # Whisper draws on the host, for each of its two layers, whether it is left out.
    drawn = {"__bool__": 2 * passes, "aten._local_scalar_dense": 2 * passes}
    expected = {"ctc_loss": passes} if name == "ctc" else drawn
    assert [dict(step) for step in steps[1:]] == [expected] * 5


def test_the_count_finds_a_wait(
    tmp_path: Path, tiny: Make, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = LanguageModel.forward_loss

    def waiting(self: Any, model: Any, batch: Any) -> Any:
        output = real(self, model, batch)
        if float(output.loss) < 0 or output.loss.nonzero().tolist() == [[7]]:
            raise AssertionError
        return output

    monkeypatch.setattr(LanguageModel, "forward_loss", waiting)
    steps = waits_per_step(tiny(*FEW), tmp_path, cache)
    assert all({"__float__", "tolist", "aten.nonzero"} <= set(step) for step in steps)


def results(run_dir: Path) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in row.items() if not name.endswith(CLOCKED)}
        for row in read_rows(run_dir).rows
        if row["kind"] != "event"
    ]


@pytest.mark.deep
@pytest.mark.parametrize("overrides", [(), ("strategy=fsdp",), ("log.every=5",)], ids=str)
def test_a_run_that_is_ahead_of_its_device_has_the_same_rows(
    tmp_path: Path, tiny: Make, run: Run, request: pytest.FixtureRequest, overrides: tuple[str, ...]
) -> None:
    run(tiny(*overrides), tmp_path / "at once")
    request.getfixturevalue("ahead")
    run(tiny(*overrides), tmp_path / "ahead")
    result = run(tiny(*overrides), tmp_path / "cut", should_stop=StopAfter(4))
    assert (result.status, result.step) == ("stopped", 4)
    run(tiny(*overrides), tmp_path / "cut")
    assert results(tmp_path / "ahead") == results(tmp_path / "at once")
    assert results(tmp_path / "cut") == results(tmp_path / "at once")


def poisoned_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of one step is NaN."""
    real, calls = LanguageModel.forward_loss, []

    def poisoned(self: Any, model: Any, batch: Any) -> Any:
        output = real(self, model, batch)
        if torch.is_grad_enabled():
            calls.append(1)
        if len(calls) == step and torch.is_grad_enabled():
            object.__setattr__(output, "loss", output.loss * float("nan"))
        return output

    monkeypatch.setattr(LanguageModel, "forward_loss", poisoned)


ONE_PASS = ("batch.micro_batch=16",)


def test_the_device_skips_a_step_whose_gradient_is_not_finite(
    tmp_path: Path, tiny: Make, run: Run, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tiny(*ONE_PASS, *FEW, "guards.nan=skip")
    with pytest.MonkeyPatch.context() as patched:
        poisoned_at(4, patched)
        run(recipe, tmp_path / "at once")
    request.getfixturevalue("ahead")
    poisoned_at(4, monkeypatch)
    run(recipe, tmp_path / "ahead")
    assert results(tmp_path / "ahead") == results(tmp_path / "at once")
    events = [row for row in read_rows(tmp_path / "ahead").rows if row["kind"] == "event"]
    assert [(row["what"], row["text"]) for row in events] == [("skip", "step 4: the gradient is NaN or Inf")]


@pytest.mark.usefixtures("ahead")
def test_a_nan_ends_the_run_within_the_steps_that_are_queued_and_saves_nothing(
    tmp_path: Path, tiny: Make, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    poisoned_at(7, monkeypatch)
    recipe = tiny(*ONE_PASS, "log.every=100", "validation.every=100")
    with pytest.raises(NotANumberError, match="stopped at step 7: the gradient is NaN or Inf") as caught:
        run(recipe, tmp_path, on_step=lambda step, _: seen.append(step))
    assert "step-00000004" in str(caught.value)
    assert seen[-1] < 7 + RUN_AHEAD


def test_values_are_taken_in_order_and_late() -> None:
    readings = Readings(2)
    for step in range(1, 5):
        readings.add(step, torch.tensor([step / 2, 1.0, 0.0, 1.0, 0.0, 40.0 * step]))
    assert [(each.step, each.loss, each.stop, each.check_preemption) for each in readings.take()] == [
        (1, 0.5, False, True),
        (2, 1.0, False, True),
    ]
    assert [(each.step, each.save_every) for each in readings.take(everything=True)] == [(3, 120), (4, 160)]


@pytest.mark.parametrize(
    ("overrides", "collections", "steps"),
    [
        ((), False, RUN_AHEAD),
        (("guards.nan=skip",), False, RUN_AHEAD),
        (("guards.nan=skip",), True, 0),
        (("guards.nan=skip", "optimizer.name=muon"), False, 0),
        (("optimizer.name=muon",), False, RUN_AHEAD),
        (("guards.nan=roll_back",), False, 0),
        (("guards.spike=skip",), False, 0),
        (("controllers.rate.kind=backoff",), False, 0),
        (("controllers.rate.kind=restarts",), False, RUN_AHEAD),
        (("controllers.batch.kind=noise",), False, 0),
    ],
)
def test_decisions_that_need_each_loss_keep_the_loop_with_its_device(
    tiny: Make, overrides: tuple[str, ...], collections: bool, steps: int
) -> None:
    assert run_ahead(tiny(*overrides), "cuda:3", collections) == steps
    assert run_ahead(tiny(*overrides), "cpu", collections) == 0


def test_a_batch_reaches_a_gpu_through_pinned_memory() -> None:
    calls: list[tuple[str, Any]] = []

    class Recorded(TorchFunctionMode):
        """Stands in for a GPU: records both calls instead of making them."""

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func in (torch.Tensor.pin_memory, torch.Tensor.to):
                calls.append((func.__name__, kwargs))
                return args[0]
            return func(*args, **(kwargs or {}))

    with Recorded():
        to_device(torch.zeros(2), "cuda:0")
    assert calls == [("pin_memory", None), ("to", {"non_blocking": True})]
