"""Runs in an object store, as `trainfleet ui` shows them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tests.stores.running import Running
from tests.ui.conftest import HOST, PORT
from tests.ui.written_runs import write_run
from trainfleet.training.stores import open_store
from trainfleet.ui.access import Access
from trainfleet.ui.app import Console
from trainfleet.ui.guard import Guard
from trainfleet.ui.run_store import RunStore

pytestmark = [
    pytest.mark.deep,
    pytest.mark.parametrize("store_server", ["s3"], indirect=True),
]


@pytest.fixture
def stored(store_server: Running, prefix: str, tmp_path: Path) -> str:
    """The URL of three runs in a store: finished, failed and one whose run.json is damaged."""
    url = store_server.url(prefix)
    for number, status in enumerate(("finished", "failed", "finished")):
        folder = write_run(tmp_path / f"lm-{number}", 200, number, status=status)
        store = open_store(f"{url}/{folder.name}")
        for file in folder.rglob("*"):
            if file.is_file():
                store.put(str(file.relative_to(folder)), file.read_bytes())
    open_store(f"{url}/lm-2").put("run.json", b'{"name": ["lm-2"], "starts": 3, "launches": "x"}')
    return url


@pytest.fixture
def client(stored: str, monkeypatch: pytest.MonkeyPatch) -> TestClient:
    monkeypatch.setattr("trainfleet.ui.run_store.STORE_EVERY_S", 0.0)
    monkeypatch.setattr("trainfleet.ui.pages.runs.LIST_WAIT_S", 60.0)
    guard = Guard(Console(RunStore([stored])).app, Access(), PORT)
    found = TestClient(guard, base_url=HOST)
    assert found.get(f"/?token={guard.access.token}").status_code == 200
    return found


def test_the_runs_of_a_store_are_listed_shown_and_compared(client: TestClient) -> None:
    listed = client.get("/").text
    assert all(f"/runs/0/lm-{number}" in listed for number in range(3))
    page = client.get("/runs/0/lm-0")
    assert page.status_code == 200
    assert "validation" in page.text
    assert "<svg" in page.text
    assert "learning rate" in page.text
    compared = client.get("/compare?run=0/lm-0&run=0/lm-1")
    assert compared.status_code == 200
    assert "lm-0" in compared.text
    assert "lm-1" in compared.text
    assert client.get("/cost").status_code == 200


def test_a_damaged_run_of_a_store_leaves_the_others(client: TestClient) -> None:
    assert "/runs/0/lm-2" in client.get("/").text
    assert client.get("/runs/0/lm-2").status_code in (200, 503)
    assert client.get("/runs/0/lm-1").status_code == 200
    assert client.get("/runs/0/lm-9").status_code == 404
    assert client.get("/runs/0/..%2Flm-0").status_code == 404


def test_new_rows_of_a_store_are_shown(client: TestClient, stored: str) -> None:
    assert "98765" not in client.get("/runs/0/lm-0").text
    store = open_store(f"{stored}/lm-0")
    row = json.dumps({"kind": "train", "step": 98765, "loss": 0.5}) + "\n"
    store.put("metrics.jsonl", store.read("metrics.jsonl") + row.encode())
    assert "98,765" in client.get("/runs/0/lm-0").text or "98765" in client.get("/runs/0/lm-0").text


def test_a_store_that_does_not_respond_is_named(
    client: TestClient, store_server: Running, stored: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.get("/")
    store_server.proxy.fail("reset", times=10_000)
    page = client.get("/runs/0/lm-0")
    assert page.status_code == 503
    assert "Traceback" not in page.text
    listed = client.get("/").text
    assert "lm-0" in listed, "what was read stays"
    assert stored in listed
    store_server.proxy.repair()
    assert client.get("/runs/0/lm-0").status_code == 200
