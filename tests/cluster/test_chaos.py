"""Faults injected into one run on a real cluster: it recovers by itself, with the losses of a run alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from tests.cluster.conftest import until
from tests.cluster.faults import (
    Note,
    cut_workers_off,
    delete_head,
    delete_worker,
    kill_api_server,
    kill_operator,
    kill_process,
    losses,
    prestarted,
    saved_steps,
    show,
    stop_store,
)
from tests.cluster.launches import LONG, Launch, Place, launched, place

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(1500)]
__all__ = ["place"]
RUN = "faulted"


@pytest.fixture(scope="module")
def run(place: Place) -> Iterator[Launch]:
    """A run that trains while the tests of this module inject faults."""
    with launched(place, RUN, *LONG, "scaling.restarts=20") as launch:
        launch.reach(60)
        yield launch
        if not launch.ended:
            # A launcher that is killed leaves the temporary key files of its Kubernetes client.
            launch.interrupt()


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(kill_process, id="process"),
        pytest.param(delete_worker, id="pod"),
        pytest.param(delete_head, id="head"),
    ],
)
def test_a_run_resumes_from_its_newest_checkpoint_after_losing_a_process(
    fault: Callable[[Place], None], place: Place, run: Launch, record_property: Note
) -> None:
    until(lambda: prestarted(place), "processes wait for a restart", 120)
    resumed = run.output.count("resumed:")
    saved, before = saved_steps(place, RUN)[-1], run.step()
    began = time.monotonic()
    fault(place)
    until(lambda: run.ended or run.output.count("resumed:") > resumed, "the run has resumed", 400)
    back = time.monotonic() - began
    # The run is back at a checkpoint: only a step after `before` is new.
    run.reach(before + 1)
    show(record_property, fault.__name__, resumed=back, next_step=time.monotonic() - began)
    line = [each for each in run.output.splitlines() if each.startswith("resumed:")][-1]
    assert int(line.partition(", step ")[2].partition("/")[0]) >= saved, f"{line}; step {saved} was saved"


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(kill_operator, id="operator"),
        pytest.param(kill_api_server, id="api-server"),
        pytest.param(stop_store, id="store"),
        pytest.param(cut_workers_off, id="network"),
    ],
)
def test_a_run_continues_without_a_restart_when_a_service_is_lost(
    fault: Callable[[Place], None], place: Place, run: Launch, record_property: Note
) -> None:
    resumed, before = run.output.count("resumed:"), run.step()
    began = time.monotonic()
    fault(place)
    run.reach(max(before, run.step()) + 200)
    show(record_property, fault.__name__, next_200_steps=time.monotonic() - began)
    assert run.output.count("resumed:") == resumed
    until(lambda: place.cluster.status()["ready"], "the cluster is ready again")


def test_the_run_with_faults_has_the_losses_of_an_undisturbed_run(place: Place, run: Launch) -> None:
    assert run.interrupt() == 130, run.output
    assert "which is saved" in run.output
    assert not [line for line in run.output.splitlines() if line.startswith(("quarantined", "fallback"))], (
        run.output
    )
    place.clean()
    faulted = losses(place.store.folder / "runs" / "runs" / RUN)
    alone = place.begin(
        "alone",
        "launch",
        "lm-tiny",
        "--on",
        "torchrun",
        "--run",
        "alone",
        "--storage",
        str(place.folder / "alone"),
        *LONG,
        place.data,
    )
    try:
        alone.reach(max(faulted))
        assert alone.interrupt() == 130, alone.output
    finally:
        alone.kill()
    undisturbed = losses(place.folder / "alone" / "alone")
    assert len(faulted) == max(faulted) // 5, "an interval is missing or was logged twice"
    assert faulted == {step: loss for step, loss in undisturbed.items() if step <= max(faulted)}
