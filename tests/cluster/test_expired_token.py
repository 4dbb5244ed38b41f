"""A launcher whose token ends says which login to renew, and the run continues without it."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import pytest
import yaml

from tests.cluster.conftest import until
from tests.cluster.launches import LONG, Place, launched, place
from tests.cluster.sky_place import granted

pytestmark = [pytest.mark.cluster, pytest.mark.deep]
__all__ = ["place"]
RUN, TOKEN = "outlives-a-token", "launcher-token"


@dataclass(frozen=True)
class LoggedIn(Place):
    """The same place with the login of its launcher account."""

    kubeconfig: Path

    @property
    def env(self) -> dict[str, str]:
        return super().env | {"KUBECONFIG": str(self.kubeconfig)}


@pytest.fixture
def launcher(place: Place, tmp_path: Path) -> Iterator[LoggedIn]:
    """A login with a token that ends once its Secret is deleted."""
    rights = [each for each in granted(place.namespace) if each["kind"] not in ("Namespace", "Secret")]
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/service-account-token",
        "metadata": {
            "name": TOKEN,
            "namespace": place.namespace,
            "annotations": {"kubernetes.io/service-account.name": "launcher"},
        },
    }
    place.cluster.apply(*rights, secret)
    asked = ("get", "secret", TOKEN, "-o", "jsonpath={.data.token}")
    token = base64.b64decode(until(lambda: place.kubectl(*asked), "the token exists", 60)).decode()
    known = yaml.safe_load(Path(place.cluster.state.kubeconfig).read_text())
    known["users"][0]["user"] = {"token": token}
    file = tmp_path / "kubeconfig"
    file.write_text(yaml.safe_dump(known))
    yield LoggedIn(**{each.name: vars(place)[each.name] for each in fields(place)}, kubeconfig=file)
    names = [each["metadata"]["name"] for each in rights if each["kind"] == "ClusterRole"]
    place.cluster.kubectl("delete", "clusterrole,clusterrolebinding", *names, "--ignore-not-found")


def test_a_run_continues_when_its_launchers_token_ends(place: Place, launcher: LoggedIn) -> None:
    with launched(launcher, RUN, *LONG) as launch:
        launch.reach(10)
        place.kubectl("delete", "secret", TOKEN)
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
