"""Trackers: each receives the rows unchanged, and one that fails does not stop the run."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import socket
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from trainfleet.errors import InputError, MissingToolError
from trainfleet.training.recipe.schema import Recipe
from trainfleet.training.trackers import FailsafeTracker, make_trackers, metrics_of, mlflow

Make = Callable[..., Recipe]
ROW = {
    "kind": "train",
    "step": 3,
    "steps": 12,
    "loss": 2.5,
    "lr": 1e-3,
    "mfu": None,
    "grad_norm": float("inf"),
    "finished": True,
}
VALIDATION = {"kind": "validation", "step": 3, "validation/loss": 2.75}


def no_notice(*notice: str) -> None:
    raise AssertionError(notice)


def test_metrics_are_the_finite_numbers_by_split() -> None:
    assert list(metrics_of(ROW)) == [("train", "loss", 2.5), ("train", "lr", 1e-3)]
    assert list(metrics_of(VALIDATION)) == [("validation", "loss", 2.75)]


def test_tensorboard_has_one_point_per_metric(tmp_path: Path, tiny: Make) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (tracker,) = make_trackers(tiny("log.tensorboard=true"), tmp_path, 0, no_notice)
    for row in (ROW, VALIDATION):
        tracker.write_row(row)
    tracker.close()
    points = EventAccumulator(str(tmp_path / "tensorboard"))
    points.Reload()
    assert {
        name: [(point.step, round(point.value, 6)) for point in points.Scalars(name)]
        for name in points.Tags()["scalars"]
    } == {"train/loss": [(3, 2.5)], "train/lr": [(3, 0.001)], "validation/loss": [(3, 2.75)]}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_prometheus_can_scrape_the_latest_values(tmp_path: Path, tiny: Make) -> None:
    port = free_port()
    recipe = tiny(f"log.prometheus={port}")
    for round_ in range(2):  # a second run in the same process may register the same names
        (tracker,) = make_trackers(recipe, tmp_path, 0, no_notice)
        for row in (ROW | {"loss": 9.0}, ROW, VALIDATION):
            tracker.write_row(row)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        tracker.close()
        assert 'trainfleet_loss{run="lm-tiny",split="train",workload="lm"} 2.5' in text, round_
        assert 'trainfleet_loss{run="lm-tiny",split="validation",workload="lm"} 2.75' in text
        assert 'trainfleet_step{run="lm-tiny",split="train",workload="lm"} 3.0' in text
        assert "grad_norm" not in text


def test_a_tracker_that_cannot_start_or_fails_is_reported_once(tmp_path: Path, tiny: Make) -> None:
    notices: list[tuple[str, str]] = []
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        (tracker,) = make_trackers(
            tiny(f"log.prometheus={taken.getsockname()[1]}"), tmp_path, 0, lambda *each: notices.append(each)
        )
        tracker.write_row(ROW)
        tracker.close()
    assert [(what, text.partition(" is disabled")[0]) for what, text in notices] == [
        ("warning", "Prometheus")
    ]

    class FailingTracker:
        def write_row(self, row: Mapping[str, Any]) -> None:
            raise RuntimeError("the tracker is down\nat length")

        def close(self) -> None:
            raise AssertionError("a disabled tracker must not be called")

    notices.clear()
    broken = FailsafeTracker("Tracker", FailingTracker, lambda *each: notices.append(each))
    broken.write_row(ROW)
    broken.write_row(ROW)
    broken.close()
    assert notices == [
        (
            "warning",
            "Tracker is disabled for this run (the tracker is down); metrics.jsonl has all rows",
        )
    ]


@pytest.mark.parametrize("tracker", ["mlflow", "wandb"])
def test_a_tracker_that_is_not_installed_is_reported_before_the_run(
    tmp_path: Path, tiny: Make, tracker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainfleet.training.trackers.find_spec", lambda name: None)
    with pytest.raises(MissingToolError, match=rf"log.{tracker}.*pip install {tracker}"):
        make_trackers(tiny(f"log.{tracker}=somewhere"), tmp_path, 0, no_notice)


@pytest.mark.deep
@pytest.mark.skipif(importlib.util.find_spec("mlflow") is None, reason="mlflow is not installed")
def test_mlflow_has_one_run_after_a_resume(tmp_path: Path, tiny: Make) -> None:
    from mlflow.tracking import MlflowClient

    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    for step in (3, 6):
        (tracker,) = make_trackers(tiny(f"log.mlflow={uri}"), tmp_path, step - 3, no_notice)
        tracker.write_row(ROW | {"step": step})
        tracker.close()
    client = MlflowClient(tracking_uri=uri)
    (found,) = client.search_runs([client.get_experiment_by_name("trainfleet").experiment_id])
    assert (found.info.status, found.data.params["optimizer.lr"]) == ("FINISHED", "0.005")
    assert [
        (point.step, point.value) for point in client.get_metric_history(found.info.run_id, "train/loss")
    ] == [(3, 2.5), (6, 2.5)]


@pytest.mark.skipif(importlib.util.find_spec("mlflow") is None, reason="mlflow is not installed")
def test_an_mlflow_that_never_answers_is_disabled_soon(
    tmp_path: Path, tiny: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (mlflow.TIMEOUT, mlflow.RETRIES):
        monkeypatch.setenv(name, "")  # restored after the test
        monkeypatch.delenv(name)
    monkeypatch.setattr(mlflow, "TIMEOUT_S", 1)
    monkeypatch.setattr(mlflow, "START_RETRIES", 0)
    notices: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        make_trackers(tiny(f"log.mlflow={address}"), tmp_path, 0, lambda _, text: notices.append(text))
    assert "MLflow is disabled for this run" in notices[0]
    assert "timeout=1" in notices[0]
    assert (os.environ[mlflow.TIMEOUT], mlflow.RETRIES in os.environ) == ("1", False), (
        "later requests have MLflow's own retries"
    )


def _track_one_row(recipe: Recipe, folder: Path) -> None:
    """In a process of its own: wandb's service ends only when the process that logged ends."""
    (tracker,) = make_trackers(recipe, folder, 0, no_notice)
    tracker.write_row(ROW)
    tracker.close()


@pytest.mark.deep
@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="wandb is not installed")
def test_weights_and_biases_works_offline(
    tmp_path: Path, tiny: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    child = multiprocessing.get_context("spawn").Process(
        target=_track_one_row, args=(tiny("log.wandb=tests"), tmp_path)
    )
    child.start()
    child.join()
    assert child.exitcode == 0
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))


def test_an_invalid_port_is_rejected(tiny: Make) -> None:
    with pytest.raises(InputError, match=r"log.prometheus"):
        tiny("log.prometheus=80")
