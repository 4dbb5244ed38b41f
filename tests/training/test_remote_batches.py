"""Batches that are built in processes of Ray: the same runs, bit for bit, and nothing left at their end."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from tests.training.launches import Launcher, rows, running, untimed, wait_for
from tests.training.remote_workload import BAD, DEADLY, NAME, Traced, built, opened
from tests.training.test_loop import results
from tests.training.training_runs import StopAfter
from trainfleet.errors import InputError, TrainfleetError
from trainfleet.training.data import make_order
from trainfleet.training.launch.base import find
from trainfleet.training.launch.request import Request, Target
from trainfleet.training.recipe.schema import Recipe, ScalingConfig
from trainfleet.training.recipe.schema_data import DataLoading
from trainfleet.training.runtime import local_resources, ray_cluster
from trainfleet.training.runtime.ray_cluster import RayCluster
from trainfleet.training.trainer import remote_batches
from trainfleet.training.trainer.batch_loader import BatchLoader
from trainfleet.training.trainer.context import RunResult
from trainfleet.training.trainer.remote_batches import RemoteBatches, decode, encode
from trainfleet.training.workloads import make_workload

Make = Callable[..., Recipe]
Run = Callable[..., RunResult]
RAY = ("data_loading.engine=ray", "data_loading.workers=2")
INLINE = ("data_loading.workers=0",)
SHORT = ("steps=8", "validation.samples=16")
PROCESSES = 2


# ---- without Ray -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        torch.arange(6, dtype=torch.int64).reshape(2, 3),
        torch.tensor([1.5, -2.0, float("nan")], dtype=torch.bfloat16),
        torch.tensor(3.5),
        torch.tensor([True, False]),
        torch.zeros(0, 5),
        torch.arange(6.0).reshape(2, 3).t(),
        torch.zeros(2, 3, 4, 4).to(memory_format=torch.channels_last),
    ],
    ids=["int64", "bf16", "scalar", "bool", "empty", "transposed", "channels last"],
)
@pytest.mark.parametrize("own", [True, False])
def test_a_batch_arrives_as_it_was_sent(value: torch.Tensor, own: bool) -> None:
    found = decode(encode({"x": value}), own)["x"]
    assert (found.dtype, found.shape, found.stride()) == (value.dtype, value.shape, value.stride())
    torch.testing.assert_close(found, value, rtol=0, atol=0, equal_nan=True)


def test_a_batch_for_a_gpu_is_not_copied_and_one_for_a_cpu_is_its_own() -> None:
    value = torch.arange(6.0)
    shared, own = (decode(encode({"x": value}), each)["x"] for each in (False, True))
    assert shared.data_ptr() == value.data_ptr()
    assert own.data_ptr() != value.data_ptr()


def test_another_value_than_a_batch_is_sent_as_it_is_and_gradients_are_refused() -> None:
    for given in ([1, 2], None, {"x": [1.0]}):
        assert decode(encode(given), own=True) is given
    with pytest.raises(InputError, match="`x` of the batch has gradients, which do not leave a process"):
        encode({"x": torch.ones(2, requires_grad=True)})


@pytest.mark.parametrize(
    ("overrides", "where"),
    [
        (("data_loading.engine=ray", "data_loading.workers=0"), "data_loading.engine"),
        (("data_loading.cpus_per_worker=2",), "data_loading.cpus_per_worker"),
        (("data_loading.engine=threads", "data_loading.cpus_per_worker=0.5"), "data_loading.cpus_per_worker"),
    ],
)
def test_options_of_another_engine_are_rejected(tiny: Make, overrides: tuple[str, ...], where: str) -> None:
    with pytest.raises(InputError) as caught:
        tiny(*overrides)
    assert [each.where.rpartition(": ")[2] for each in caught.value.problems] == [where]


def loader(recipe: Recipe, cache: Path, events: list[tuple[str, str]] | None = None) -> BatchLoader:
    workload, given = make_workload(recipe, cache), [] if events is None else events
    return BatchLoader(
        recipe, workload, "cpu", lambda *_: None, lambda *event: given.append(event), cache=cache
    )


def test_without_ray_the_engine_is_refused_by_name(tiny: Make, cache: Path, tmp_path: Path) -> None:
    for refused in (
        lambda: loader(tiny(*RAY), cache),
        lambda: find("torchrun").check(tiny(*RAY), Target(Request("lm-tiny"), (), tmp_path)),
    ):
        with pytest.raises(InputError, match="batches cannot be built by Ray") as caught:
            refused()
        (problem,) = caught.value.problems
        assert (problem.where, "--on local" in problem.fix) == ("data_loading.engine", True)


def test_a_workload_that_may_not_build_ahead_is_refused(
    tiny: Make, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tiny("data_loading.engine=ray")  # `workers: auto` falls back with threads only
    monkeypatch.setattr("ray.is_initialized", lambda: True)
    monkeypatch.setattr(RemoteBatches, "start", lambda self: None)
    workload = type(make_workload(recipe, cache))
    real = workload.batch

    def drawn(self: Any, *arguments: Any) -> Any:
        torch.rand(1)
        return real(self, *arguments)

    monkeypatch.setattr(workload, "batch", drawn)
    with pytest.raises(
        InputError, match=r"`batch` of `lm` draws random numbers from torch's generator"
    ) as caught:
        loader(recipe, cache).take("train", [0, 1])
    assert caught.value.problems[0].where == "data_loading.engine"
    monkeypatch.setattr(workload, "thread_safe_batch", False)
    with pytest.raises(InputError, match="`lm` does not declare `thread_safe_batch`"):
        loader(recipe, cache)


def test_the_cpus_of_its_processes_are_counted_on_a_cluster_and_on_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scaling = ScalingConfig(workers=2, cpus_per_worker=1)
    loading = DataLoading(engine="ray", workers=3, cpus_per_worker=0.5)
    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 4.0})
    cluster = RayCluster(own=False, storage="unused")
    cluster.require(scaling)
    with pytest.raises(InputError) as caught:
        cluster.require(scaling, loading)
    (problem,) = caught.value.problems
    assert problem.where == "data_loading.workers"
    assert "2 workers and 6 processes that build batches, with 0.5 CPUs each, need 5 CPUs" in problem.what
    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 5.0})
    cluster.require(scaling, loading)
    monkeypatch.setattr(local_resources, "cpus", lambda: 4)
    local_resources.require(scaling)
    with pytest.raises(
        InputError, match=r"2 workers need 5 CPUs, this machine has 4 \(such as scaling.workers=1"
    ):
        local_resources.require(scaling, loading.reserved_cpus)
    asked: dict[str, Any] = {}
    monkeypatch.setattr("ray.init", lambda **options: asked.update(options))
    ray_cluster._start(scaling, "unused", loading)
    assert (asked["num_cpus"], asked["object_store_memory"]) == (5, None)


# ---- with Ray ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ray_here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A Ray of this process with a CPU for a rank, which is this process, and for two that build batches."""
    import ray

    ray_cluster.require_token()  # as in a run; otherwise Ray writes one to the home directory
    before = dict(os.environ)
    os.environ |= {"RAY_raylet_start_wait_time_s": "120"}  # on a busy machine, Ray's 30 s are too short
    try:
        ray.init(
            address="local",
            num_cpus=1 + PROCESSES,
            include_dashboard=False,
            object_store_memory=100 * 2**20,
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=False,
            _temp_dir=str(tmp_path_factory.mktemp("ray")),
        )
        yield
    finally:
        ray.shutdown()
        os.environ.clear()
        os.environ.update(before)


class Notes:
    """A folder of notes, and recipes of the workload that writes them."""

    def __init__(self, tiny: Make, folder: Path) -> None:
        self.folder, self._tiny = folder / "notes", tiny
        self.folder.mkdir()

    def recipe(self, *overrides: str) -> Recipe:
        return self._tiny(f"workload.name={NAME}", f"workload.notes={self.folder}", *overrides)

    def order(self, name: str, *samples: int) -> None:
        (self.folder / name).write_text(" ".join(map(str, samples)))


@pytest.fixture
def notes(tiny: Make, tmp_path: Path) -> Iterator[Notes]:
    made, earlier = Notes(tiny, tmp_path), set(threading.enumerate())
    yield made
    wait_for(lambda: not builders(), "processes that build batches are left", 30)
    left = [each.name for each in set(threading.enumerate()) - earlier if each.name.startswith("batches-")]
    assert not left


def builders() -> set[int]:
    """The processes that build batches, below this one."""
    found = set()
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            command = process.cmdline()  # empty when it has just ended
            if command and command[0].startswith("ray::BatchBuilder"):
                found.add(process.pid)
    return found


@pytest.mark.launch
@pytest.mark.timeout(900)
def test_a_run_is_equal_and_so_is_one_that_was_resumed_and_lost_a_process(
    notes: Notes, tmp_path: Path, run: Run, ray_here: None
) -> None:
    run(notes.recipe(*SHORT, *INLINE), tmp_path / "inline")
    assert not built(notes.folder), "all batches are built in this process"
    assert opened(notes.folder, clear=True) == {os.getpid()}
    run(notes.recipe(*SHORT, *RAY), tmp_path / "ray", should_stop=StopAfter(3))
    first = set(built(notes.folder))
    assert len(first) == PROCESSES
    wait_for(lambda: not builders(), "processes are left after the run has stopped", 30)
    killed, events = list[int](), list[str]()

    def kill(step: int, _: int) -> None:
        if step == 5:
            (pid, *_) = set(built(notes.folder)) - first
            killed.append(pid)
            psutil.Process(pid).kill()

    run(
        notes.recipe(*SHORT, *RAY),
        tmp_path / "ray",
        on_step=kill,
        on_event=lambda what, text: events.append(text),
    )
    assert killed
    assert [each for each in events if each.startswith("a process that builds batches was lost")]
    assert opened(notes.folder) <= set(built(notes.folder))
    assert opened(notes.folder)
    assert results(tmp_path / "ray") == results(tmp_path / "inline")
    assert len([row for row in results(tmp_path / "ray") if row["kind"] == "train"]) == 8
    assert {line.split()[0] for lines in built(notes.folder).values() for line in lines} == {
        "train",
        "validation",
        "test",
    }


@pytest.mark.launch
@pytest.mark.timeout(900)
@pytest.mark.deep
def test_an_error_ends_the_run_in_its_step_and_a_batch_that_ends_its_processes_is_named(
    notes: Notes,
    tmp_path: Path,
    run: Run,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    ray_here: None,
) -> None:
    course = ("steps=6", "batch.global_batch=8", "batch.micro_batch=8", "validation.every=100")
    recipe = notes.recipe(*course, *RAY)
    bad = make_order(recipe, make_workload(recipe, cache)).indices(3 * 8 + 5, 1)
    monkeypatch.setattr(remote_batches, "MORE_TRIES", 1)
    for order, error in ((BAD, ValueError), (DEADLY, TrainfleetError)):
        steps = list[int]()
        notes.order(order, *bad)
        with pytest.raises(error) as caught:
            run(recipe, tmp_path / order, on_step=lambda step, _, steps=steps: steps.append(step))
        assert steps == [1, 2, 3]
        (notes.folder / order).unlink()
        if order == BAD:
            assert str(caught.value).endswith("cannot be decoded")
        else:
            assert "a batch of train cannot be built" in str(caught.value)
            assert "ran out of memory" in str(caught.value)


@pytest.mark.deep
@pytest.mark.launch
@pytest.mark.timeout(900)
def test_as_many_batches_are_built_ahead_as_the_recipe_says_and_none_of_other_data(
    notes: Notes, cache: Path, monkeypatch: pytest.MonkeyPatch, ray_here: None
) -> None:
    recipe = notes.recipe(*RAY, "data_loading.prefetch_factor=2")
    made = loader(recipe, cache)
    asked = [[2 * number, 2 * number + 1] for number in range(40)]
    inline = make_workload(recipe, cache)
    try:
        given = made.take("train", asked[0], asked[1:])
        expected = made._ahead["train"]
        wait_for(lambda: all(each.result.done() for each in expected), "nothing is built ahead")
        assert len(expected) == sum(map(len, built(notes.folder).values())) == PROCESSES * 2
        for number in range(1, 12):
            assert torch.equal(given["inputs"], inline.batch("train", asked[number - 1])["inputs"])
            given = made.take("train", asked[number], asked[number + 1 :])
        given["inputs"].add_(1)  # its own memory
        others = [[70, 71], [80]]
        for indices in others:  # the position is another one
            found = made.take("train", indices)
            assert torch.equal(found["inputs"], inline.batch("train", indices)["inputs"])
    finally:
        made.close()
    began = [line for lines in built(notes.folder).values() for line in lines]
    assert len(began) == len(set(began)), "none is built twice"
    assert len(began) <= 11 + PROCESSES * 2 + len(others)
    other = loader(recipe, cache)
    monkeypatch.setattr(Traced, "fingerprint", lambda self: "other data")
    try:
        other.take("train", asked[0], asked[1:])
        with pytest.raises(InputError, match="a node has other data"):
            other.take("train", asked[1])
    finally:
        other.close()


@pytest.mark.deep
@pytest.mark.launch
@pytest.mark.timeout(900)
def test_a_launch_that_is_killed_and_resumed_has_the_losses_of_the_step_loop(
    tmp_path: Path, text_folder: Path, cache: Path
) -> None:
    """Ray Train's rank and its processes share the Ray that `--on local` starts, and end with it."""
    launcher = Launcher(tmp_path, text_folder, cache)
    one = ("scaling.workers=1", "scaling.restarts=0", "steps=16")
    half = (*RAY, "data_loading.cpus_per_worker=0.5")
    try:
        whole = launcher("whole", *one, *INLINE)
        assert whole.finish()[0] == 0
        cut = launcher("cut", *one, *half, on="local", TRAINFLEET_FAULT="in-step:9")
        cut.until_step(7)
        assert cut.finish()[0] == -signal.SIGKILL
        cut.gone()
        assert max(row["step"] for row in rows(cut.run_dir)) == 8
        again = launcher("cut", *one, *half, on="local")
        again.until_step(10)
        titles = [psutil.Process(pid).name() for pid in running(again.look())]
        code, _, errors = again.finish()
        assert code == 0, errors
        assert len([each for each in titles if each.startswith("ray::BatchBuil")]) == PROCESSES, titles
        again.gone()
    finally:
        launcher.end()
    assert untimed(again.run_dir) == untimed(whole.run_dir)
