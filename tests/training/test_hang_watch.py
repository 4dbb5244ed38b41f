"""A rank that is stopped or stuck is named within seconds, and all ranks end, so that they can be restarted."""

from __future__ import annotations

import json
import os
import pickle
import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from tests.conftest import ROOT
from tests.training.ranks import start_ranks
from trainfleet.training import worker
from trainfleet.training.recipe.schema import Recipe, ScalingConfig
from trainfleet.training.runtime import hang_watch, nccl_diagnostics, prestart, process_group, ray_cluster
from trainfleet.training.runtime.events import EventSink
from trainfleet.training.runtime.hang_watch import HangWatch, RankState
from trainfleet.training.runtime.process_group import World
from trainfleet.training.stores import Store, open_store
from trainfleet.training.trainer.context import RunContext

Make = Callable[..., Recipe]
LIMIT_S, INTERVAL_S = 2.0, 0.3


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def get_stuck() -> None:
    threading.Event().wait()


def train_until_hung(
    recipe: Recipe, folder: Path, cache: Path, hung: int, hang: Callable[[], None]
) -> tuple[list[int], dict[str, Any]]:
    """Two ranks, of which `hung` hangs after step 5; the exit codes, and the report."""

    def work(rank: int) -> None:
        from trainfleet.training.trainer.loop import train

        os.environ["TORCH_FR_BUFFER_SIZE"] = "200"
        world = process_group.init_from_env(use_gpu=False, timeout_s=120)

        def on_step(step: int, _: int) -> None:
            if (step, rank) == (5, hung):
                hang()

        def report(who: int, text: str) -> None:
            (folder / "report.json").write_text(json.dumps({"rank": who, "text": text, "by": rank}))

        context = RunContext(folder / "run", rank, 2, rank, 2, cache=cache, on_step=on_step)

        def record() -> None:
            nccl_diagnostics.store_trace(open_store(str(folder / "diagnostics")), rank, "gloo")

        HangWatch(world, LIMIT_S, report, record=record, interval_s=INTERVAL_S).attach(context)
        train(recipe, context)

    codes = start_ranks(work, 2)
    return codes, json.loads((folder / "report.json").read_text())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("hung", [1, 0])
def test_a_stopped_rank_is_named_and_all_ranks_end(
    tmp_path: Path, tiny: Make, cache: Path, hung: int
) -> None:
    codes, report = train_until_hung(tiny(), tmp_path, cache, hung, stop)
    assert codes[1 - hung] == 1
    assert codes[hung] == -signal.SIGKILL
    assert (report["rank"], report["by"]) == (hung, 1 - hung)
    assert report["text"].startswith(f"rank {hung} ")
    assert "does not respond" in report["text"]
    # gloo's recorder stands in for NCCL's; the names are NCCL's, which `torchfrtrace` expects.
    (trace,) = (tmp_path / "diagnostics").iterdir()
    assert trace.name == f"nccl_trace_rank_{1 - hung}"
    entries = pickle.loads(trace.read_bytes())["entries"]
    assert "gloo:all_reduce" in {each["profiling_name"] for each in entries}


def test_a_rank_ends_although_its_driver_or_store_does_not_respond(monkeypatch: pytest.MonkeyPatch) -> None:
    class Silent:
        def put(self, *_: Any) -> None:
            threading.Event().wait()

    monkeypatch.setattr(nccl_diagnostics, "RECORD_S", 0.1)
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "200")
    assert not nccl_diagnostics.store_trace(cast("Store", Silent()), 0, "gloo")
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "0")
    assert nccl_diagnostics.store_trace(cast("Store", Silent()), 0, "gloo")


def test_a_rank_gives_a_sign_of_life_before_its_first_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's store waits for a name that was never set: rank 0 would take itself for the one that hangs."""
    signs: dict[str, str] = {}

    class Signs:
        def set(self, name: str, value: str) -> None:
            signs[name] = value

    def opened(watch: HangWatch) -> Signs:
        watch._first = ["here", 1]
        return Signs()

    monkeypatch.setattr(HangWatch, "_open_store", opened)
    watch = HangWatch(World(1, 2, 1, 2, "cpu"), 1000.0, lambda *_: None, interval_s=100.0)
    watch.close()
    assert json.loads(signs["1"])["beats"] == 1


def test_a_first_rank_that_is_gone_is_suspected() -> None:
    class Gone(Peers):
        def set(self, *_: Any) -> None:
            raise RuntimeError("Connection reset by peer")

        def multi_get(self, _: list[str]) -> list[bytes]:
            raise RuntimeError("Connection reset by peer")

    suspect = Gone([state(1)])._suspect()
    assert suspect is not None
    assert suspect.text == "rank 0 (process 1 on elsewhere) does not respond"


@pytest.mark.deep
def test_where_a_stuck_rank_is_is_shown(tmp_path: Path, tiny: Make, cache: Path) -> None:
    codes, report = train_until_hung(tiny(), tmp_path, cache, 1, get_stuck)
    assert 1 in codes
    assert "all ranks respond, but step 6 does not end" in report["text"]
    assert "rank 1 in wait (threading.py)" in report["text"]


class Peers(HangWatch):
    """The watch of rank 0, whose store is a dictionary that a test fills in the place of the other ranks."""

    def __init__(self, *others: list[RankState]) -> None:
        self.others = others
        self.reads = 0
        self.states: dict[str, bytes] = {}
        super().__init__(World(world_size=1 + len(others)), 0.0001, lambda *_: None, interval_s=600)
        self.close()
        self._step, self._since = 5, 0.0

    def _open_store(self) -> Any:
        self._first = ["elsewhere", 1]
        return self

    def set(self, name: str, value: str) -> None:
        self.states[name] = value.encode()

    def _place(self) -> str:
        return "all_reduce"

    def _read_states(self) -> list[RankState]:
        return self._states()

    def multi_get(self, _: list[str]) -> list[bytes]:
        self._beat()
        found = [json.dumps(vars(each[self.reads])).encode() for each in self.others]
        self.reads += 1
        return [self.states["0"], *found]


def state(beats: int, lengthy: bool = False, place: str = "all_reduce", step: int = 5) -> RankState:
    return RankState(beats, step, lengthy, place, "elsewhere", 1)


@pytest.mark.parametrize(
    ("others", "found"),
    [
        ([[state(3), state(3)]], (1, "rank 1 (process 1 on elsewhere) does not respond since step 6")),
        ([[state(3), state(6, lengthy=True)]], None),
        ([[state(3, lengthy=True), state(3, lengthy=True)]], (1, "does not respond")),
        (
            [[state(3), state(6)], [state(3), state(6)], [state(3), state(6, place="read (data.py)")]],
            (3, "rank 3 in read (data.py); ranks 0, 1, 2 in all_reduce"),
        ),
    ],
)
def test_a_rank_is_suspected_by_its_signs_of_life(
    others: list[list[RankState]], found: tuple[int, str] | None
) -> None:
    suspect = Peers(*others)._suspect()
    if found is None:
        assert suspect is None
    else:
        assert suspect is not None
        assert suspect.rank == found[0]
        assert found[1] in suspect.text


def test_a_step_is_late_only_after_the_limit_and_ten_of_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(hang_watch.time, "monotonic", lambda: now[0])
    watch = Peers([state(1)])
    watch.limit_s, watch._step = 60.0, 0
    context = RunContext(Path("unused"))
    watch.attach(context)
    now[0] = 1000.0
    assert not watch._late()  # before the first step
    context.on_step(1, 9)
    now[0] += 20
    context.on_step(2, 9)
    now[0] += 199
    assert not watch._late()
    now[0] += 2
    assert watch._late()
    assert not watch._late(hang_watch.STUCK)
    with context.lengthy():
        assert not watch._late()
    assert not watch._late()


class Clocked(Peers):
    """The watch of one rank of three, for which time passes only where it waits."""

    def __init__(self, limit_s: float, rank: int, silent: int) -> None:
        super().__init__([], [])
        self.world, self.silent = World(rank=rank, world_size=3), silent
        self.limit_s, self.interval_s = limit_s, min(hang_watch.INTERVAL_S, limit_s / 4)
        self.now = 0.0
        self.ended_at: float | None = None
        self._ended, self.end = cast("threading.Event", self), self.stop

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        return self.is_set()

    def is_set(self) -> bool:
        return self.ended_at is not None

    def stop(self, _: int) -> None:
        self.ended_at = self.now

    def _watch(self) -> None: ...  # in a thread

    def _read_states(self) -> list[RankState]:
        if self.silent == 0:  # it has the store
            self.wait(hang_watch.SILENT_INTERVALS * self.interval_s)
            raise TimeoutError
        return [state(3 if rank == self.silent else round(self.now)) for rank in range(3)]


@pytest.mark.parametrize(("rank", "silent"), [(0, 1), (2, 1), (1, 0), (2, 0)])
def test_by_default_a_silent_rank_is_replaced_within_two_minutes(
    monkeypatch: pytest.MonkeyPatch, rank: int, silent: int
) -> None:
    """By the settings and, for the restart, by the times that docs/reliability.md has measured."""
    page = (ROOT / "docs" / "reliability.md").read_text()
    (measured,) = re.findall(
        r"`scaling.hang_timeout=10`, .* after (\d+) s with torchrun and (\d+) s with Ray", page
    )
    watch = Clocked(ScalingConfig().hang_timeout, rank, silent)
    monkeypatch.setattr(hang_watch.time, "monotonic", lambda: watch.now)
    HangWatch._watch(watch)
    noticed = watch.ended_at  # seconds since the last step
    assert noticed is not None
    # In the measurement the step was late at once, and the rank that reports ended without a further wait.
    restart = max(map(int, measured)) - (10 + hang_watch.SILENT_INTERVALS * 10 / 4)
    assert noticed + nccl_diagnostics.RECORD_S + restart < 120
    (stated,) = re.findall(r"within (\d+) s of its last step, by default", page)
    assert noticed <= int(stated)
    if rank == 2:
        assert noticed == int(stated)


@pytest.mark.parametrize(("world_size", "timeout", "watched"), [(2, 60, True), (1, 60, False), (2, 0, False)])
def test_the_ranks_of_a_run_are_watched_if_there_are_several(
    tmp_path: Path, tiny: Make, monkeypatch: pytest.MonkeyPatch, world_size: int, timeout: int, watched: bool
) -> None:
    made: list[float] = []

    class Watch:
        def __init__(
            self, _: World, limit_s: float, report: Callable[[int, str], Any], record: Callable[[], Any]
        ) -> None:
            made.append(limit_s)
            report(1, "rank 1 does not respond")

        def attach(self, context: RunContext) -> None: ...
        def close(self) -> None: ...

    events: list[dict[str, Any]] = []
    monkeypatch.setattr(hang_watch, "HangWatch", Watch)
    monkeypatch.setattr(EventSink, "send", lambda _, kind, **given: events.append({"kind": kind, **given}))
    recipe = tiny(f"scaling.hang_timeout={timeout}")
    with worker._watched(recipe, World(world_size=world_size), RunContext(tmp_path), EventSink(None)):
        assert made == ([60] if watched else [])
    assert [each["kind"] for each in events] == (["event", "crash"] if watched else [])
    assert all("rank 1 does not respond" in (each.get("text") or each["error"]) for each in events)


@pytest.mark.parametrize("use_gpu", [True, False])
def test_a_rank_with_a_gpu_stores_its_trace_with_the_run(
    tmp_path: Path, tiny: Make, monkeypatch: pytest.MonkeyPatch, use_gpu: bool
) -> None:
    class Hung:
        def __init__(self, *_: Any, record: Callable[[], Any]) -> None:
            record()

        def attach(self, context: RunContext) -> None: ...
        def close(self) -> None: ...

    stored: list[tuple[str, int]] = []
    monkeypatch.setattr(hang_watch, "HangWatch", Hung)
    monkeypatch.setattr(nccl_diagnostics, "store_trace", lambda store, rank: stored.append((store.url, rank)))
    recipe = tiny()
    recipe = recipe.model_copy(update={"scaling": recipe.scaling.model_copy(update={"use_gpu": use_gpu})})
    with worker._watched(recipe, World(rank=1, world_size=2), RunContext(tmp_path), EventSink(None)):
        assert stored == ([(f"{tmp_path}/diagnostics", 1)] if use_gpu else [])


@pytest.mark.parametrize("standby", [True, False])
def test_ranks_with_gpus_record_what_nccl_does(monkeypatch: pytest.MonkeyPatch, standby: bool) -> None:
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "7")
    made = ray_cluster._worker_environment(standby, use_gpu=True)
    assert made is not None
    assert (
        made["env_vars"].items() >= {"TORCH_FR_BUFFER_SIZE": "7", "TORCH_FR_DUMP_ON_TIMEOUT": "true"}.items()
    )
    assert ray_cluster._worker_environment(standby, use_gpu=False) == (
        prestart.environment() if standby else None
    )
    monkeypatch.delenv("TORCH_NCCL_ENABLE_MONITORING", raising=False)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    nccl_diagnostics.enable()
    assert (os.environ["TORCH_FR_BUFFER_SIZE"], os.environ["TORCH_NCCL_ENABLE_MONITORING"]) == ("7", "1")


def test_the_wait_for_other_workers_is_that_of_the_recipe(
    tmp_path: Path, asked_of_ray: dict[str, Any]
) -> None:
    cluster = ray_cluster.RayCluster(own=True, storage=str(tmp_path))
    cluster.train(lambda config: None, {}, ScalingConfig(start_timeout=7))
    assert asked_of_ray["torch_config"].timeout_s == 420
