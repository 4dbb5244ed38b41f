"""A run saves before it ends: after SIGTERM, after a preemption notice, or with fewer workers."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.training.ranks import start_ranks
from tests.training.training_runs import metric_values, rows_of, train_all
from trainfleet.errors import InputError
from trainfleet.training.recipe.load import load_recipe
from trainfleet.training.recipe.schema import Recipe, ScalingConfig
from trainfleet.training.runtime.ray_cluster import RayCluster
from trainfleet.training.stores import Store, open_store
from trainfleet.training.stores.lease import STOP, Lease, request_stop
from trainfleet.training.trainer.context import RunContext, RunResult
from trainfleet.training.trainer.loop import train

Make = Callable[..., Recipe]
Run = Callable[..., RunResult]


def saved_steps(run_dir: Path) -> set[int]:
    return {int(path.name[5:]) for path in (run_dir / "checkpoints").glob("step-*[0-9]")}


def test_a_run_saves_on_sigterm_and_resumes_exactly(
    tmp_path: Path, tiny: Make, run: Run, cache: Path
) -> None:
    recipe = tiny("log.every=3")
    run(recipe, tmp_path / "whole")

    def work(_: int) -> None:
        from trainfleet.training.trainer.step import Stepper
        from trainfleet.training.worker import work as train_as_worker

        os.environ["TRAINFLEET_CACHE"] = str(cache.parent)
        forward, calls = Stepper.forward, [0]

        def forward_with_sigterm(self: Stepper, *arguments: Any) -> Any:
            calls[0] += 1
            if calls[0] == 4 * 4 + 2:
                os.kill(os.getpid(), signal.SIGTERM)
            return forward(self, *arguments)

        Stepper.forward = forward_with_sigterm  # type: ignore[method-assign,assignment]  # only in this process
        document = train_as_worker(recipe, tmp_path / "cut", {})
        (tmp_path / "document.json").write_text(json.dumps(document))

    assert start_ranks(work, 1) == [0]
    document = json.loads((tmp_path / "document.json").read_text())
    assert document["status"] == "stopped"
    assert document["step"] in saved_steps(tmp_path / "cut")
    assert run(recipe, tmp_path / "cut").resumed_from == document["step"] < 12
    for key in ("loss", "grad_norm"):
        assert metric_values(rows_of(tmp_path / "cut"), key) == metric_values(
            rows_of(tmp_path / "whole"), key
        )


def test_a_preemption_notice_saves_once_and_the_run_continues(
    tmp_path: Path, tiny: Make, run: Run, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tiny(), tmp_path / "whole")
    monkeypatch.setattr("trainfleet.training.trainer.preemption.CHECK_INTERVAL_S", -1.0)
    looks, events = (
        iter(
            [
                None,
                "one machine will be preempted",
                "one machine will be preempted",
                "one machine will be preempted",
            ]
        ),
        [],
    )
    evacuated: list[set[int]] = []

    def on_event(what: str, text: str) -> None:
        events.append((what, text))

    def on_evacuated() -> None:
        evacuated.append(saved_steps(tmp_path / "preempted"))

    recipe = tiny("checkpoint.every=12", "checkpoint.keep_last=9")
    result = train(
        recipe,
        RunContext(
            tmp_path / "preempted",
            cache=cache,
            preempted=lambda: next(looks, None),
            on_event=on_event,
            on_evacuated=on_evacuated,
        ),
    )
    assert len(evacuated) == 1, "the checkpoint of the notice, and no later one"
    assert 2 in evacuated[0], "it is complete"
    assert (result.status, result.step) == ("finished", 12)
    assert saved_steps(tmp_path / "preempted") == {2, 12}
    assert [text for what, text in events if what == "preemption"] == [
        "one machine will be preempted; saving at step 2"
    ]
    assert metric_values(rows_of(tmp_path / "preempted"), "loss") == metric_values(
        rows_of(tmp_path / "whole"), "loss"
    )


@pytest.mark.deep
def test_with_fewer_workers_the_global_batch_is_kept(
    tmp_path: Path, tiny: Make, cache: Path, run: Run
) -> None:
    """Sixteen samples in micro batches of four on three ranks: two passes of two or three samples."""
    run(tiny(), tmp_path / "one")
    recipes = {strategy: tiny(f"strategy={strategy}") for strategy in ("ddp", "fsdp")}
    for rows in train_all(recipes, tmp_path, cache, 3).values():
        assert metric_values(rows, "loss") == pytest.approx(
            metric_values(rows_of(tmp_path / "one"), "loss"), rel=2e-5
        )
        assert metric_values(rows, "epoch") == metric_values(rows_of(tmp_path / "one"), "epoch")


def test_more_ranks_than_samples_in_a_batch_are_rejected(tmp_path: Path, tiny: Make, cache: Path) -> None:
    with pytest.raises(InputError, match="the batch is smaller than the number of ranks"):
        train(tiny("batch.global_batch=4"), RunContext(tmp_path, 0, 5, cache=cache))


def test_minimum_and_maximum_workers_are_validated() -> None:
    with pytest.raises(InputError) as caught:
        load_recipe("lm-tiny", ["scaling.min_workers=3"])
    assert caught.value.problems[0].where.endswith("scaling.min_workers")


def test_ray_gets_a_range_of_workers_and_the_minimum_is_enough(
    monkeypatch: pytest.MonkeyPatch, asked_of_ray: dict[str, Any]
) -> None:
    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 2.0})
    monkeypatch.delenv("TRAINFLEET_AUTOSCALED", raising=False)
    elastic, fixed = ScalingConfig(workers=4, min_workers=2), ScalingConfig(workers=4)
    cluster = RayCluster(own=False, storage="/tmp/unused")
    cluster.require(elastic)
    with pytest.raises(InputError, match="fewer CPUs"):
        cluster.require(fixed)
    cluster.train(lambda config: None, {}, elastic)
    assert asked_of_ray["scaling_config"].num_workers == (2, 4)
    cluster.train(lambda config: None, {}, fixed)
    assert asked_of_ray["scaling_config"].num_workers == 4


def test_the_preemption_notice_of_ray_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    from trainfleet.training.worker import preemption_notice

    monkeypatch.setattr("ray.train.get_preemption_info", lambda: None)
    assert preemption_notice() is None
    monkeypatch.setattr(
        "ray.train.get_preemption_info",
        lambda: SimpleNamespace(preempted_node_to_ranks={"a": [1, 0]}, deadline_ms=1),
    )
    assert preemption_notice() == "1 machine(s) with ranks [0, 1] will be preempted"


def test_a_request_to_stop_outlives_a_crash_before_the_checkpoint(
    tmp_path: Path, tiny: Make, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, recipe = (
        open_store(str(tmp_path)),
        tiny("steps=400", "checkpoint.every=400", "validation.every=400"),
    )
    leases: list[Lease] = []

    def quick(store: Store, launch: str) -> Lease:
        leases.append(Lease(store, launch, heartbeat_s=0.01))
        return leases[-1]

    def crash() -> bool:
        assert request_stop(store)
        deadline = time.monotonic() + 30
        while not leases[-1].stop_requested:
            assert time.monotonic() < deadline
        raise RuntimeError("the worker is lost")

    def slow() -> bool:
        time.sleep(0.01)
        return False

    monkeypatch.setattr("trainfleet.training.runs.storage.Lease", quick)
    with pytest.raises(RuntimeError, match="the worker is lost"):
        run(recipe, tmp_path, launch="launch-1", should_stop=crash)
    result = run(recipe, tmp_path, launch="launch-1", should_stop=slow)
    assert (result.status, result.step in saved_steps(tmp_path)) == ("stopped", True)
    assert not (tmp_path / STOP).exists()
