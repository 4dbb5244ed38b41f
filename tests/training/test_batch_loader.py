"""Batches that are built ahead in threads: the same ones, in the same order, with the same errors."""

from __future__ import annotations

import gc
import os
import random
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from trainfleet.errors import InputError
from trainfleet.training.data import SampleOrder
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.trainer import batch_loader
from trainfleet.training.trainer.batch_loader import BatchLoader
from trainfleet.training.trainer.build_share import STEPS, BuildShare
from trainfleet.training.trainer.upcoming import UpcomingSteps
from trainfleet.training.workloads import Workload
from trainfleet.training.workloads.base import batches_in_threads
from trainfleet.training.workloads.batch_checks import BatchChecker
from trainfleet.training.workloads.lm.workload import LanguageModel
from trainfleet.training.workloads.speech.workload import Speech
from trainfleet.training.workloads.vision.workload import Vision

Make = Callable[..., Recipe]
LIMIT_S = 60


class Numbers(Workload):
    """A sample is its own index. `built` and `discarded` are what a test looks at."""

    thread_safe_batch = True

    def __init__(self) -> None:
        self.built: list[list[int]] = []
        self.threads: set[str] = set()
        self.batches_began = threading.Semaphore(0)
        self.gate = threading.Event()
        self.gate.set()

    def batch(self, split: str, indices: Sequence[int]) -> dict[str, torch.Tensor]:
        if threading.current_thread() is not threading.main_thread():
            self.batches_began.release()
            assert self.gate.wait(LIMIT_S)
        self.built.append(list(indices))
        self.threads.add(threading.current_thread().name)
        if 99 in indices:
            raise ValueError(f"{split} sample 99 is unreadable")
        return {"x": torch.tensor(indices, dtype=torch.float32)}

    fingerprint = build_model = size = num_targets = forward_loss = baseline = lambda self, *_: None  # type: ignore[assignment]


class Kit:
    """Makes loaders. Threads of others, which other tests of the process left, are not counted."""

    def __init__(self, tiny: Make) -> None:
        self.tiny, self.events, self.loaders = tiny, list[tuple[str, str]](), list[BatchLoader]()
        self._earlier = set(threading.enumerate())

    def threads(self) -> list[threading.Thread]:
        began = set(threading.enumerate()) - self._earlier
        return [each for each in began if each.name.startswith("batches-")]

    def loader(self, workload: Workload, workers: int | str = 1, factor: int = 2) -> BatchLoader:
        overrides = [f"data_loading.workers={workers}"]
        overrides += [f"data_loading.prefetch_factor={factor}"] if workers else []
        checker = BatchChecker("numbers", workload)
        made = BatchLoader(
            self.tiny(*overrides),
            workload,
            "cpu",
            checker.check_batch,
            lambda *event: self.events.append(event),
        )
        self.loaders.append(made)
        return made


@pytest.fixture
def kit(tiny: Make) -> Iterator[Kit]:
    made = Kit(tiny)
    yield made
    for each in made.loaders:
        each.close()
    assert not made.threads()


def parts(count: int, first: int = 0) -> list[list[int]]:
    return [[2 * number, 2 * number + 1] for number in range(first, first + count)]


def taken(loader: BatchLoader, asked: list[list[int]]) -> list[list[float]]:
    return [
        loader.take("train", indices, asked[number:])["x"].tolist()
        for number, indices in enumerate(asked, start=1)
    ]


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_batches_come_in_the_order_in_which_they_are_asked_for(kit: Kit, workers: int) -> None:
    workload = Numbers()
    assert taken(kit.loader(workload, workers), parts(20)) == parts(20)
    assert sorted(workload.built) == parts(20), "each is built once"
    assert any(name.startswith("batches-") for name in workload.threads) == bool(workers)


def test_as_many_batches_are_built_ahead_as_the_recipe_says(kit: Kit) -> None:
    workload = Numbers()
    loader = kit.loader(workload, 2, factor=3)
    workload.gate.clear()
    loader.take("train", [0, 1], parts(50, 1))
    for _ in range(2):
        assert workload.batches_began.acquire(timeout=LIMIT_S)
    assert not workload.batches_began.acquire(blocking=False), "two threads build one batch each"
    workload.gate.set()
    loader.take("train", *parts(1, 1), parts(6, 2)[:5])
    assert taken(loader, parts(5, 2)) == parts(5, 2)
    loader.close()
    assert sorted(workload.built) == parts(7)


def test_a_batch_that_was_built_for_other_samples_is_discarded(kit: Kit) -> None:
    workload = Numbers()
    loader = kit.loader(workload, 2)
    loader.take("train", [0, 1], parts(6, 1))
    smaller = [[2], [3], [4], [5]]  # a controller has changed the size
    assert taken(loader, smaller) == smaller
    assert taken(loader, parts(3, 10)) == parts(3, 10), "the position is another one"


def test_a_validation_leaves_the_next_training_batches_as_they_are(kit: Kit) -> None:
    workload = Numbers()
    loader = kit.loader(workload)
    loader.take("train", [0, 1], parts(2, 1))
    loader.take("validation", [0, 1], [[2, 3]])
    loader.take("validation", [2, 3])
    assert taken(loader, parts(2, 1)) == parts(2, 1)
    assert sorted(workload.built) == sorted([*parts(3), *parts(2)])


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_an_error_is_raised_for_the_batch_that_it_belongs_to(kit: Kit, workers: int) -> None:
    loader = kit.loader(Numbers(), workers)
    asked = [[96], [97], [98], [99]]
    assert taken(loader, asked[:3]) == [[96.0], [97.0], [98.0]]
    loader.take("train", [96], asked[1:])
    loader.take("train", [5], [[6]])  # nobody asks for 99 any more
    with pytest.raises(ValueError, match=r"^train sample 99 is unreadable$"):
        taken(loader, asked)


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("wrong", ["a list", "a missing sample"])
def test_a_wrong_batch_is_reported_as_without_threads(kit: Kit, workers: int, wrong: str) -> None:
    class Wrong(Numbers):
        thread_safe_batch = True

        def batch(self, split: str, indices: Sequence[int]) -> Any:
            found = super().batch(split, indices)["x"]
            if indices[0] < 4:
                return {"x": found}
            return {"x": found.tolist()} if wrong == "a list" else {"x": found[1:]}

    loader = kit.loader(Wrong(), workers)
    with pytest.raises(InputError) as caught:
        taken(loader, parts(5))
    assert caught.value.summary == "the workload `numbers` returned invalid values"
    (problem,) = caught.value.problems
    assert problem.where == "batch of train, `x`"
    assert problem.what == ("is list" if wrong == "a list" else "has the shape [1] for 2 samples")


def test_gradients_are_recorded_in_a_batch_as_in_the_loop(kit: Kit) -> None:
    class Embedded(Numbers):
        thread_safe_batch = True
        weight = torch.ones(1, requires_grad=True)

        def batch(self, split: str, indices: Sequence[int]) -> dict[str, torch.Tensor]:
            return {"x": super().batch(split, indices)["x"] * self.weight}

    loader = kit.loader(Embedded())
    with torch.no_grad():
        ahead = [loader.take("validation", *parts(1), parts(1, 1)), loader.take("validation", *parts(1, 1))]
    assert [each["x"].requires_grad for each in ahead] == [False, False]
    loader.take("train", *parts(1), parts(1, 1))
    assert loader.take("train", *parts(1, 1))["x"].requires_grad


def test_an_interrupt_ends_the_wait_for_a_batch_that_never_comes(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_loader, "CLOSE_S", 0.01)
    workload = Numbers()
    loader = kit.loader(workload)
    workload.gate.clear()
    loader.take("train", [0, 1], parts(2, 1))
    assert workload.batches_began.acquire(timeout=LIMIT_S)
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        loader.take("train", [2, 3])
    (thread,) = kit.threads()
    loader.close()
    assert thread.daemon, "or the process would wait for it"
    workload.gate.set()
    thread.join(LIMIT_S)
    assert not thread.is_alive()
    assert workload.built == parts(2), "a batch that was cancelled is not built"


def test_a_batch_is_not_kept_after_it_was_taken(kit: Kit) -> None:
    loader = kit.loader(Numbers())
    loader.take("train", [0, 1], parts(1, 1))
    loader.take("train", [2, 3])
    loader.take("train", [4, 5])
    gc.collect()
    values = [each for each in gc.get_objects() if type(each) is torch.Tensor and each.shape == (2,)]
    assert [each for each in values if each.device.type == "cpu" and each.tolist() == [2.0, 3.0]] == []


DRAWS: dict[str, Callable[[], Any]] = {
    "torch": lambda: torch.rand(1),
    "NumPy": np.random.rand,
    "Python": random.random,
}


@pytest.mark.parametrize("source", DRAWS)
def test_a_batch_that_draws_from_a_shared_generator_is_built_in_the_loop(kit: Kit, source: str) -> None:
    class Augmented(Numbers):
        thread_safe_batch = True

        def batch(self, split: str, indices: Sequence[int]) -> dict[str, torch.Tensor]:
            DRAWS[source]()
            return super().batch(split, indices)

    workload = Augmented()
    assert taken(kit.loader(workload, "auto"), parts(5)) == parts(5)
    assert workload.threads == {"MainThread"}
    ((what, text),) = kit.events
    assert what == "fallback"
    assert text.startswith(f"`batch` of `lm` draws random numbers from {source}'s generator")
    with pytest.raises(InputError) as caught:
        taken(kit.loader(Augmented(), 1), parts(5))
    assert caught.value.problems[0].where == "data_loading.workers"


@pytest.mark.parametrize(("share", "threads"), [(0.5, True), (0.02, False)])
def test_auto_builds_heavy_batches_alone_in_a_thread_on_a_cpu(
    kit: Kit, monkeypatch: pytest.MonkeyPatch, share: float, threads: bool
) -> None:
    """The batches are the same ones, bit for bit, before and after the decision."""
    decided: list[int] = []

    def after_three(self: BuildShare) -> float | None:
        decided.append(1)
        return share if len(decided) == 3 else None

    monkeypatch.setattr(BuildShare, "share", after_three)
    workload, expected = Numbers(), Numbers()
    loader = kit.loader(workload, "auto")
    assert loader.depth == 2
    assert taken(loader, parts(3)) == parts(3)
    assert workload.threads == {"MainThread"}
    assert taken(loader, parts(12)[3:]) == taken(kit.loader(expected, 0), parts(12))[3:]
    assert len(decided) == 3
    assert (loader.depth, len(kit.threads())) == ((2, 1) if threads else (0, 0))
    assert ("batches-0" in workload.threads) is threads


def test_a_share_is_that_of_the_usual_step() -> None:
    share, clock = BuildShare(), 0.0
    for number in range(STEPS + 2):
        assert share.share() is None
        # The first step compiles, and one has a validation after it.
        share.add(clock, 5.0 if number == 0 else 0.2)
        clock += {0: 60.0, 4: 30.0}.get(number, 1.0)
    assert share.share() == pytest.approx(0.2)


@pytest.mark.parametrize(("device", "trial"), [("cuda:0", False), ("cpu", True)])
def test_auto_is_always_a_thread_with_a_gpu(
    tiny: Make, monkeypatch: pytest.MonkeyPatch, device: str, trial: bool
) -> None:
    monkeypatch.setattr(batch_loader, "CopyStream", lambda device: None)
    loader = BatchLoader(tiny(), Numbers(), device, lambda *_: None, lambda *_: None)
    assert ((loader._share is not None), loader.depth) == (trial, 2)


def test_threads_are_used_where_the_class_of_batch_declares_it(kit: Kit) -> None:
    class Silent(Numbers):
        def batch(self, split: str, indices: Sequence[int]) -> dict[str, torch.Tensor]:
            return super().batch(split, indices)

    class Declared(Silent):
        thread_safe_batch = True

    class Inherited(Numbers): ...

    itself = Silent()
    itself.thread_safe_batch = True
    assert [batches_in_threads(each) for each in (Silent(), Declared(), Inherited(), itself)] == [
        False,
        True,
        True,
        True,
    ]
    workload = Silent()
    assert taken(kit.loader(workload, "auto"), parts(3)) == parts(3)
    assert workload.threads == {"MainThread"}
    with pytest.raises(InputError) as caught:
        kit.loader(Silent(), 2)
    (problem,) = caught.value.problems
    assert (problem.where, problem.what) == (
        "data_loading.workers",
        "`lm` does not declare that its `batch` may run in threads",
    )


@pytest.mark.parametrize("workload", [LanguageModel, Speech, Vision])
def test_the_built_in_workloads_declare_it(workload: type[Workload]) -> None:
    assert batches_in_threads(workload.__new__(workload))


def test_nothing_is_built_ahead_without_workers(tiny: Make) -> None:
    with pytest.raises(InputError) as caught:
        tiny("data_loading.workers=0", "data_loading.prefetch_factor=4")
    assert caught.value.problems[0].where.endswith(": data_loading.prefetch_factor")


@pytest.mark.parametrize("depth", [0, 1, 2, 5])
def test_the_steps_to_come_are_known_up_to_the_last_one(depth: int) -> None:
    opened: list[list[int]] = []
    workload: Any = SimpleNamespace(prefetch=lambda split, indices: opened.append(indices))
    controllers: Any = SimpleNamespace(
        global_batch=8, micro_batch=2, samples=40, measures_noise=lambda step: step == 3
    )
    order = SampleOrder(0, 100)
    context: Any = SimpleNamespace(rank=1, world_size=2)
    upcoming = UpcomingSteps(order, workload, controllers, depth, context)
    steps = {0: 0, 1: 1, 2: 1, 5: 3}[depth]  # two micro batches each
    for step in range(5):
        samples, later = upcoming.at(step, 8 * step)
        assert samples == order.indices(8 * step, 8)
        assert later == [
            (order.indices(8 * each, 8), each == 3) for each in range(step + 1, min(5, step + 1 + steps))
        ]
        assert set(opened[-1]) >= {index for each, _ in later for index in each} | set(samples)
