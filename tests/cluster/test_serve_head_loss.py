"""A model is served while the head of its Ray cluster is lost: with GCS fault tolerance, the workers' proxies
answer. How many requests failed depends on the machine; it is recorded and printed.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tests.cluster.conftest import until
from tests.cluster.launches import Place, place
from tests.cluster.redis import Redis
from tests.cluster.test_chaos import Note, delete_head, show
from tests.cluster.test_head_loss import head_is_replaced, server, state_of

pytestmark = [pytest.mark.cluster, pytest.mark.deep, pytest.mark.timeout(1500)]
__all__ = ["place", "server"]
PAUSE_S = 0.2
ROWS = json.dumps({"rows": [{"text": "def main("}]}).encode()


@dataclass
class Client:
    """Asks a service again and again, one request at a time, each with a connection of its own."""

    address: str
    answers: list[tuple[float, str]] = field(default_factory=list)
    """When each request was sent, and why it failed, or nothing."""
    stop: threading.Event = field(default_factory=threading.Event)

    def ask(self) -> str:
        """Why the request failed; empty if it was answered."""
        try:
            with urllib.request.urlopen(
                urllib.request.Request(f"{self.address}/predict", ROWS), timeout=20
            ) as answer:
                return "" if len(json.loads(answer.read())["predictions"]) == 1 else "no prediction"
        except (OSError, ValueError) as error:
            return f"{type(error).__name__}: {error}"[:120]

    def run(self) -> None:
        """Until it is stopped."""
        while not self.stop.wait(PAUSE_S):
            began = time.monotonic()
            self.answers.append((began, self.ask()))

    def since(self, when: float) -> list[str]:
        """The results of the requests since then."""
        return [why for sent, why in list(self.answers) if sent >= when]


@contextlib.contextmanager
def asking(address: str) -> Iterator[Client]:
    client = Client(address)
    thread = threading.Thread(target=client.run)
    thread.start()
    try:
        yield client
    finally:
        client.stop.set()
        thread.join()


@pytest.fixture(scope="module")
def address(place: Place, server: Redis) -> Iterator[str]:
    """A model that is served, with Ray's control store in Redis."""
    trained = place.launch("model", "scaling.workers=1")
    assert trained.returncode == 0, trained.stderr
    place.clean()
    redis = ("--redis", server.address, "--redis-secret", "redis-password")
    made = place.call(
        "serve",
        f"{place.store.url}/runs/model",
        "--on",
        "kuberay",
        *place.reached(),
        "--name",
        "model",
        *redis,
    )
    assert made.returncode == 0, made.stderr
    ip = ("get", "service", "model-serve-svc", "-o", "jsonpath={.spec.clusterIP}")
    found = until(lambda: place.kubectl(*ip, check=False), "the service", 400)
    yield f"http://{found}:8000"
    place.kubectl("delete", "rayservice", "model")
    place.clean()


def test_requests_are_answered_while_the_head_is_lost(
    place: Place, address: str, record_property: Note
) -> None:
    until(lambda: not Client(address).ask(), "the model answers", 300)
    with asking(address) as client:
        until(lambda: len(client.since(0)) > 20, "requests before the fault", 120)
        assert not any(client.since(0)), client.answers
        heads, workers = state_of(place, "head"), state_of(place, "worker")
        began = time.monotonic()
        delete_head(place)
        until(lambda: head_is_replaced(place, heads), "another head", 180)
        without_head, replaced = client.since(began), time.monotonic() - began
        ready = ("wait", "--for=condition=Ready", "pod", "-l", "ray.io/node-type=head", "--timeout=180s")
        place.kubectl(*ready)
        back = time.monotonic()
        until(lambda: len(client.since(back)) > 20, "requests to the next head", 120)
    results = client.since(began)
    failed = [why for why in results if why]
    show(record_property, "head of a service", replaced=replaced, ready=back - began)
    counts = {"requests": len(results), "failed": len(failed), "without_head": len(without_head)}
    for name, count in counts.items():
        record_property(name, count)
    sys.stdout.write("\n".join([str(counts), *sorted(set(failed)), ""]))
    assert "" in without_head, "no request was answered while there was no head"
    assert not any(client.since(back)[-10:]), "requests fail after the head is back"
    assert state_of(place, "worker") == workers, "the workers were restarted"
