"""A real Prometheus scrapes a run as the stacks' PodMonitors specify, and runs every query of the dashboards.

Queries on metrics of Ray, the run and Prometheus must return data. DCGM, kube-state-metrics and Kueue do not
run here: Prometheus accepts their queries and returns nothing.
"""

from __future__ import annotations

import signal
import subprocess

import pytest

from tests.cluster.conftest import until
from tests.cluster.launches import PROGRAM
from tests.cluster.observed_run import OBSERVED_STEPS, ObservedRun, has_local_source
from tests.infra.kubernetes.test_dashboards import metrics_in
from trainfleet.infra.kubernetes.dashboards.metrics import DCGM, KUEUE, METRICS, STATE

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(1200)]


def test_every_query_with_a_local_source_returns_data(observed_run: ObservedRun) -> None:
    answers = {
        expression: rows for expression, rows in observed_run.answers.items() if has_local_source(expression)
    }
    assert len(answers) > 15
    assert not [expression for expression, rows in answers.items() if not rows]
    for expression, rows in answers.items():
        assert all(float(row["value"][1]) >= 0 for row in rows), expression


def test_every_other_query_is_valid_and_returns_nothing(observed_run: ObservedRun) -> None:
    others = [
        expression
        for expression in observed_run.answers
        if not has_local_source(expression) and "vector(0)" not in expression
    ]
    assert len(others) > 15
    for expression in others:
        sources = {METRICS[name] for name in metrics_in(expression)}
        assert sources & {DCGM, STATE, KUEUE} or "== 0" in expression, expression
        assert observed_run.answers[expression] == [], expression


def test_heads_and_workers_are_distinguished_and_all_are_up(observed_run: ObservedRun) -> None:
    def up(kind: str) -> list[str]:
        return [row["value"][1] for row in observed_run.answers[f'sum(up{{ray_io_node_type="{kind}"}})']]

    assert (up("head"), up("worker")) == (["1"], ["2"])


def test_the_run_metrics_are_labeled_with_its_name(observed_run: ObservedRun) -> None:
    (step,) = observed_run.answers["max by (run) (ray_trainfleet_step)"]
    assert step["metric"] == {"run": "watched"}
    assert float(step["value"][1]) >= OBSERVED_STEPS
    splits = {
        row["metric"]["split"] for row in observed_run.answers["max by (run, split) (ray_trainfleet_loss)"]
    }
    assert {"train", "validation"} <= splits


def test_the_own_port_of_a_run_is_scraped(observed_run: ObservedRun) -> None:
    settings = [
        "steps=100000",
        "log.every=5",
        "validation.every=100000",
        "checkpoint.every=100000",
        f"log.prometheus={observed_run.own_port}",
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
        str(observed_run.folder / "own"),
        *settings,
    ]
    with (observed_run.folder / "own.out").open("w") as log:
        launch = subprocess.Popen(command, cwd=observed_run.folder, stdout=log, stderr=subprocess.STDOUT)
    try:
        found = until(
            lambda: (
                launch.poll() is not None
                or observed_run.prometheus.rows('trainfleet_loss{run="own", split="train"} < 6')
            ),
            "the loss of the run is scraped",
            300,
        )
        assert found is not True, (observed_run.folder / "own.out").read_text()
        assert found[0]["metric"]["workload"] == "lm"
        launch.send_signal(signal.SIGINT)
        assert launch.wait(120) == 130
    finally:
        launch.kill()
        launch.wait()
