"""A run on SkyPilot that loses pods: SkyPilot has no state of its job then, and never deletes the other pods."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.training.launch.fake_sky import LOG, FakeSky, driven
from tests.training.launch.test_sky_kept import TASK, cluster
from trainfleet.errors import TrainfleetError
from trainfleet.training.launch.sky import follow, job_state, pods

RUNS = {"metadata": {"name": "a"}, "status": {"phase": "Running"}}
Contexts = dict[str, str]


class ClusterNotUpError(Exception):
    """Has the name of SkyPilot's own error."""


class Lost(FakeSky):
    """SkyPilot whose cluster is not up any more, and whose log is interrupted."""

    def __init__(self, **given: Any) -> None:
        super().__init__(LOG[:2], **given)

    def state(self) -> Any:
        raise ClusterNotUpError("Getting job status: skipped for cluster 'tf-night' (status: INIT).")


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Returns a function that sets what each listing of the pods of `near` gives; the last one repeats."""
    monkeypatch.setattr(follow, "RECONNECT_S", (0.01,))
    monkeypatch.setattr(job_state, "POLL_S", 0.01)
    monkeypatch.setattr(job_state, "UNREACHABLE_S", 0.3)

    def use(*listings: list[Any] | None) -> None:
        given: Iterator[list[Any] | None] = iter(listings)
        last = listings[-1]

        def live_pods(contexts: Contexts, selector: str) -> list[tuple[str, Any]] | None:
            if list(contexts) == ["far"]:
                return []
            found = next(given, last)
            return None if found is None else [("near", each) for each in found]

        monkeypatch.setattr(pods, "live_pods", live_pods)

    return use


def test_a_run_that_lost_a_pod_has_failed_and_its_other_pods_are_deleted(
    reported: list[dict[str, Any]], listed: Callable[..., None]
) -> None:
    listed([RUNS])
    sky = Lost()
    with pytest.raises(TrainfleetError, match="without reporting a result") as raised:
        driven(reported, sky).run()
    assert "tf-night: not all of its 2 pods run" in str(raised.value)
    assert sky.calls[-1] == ("down", "tf-night")


@pytest.mark.parametrize(
    "listings",
    [[None], [[RUNS, RUNS]], [[RUNS], [RUNS, RUNS]]],
    ids=["the cluster does not answer", "all run", "one listing lacks a pod"],
)
def test_a_run_whose_pods_may_all_run_is_kept(
    reported: list[dict[str, Any]], listed: Callable[..., None], listings: list[Any]
) -> None:
    listed(*listings)
    sky = Lost()
    with pytest.raises(TrainfleetError, match="SkyPilot no longer answers"):
        driven(reported, sky).run()
    assert ("down", "tf-night") not in sky.calls


def test_a_long_lived_cluster_that_lost_a_pod_is_named_with_the_command(
    reported: list[dict[str, Any]], listed: Callable[..., None]
) -> None:
    """SkyPilot deletes it no more, and only its users know whether to do so."""
    listed([RUNS])
    sky = Lost(live=[cluster()])
    with pytest.raises(TrainfleetError, match=r"shared: not all of its 2 pods run \(sky down shared\)"):
        driven(reported, sky, cluster="shared", kept=True, task=TASK).run()
    assert ("down", "shared") not in sky.calls
