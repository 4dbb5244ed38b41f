"""The metrics of a run, scraped by a real Prometheus as the stacks' PodMonitors say: every query of every
dashboard is run.

What Ray, the run and Prometheus tell must come back with data. DCGM, kube-state-metrics and Kueue do not run
here: their queries are taken
by Prometheus, and return nothing.
"""

from __future__ import annotations

import signal
import subprocess

import pytest

from tests.cluster.conftest import until
from tests.cluster.launches import PROGRAM
from tests.cluster.watching import WATCHED_STEPS, Watched, told_here
from tests.infra.kubernetes.test_dashboards import metrics_in
from trainfleet.infra.kubernetes.dashboards.metrics import DCGM, KUEUE, METRICS, STATE

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]


def test_every_query_that_something_here_can_answer_returns_data(watched: Watched) -> None:
    told = {expression: rows for expression, rows in watched.answers.items() if told_here(expression)}
    assert len(told) > 15
    assert not [expression for expression, rows in told.items() if not rows]
    for expression, rows in told.items():
        assert all(float(row["value"][1]) >= 0 for row in rows), expression


def test_every_other_query_is_taken_by_prometheus_and_asks_what_does_not_run_here(watched: Watched) -> None:
    others = [
        expression
        for expression in watched.answers
        if not told_here(expression) and "vector(0)" not in expression
    ]
    assert len(others) > 15
    for expression in others:
        sources = {METRICS[name] for name in metrics_in(expression)}
        assert sources & {DCGM, STATE, KUEUE} or "== 0" in expression, expression
        assert watched.answers[expression] == [], expression


def test_heads_and_workers_are_told_apart_and_all_answer(watched: Watched) -> None:
    def up(kind: str) -> list[str]:
        return [row["value"][1] for row in watched.answers[f'sum(up{{ray_io_node_type="{kind}"}})']]

    assert (up("head"), up("worker")) == (["1"], ["2"])


def test_the_run_is_named_by_its_own_gauges(watched: Watched) -> None:
    (step,) = watched.answers["max by (run) (ray_trainfleet_step)"]
    assert step["metric"] == {"run": "watched"}
    assert float(step["value"][1]) >= WATCHED_STEPS
    splits = {row["metric"]["split"] for row in watched.answers["max by (run, split) (ray_trainfleet_loss)"]}
    assert {"train", "validation"} <= splits


def test_a_runs_own_port_is_scraped_too(watched: Watched) -> None:
    settings = [
        "steps=100000",
        "log.every=5",
        "validation.every=100000",
        "checkpoint.every=100000",
        f"log.prometheus={watched.own_port}",
    ]
    command = [
        PROGRAM,
        "launch",
        "lm-tiny",
        "--on",
        "torchrun",
        "--run",
        "own",
        "--storage",
        str(watched.folder / "own"),
        *settings,
    ]
    with (watched.folder / "own.out").open("w") as log:
        launch = subprocess.Popen(command, cwd=watched.folder, stdout=log, stderr=subprocess.STDOUT)
    try:
        found = until(
            lambda: (
                launch.poll() is not None
                or watched.prometheus.rows('trainfleet_loss{run="own", split="train"} < 6')
            ),
            "the run's loss is scraped",
            300,
        )
        assert found is not True, (watched.folder / "own.out").read_text()
        assert found[0]["metric"]["workload"] == "lm"
        launch.send_signal(signal.SIGINT)
        assert launch.wait(120) == 130
    finally:
        launch.kill()
        launch.wait()
