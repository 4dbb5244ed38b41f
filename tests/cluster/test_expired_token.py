"""A launcher whose token ends says which login to renew, and the run continues without it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.conftest import until
from tests.cluster.launches import LONG, Place, launched, place
from tests.cluster.logins import LoggedIn, logged_in

pytestmark = [pytest.mark.cluster, pytest.mark.deep]
__all__ = ["place"]
RUN = "outlives-a-token"


@pytest.fixture
def launcher(place: Place, tmp_path: Path) -> Iterator[LoggedIn]:
    with logged_in(place, tmp_path / "kubeconfig") as found:
        yield found


def test_a_run_continues_when_its_launchers_token_ends(place: Place, launcher: LoggedIn) -> None:
    with launched(launcher, RUN, *LONG) as launch:
        launch.reach(10)
        launcher.end()
        until(lambda: launch.ended, "the launcher ends", 420)  # it asks for a new login for 5 minutes
        assert launch.process.returncode == 1
        assert "your login to the cluster has ended" in launch.output
        assert "the run continues there; `trainfleet runs attach` follows it again" in launch.output
        reached = launch.step()
        there = ("--storage", f"{place.store.url}/runs", *place.where)
        attached = place.begin("attached", "runs", "attach", RUN, *there)
        try:
            attached.reach(reached + 5)
            assert "resumed" not in attached.output, "the run was not restarted"
            stopped = place.call("runs", "stop", RUN, *there)
            assert stopped.returncode == 0, stopped.stderr
            until(lambda: attached.ended, "attach ends with the run", 120)
        finally:
            attached.kill()
    place.clean()
