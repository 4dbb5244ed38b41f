"""The login of a platform's launcher account: a kubeconfig with a token that can be ended and renewed."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import yaml

from tests.cluster.conftest import until
from tests.cluster.faults import wait
from tests.cluster.launches import Launch, Place
from tests.cluster.sky_place import granted

TOKEN, AGAIN = "launcher-token", "the cluster answers again"


@dataclass(frozen=True)
class LoggedIn(Place):
    """A place whose commands have this login."""

    kubeconfig: Path

    @property
    def env(self) -> dict[str, str]:
        return super().env | {"KUBECONFIG": str(self.kubeconfig)}

    def end(self) -> None:
        """End the token. The API server rejects it within about 10 seconds."""
        self.kubectl("delete", "secret", TOKEN)

    def renew(self) -> None:
        """Write a new token to the kubeconfig."""
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "kubernetes.io/service-account-token",
            "metadata": {
                "name": TOKEN,
                "namespace": self.namespace,
                "annotations": {"kubernetes.io/service-account.name": "launcher"},
            },
        }
        self.cluster.apply(secret)
        asked = ("get", "secret", TOKEN, "-o", "jsonpath={.data.token}")
        token = base64.b64decode(until(lambda: self.kubectl(*asked), "the token exists", 60)).decode()
        known = yaml.safe_load(Path(self.cluster.state.kubeconfig).read_text())
        known["users"][0]["user"] = {"token": token}
        self.kubeconfig.write_text(yaml.safe_dump(known))

    @contextlib.contextmanager
    def logged_out(self, launch: Launch, seconds: float) -> Iterator[None]:
        """A login that ended, and was renewed after some seconds. The launcher has noticed both."""
        before = launch.output.count(AGAIN)
        self.end()
        wait(seconds)
        self.renew()
        until(lambda: launch.output.count(AGAIN) > before, "the launcher has noticed", 120)
        yield


@contextlib.contextmanager
def logged_in(place: Place, file: Path) -> Iterator[LoggedIn]:
    """The same place with the login of its launcher account, which has the rights that a stack grants."""
    rights = [each for each in granted(place.namespace) if each["kind"] not in ("Namespace", "Secret")]
    place.cluster.apply(*rights)
    login = LoggedIn(**{each.name: vars(place)[each.name] for each in fields(place)}, kubeconfig=file)
    names = [each["metadata"]["name"] for each in rights if each["kind"] == "ClusterRole"]
    try:
        login.renew()
        yield login
    finally:
        place.cluster.kubectl("delete", "clusterrole,clusterrolebinding", *names, "--ignore-not-found")
