"""A run on KubeRay reports itself: its launcher has no address, and the pods have it from a Secret."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.conftest import until
from tests.cluster.launches import Place, launched, place
from tests.training.notifications.receiver import TOKEN, Receiver, receiving

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1500)]
__all__ = ["place"]
KEY = "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
REPORTED = ("notifications.webhook=HOOK", "notifications.signing_key=HOOK_KEY", "--from-secret", "hook")


@pytest.fixture
def hook(place: Place) -> Iterator[Receiver]:
    """A server with TLS at the address at which pods reach this machine, and its address in a Secret."""
    folder = place.store.authority.parent
    certificate = (folder / "tls.crt", folder / "tls.key")
    with receiving(host=str(place.cluster.state.host_address), certificate=certificate) as receiver:
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "hook", "namespace": place.namespace},
            "stringData": {"HOOK": receiver.url, "HOOK_KEY": KEY},
        }
        place.cluster.apply(secret)
        yield receiver


def without_secrets(place: Place, run: str, *texts: str) -> None:
    """No output, object or file of the run contains the address or the key."""
    files = [path for path in (place.store.folder / "runs" / "runs" / run).rglob("*") if path.is_file()]
    kinds = "rayjob,raycluster,job,pod,configmap,event"
    for text in (*texts, place.kubectl("get", kinds, "-o", "json"), *map(_text, files)):
        assert TOKEN not in text
        assert KEY not in text


def _text(path: Path) -> str:
    return path.read_text(errors="replace")


@pytest.mark.deep
def test_a_run_that_loses_its_head_reports_one_start_and_one_end(place: Place, hook: Receiver) -> None:
    arguments = ("steps=600", "log.every=5", "checkpoint.every=50", "scaling.restarts=5", *REPORTED)
    with launched(place, "reported", *arguments) as launch:
        launch.reach(60)
        until(lambda: hook.received, "the start is reported")
        place.kubectl("delete", place.names("pod", "ray.io/node-type=head")[0], "--wait=false")
        until(lambda: "resumed:" in launch.output, "the run has resumed", 400)
        without_secrets(place, "reported", launch.output)
        assert launch.process.wait(600) == 0, launch.output
    assert hook.types() == ["run.start", "run.end"], launch.output
    start, end = (each.document["data"] for each in hook.received)
    assert start["launch"] == end["launch"]
    assert (end["status"], end["step"]) == ("finished", 600)
    without_secrets(place, "reported", launch.output)
    place.clean()


@pytest.mark.slow
def test_a_driver_that_fails_is_reported_from_the_cluster_once(place: Place, hook: Receiver) -> None:
    missing = f"workload.data.source={place.store.url}/none"
    done = place.launch("lacking", missing, *REPORTED)
    assert done.returncode == 2, done.stderr
    (got,) = hook.received
    assert got.document["type"] == "run.failure"
    assert "none" in json.dumps(got.document["data"]["text"])
    without_secrets(place, "lacking", done.stdout, done.stderr)
    place.clean()
