"""Serving: correct predictions, requests batched together, and a status code for each request that is
invalid, too large, too many or too slow.
"""

from __future__ import annotations

import asyncio
import base64
import importlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import psutil
import pytest

from tests.training.launches import running, wait_for
from tests.training.post_training.handler_client import HandlerClient, ask
from tests.training.user_code import clean_imports, write_workload
from trainfleet.training.inference import predictor as predictors
from trainfleet.training.inference.predictor import Answer, Predictor, open_predictor
from trainfleet.training.inference.serve import app
from trainfleet.training.inference.serve.metrics import ServeMetrics
from trainfleet.training.inference.serve.request_handler import Limits, RequestHandler
from trainfleet.training.launch.code import packed
from trainfleet.training.runtime import code_archive

__all__ = ["clean_imports"]
Command = Callable[..., subprocess.CompletedProcess[str]]
BLANK = [[0] * 8] * 8


@pytest.fixture(scope="module")
def predictor(pictures: Path) -> Predictor:
    return open_predictor(str(pictures))


def test_concurrent_requests_share_batches_and_each_gets_its_own_predictions(predictor: Predictor) -> None:
    from sklearn.datasets import load_digits

    images = (load_digits().images[:24] * 15.9).astype("uint8").tolist()
    handler = RequestHandler(predictor, Limits(batch=16, wait_ms=200))
    replies = ask(
        handler, *(("POST", "/predict", {"rows": [{"image": image}, {"image": BLANK}]}) for image in images)
    )
    alone = predictor([{"image": image} for image in images])
    assert [each.status_code for each in replies] == [200] * 24
    assert [each.json()["predictions"][0]["label"] for each in replies] == [each["label"] for each in alone]
    assert (handler.metrics.rows, handler.metrics.batches) == (48, 3)
    assert handler.waiting == 0


def test_an_image_is_accepted_as_base64_and_not_as_a_path_on_the_server(
    predictor: Predictor, tmp_path: Path
) -> None:
    from PIL import Image

    file = io.BytesIO()
    Image.new("L", (8, 8), 200).save(file, format="PNG")
    (tmp_path / "secret.png").write_bytes(file.getvalue())
    sent, named = ask(
        RequestHandler(predictor, Limits()),
        ("POST", "/predict", {"rows": [{"image_base64": base64.b64encode(file.getvalue()).decode()}]}),
        ("POST", "/predict", {"rows": [{"image": str(tmp_path / "secret.png")}]}),
    )
    assert sent.status_code == 200
    assert (named.status_code, named.json()["problems"][0]["row"]) == (422, 0)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "words"),
    [
        ("POST", "/predict", b"{torn", 400, "not JSON"),
        ("POST", "/predict", b"[" * 100_000, 400, "not JSON"),
        ("POST", "/predict", {"row": []}, 400, "must be"),
        ("POST", "/predict", {"rows": []}, 400, "0 rows"),
        ("POST", "/predict", {"rows": [{"image": BLANK}] * 9}, 413, "9 rows"),
        ("POST", "/predict", {"rows": [{"image": "x" * 300_000}]}, 413, "larger than"),
        ("POST", "/predict", {"rows": [{"image": BLANK}, {"picture": 1}, {"image": BLANK}]}, 422, '"row":1'),
        ("GET", "/predict", None, 405, "POST"),
        ("GET", "/elsewhere", None, 404, "/elsewhere"),
        ("GET", "/healthz", None, 200, '"ok"'),
    ],
)
def test_an_invalid_request_gets_its_status_code_and_a_reason(
    predictor: Predictor, method: str, path: str, body: Any, status: int, words: str
) -> None:
    reply = ask(RequestHandler(predictor, Limits(rows=8, body_kib=256)), (method, path, body))[0]
    assert (reply.status_code, words in reply.text) == (status, True), reply.text


class WaitingPredictor:
    """A predictor that waits for `go` before it answers."""

    step = 1

    def __init__(self, recipe: Any) -> None:
        self.recipe, self.go = recipe, threading.Event()

    def check(self, settings: dict[str, Any]) -> dict[str, Any]:
        return settings

    def common(self, settings: dict[str, Any]) -> dict[str, Any]:
        return settings

    def answers_of(self, calls: list[Any]) -> list[Answer]:
        assert self.go.wait(60)
        return [Answer({"n": len(calls)}) for _ in calls]


def test_a_full_queue_rejects_requests_at_once_with_a_retry_after_header(
    predictor: Predictor,
) -> None:
    waiting: Any = WaitingPredictor(predictor.recipe)
    handler = RequestHandler(waiting, Limits(queue=8, batch=4))

    async def flood() -> list[httpx.Response]:
        async with HandlerClient(handler) as client:
            tasks = [
                asyncio.create_task(client.post("/predict", content=json.dumps({"rows": [{}, {}]})))
                for _ in range(10)
            ]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)  # the rejected requests end first
            health = await client.get("/healthz")
            assert health.json()["waiting"] == 8
            waiting.go.set()
            return list(await asyncio.gather(*tasks))

    replies = asyncio.run(flood())
    assert sorted(each.status_code for each in replies) == [200] * 4 + [503] * 6
    assert all(int(each.headers["retry-after"]) >= 1 for each in replies if each.status_code == 503)
    assert handler.waiting == 0


@pytest.mark.parametrize(
    ("headers", "body", "error"),
    [
        ({}, b'{"rows": [{"text": "\\ud800"}]}', "the request is not Unicode text"),
        ({}, b'{"rows": [{"text": "\xed\xa0\x80"}]}', "the request is not Unicode text"),
        ({"content-length": "\u00b2"}, b"{}", 'the request must be {"rows": [{...}, ...]}'),
        ({"content-length": "9" * 5_000}, b"{}", 'the request must be {"rows": [{...}, ...]}'),
    ],
)
def test_a_request_that_no_client_should_send_is_a_400(
    predictor: Predictor, headers: dict[str, str], body: bytes, error: str
) -> None:
    async def one() -> httpx.Response:
        async with HandlerClient(RequestHandler(predictor, Limits())) as client:
            raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
            return await client.post("/predict", content=body, headers=raw)

    reply = asyncio.run(one())
    assert (reply.status_code, reply.json()["error"]) == (400, error)


def test_a_request_that_times_out_gets_a_504_and_leaves_the_queue(predictor: Predictor) -> None:
    waiting: Any = WaitingPredictor(predictor.recipe)
    handler = RequestHandler(waiting, Limits(timeout_s=0.05))

    async def one() -> httpx.Response:
        async with HandlerClient(handler) as client:
            try:
                return await client.post("/predict", content=b'{"rows": [{}]}')
            finally:
                waiting.go.set()

    reply = asyncio.run(one())
    assert (reply.status_code, handler.waiting) == (504, 0)


def test_each_replica_reports_the_counts_of_all_replicas(tmp_path: Path) -> None:
    one, other = ServeMetrics("one", tmp_path), ServeMetrics("other", tmp_path)
    for gauges, seconds in ((one, 0.003), (one, 0.2), (other, 99.0)):
        gauges.request(200 if seconds < 1 else 504, seconds)
        gauges.batch(4)
    other.text(0)  # as another replica writes it after a request
    text = one.text(waiting=3)
    for line in (
        'trainfleet_serve_requests_total{code="200"} 2',
        'trainfleet_serve_requests_total{code="504"} 1',
        'trainfleet_serve_request_seconds_bucket{le="0.005"} 1',
        'trainfleet_serve_request_seconds_bucket{le="0.25"} 2',
        'trainfleet_serve_request_seconds_bucket{le="+Inf"} 3',
        "trainfleet_serve_rows_total 12",
        'trainfleet_serve_waiting_rows{replica="one"} 3',
    ):
        assert line in text.splitlines()


def test_an_address_in_use_is_reported_before_anything_starts(trainfleet: Command, pictures: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = trainfleet("serve", str(pictures), "--port", str(taken.getsockname()[1]))
    assert done.returncode == 2
    assert "cannot listen there" in done.stderr


@pytest.mark.launch
@pytest.mark.timeout(600)
def test_ray_serve_finishes_its_requests_on_sigterm_and_leaves_no_process(pictures: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        str(Path(sys.executable).with_name("trainfleet")),
        "serve",
        str(pictures),
        "--port",
        str(port),
        "--wait-ms",
        "3000",
        "--json",
    ]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    )
    try:
        address = f"http://127.0.0.1:{port}"

        def healthy() -> bool:
            assert process.poll() is None, process.communicate()
            try:
                return httpx.get(f"{address}/healthz", timeout=5).status_code == 200
            except httpx.HTTPError:
                return False

        wait_for(healthy, "the server is not ready")
        below = {child.pid for child in psutil.Process(process.pid).children(recursive=True)}
        replies: list[httpx.Response] = []
        asking = threading.Thread(
            target=lambda: replies.append(
                httpx.post(f"{address}/predict", json={"rows": [{"image": BLANK}]}, timeout=60)
            )
        )
        asking.start()
        wait_for(
            lambda: httpx.get(f"{address}/healthz", timeout=30).json()["waiting"] == 1,
            "the request did not arrive",
            60,
        )
        process.send_signal(signal.SIGTERM)
        stdout, stderr = process.communicate(timeout=200)
        asking.join(60)
        assert process.returncode == 0, stderr
        assert replies[0].status_code == 200
        assert json.loads(stdout)["address"] == address
        wait_for(lambda: not running(below), "processes were left behind", 60)
    finally:
        if process.poll() is None:
            process.terminate()
            process.communicate(timeout=60)


@pytest.mark.usefixtures("clean_imports")
def test_the_builder_and_each_replica_import_the_code_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is a process of its own, so the import path is restored between them."""
    from ray import serve

    code = packed(write_workload(tmp_path / "exp").parent, str(tmp_path / "run"))
    code.upload()
    imported: list[Path] = []

    def opened(source: str, *_: Any, **__: Any) -> Any:
        imported.append(Path(str(importlib.import_module("spirals").__file__)).parent)
        return SimpleNamespace(path=source, step=1)

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(predictors, "open_predictor", opened)
    monkeypatch.setattr(app, "RequestHandler", lambda *_: None)
    monkeypatch.setattr(serve, "get_replica_context", lambda: SimpleNamespace(replica_tag="model#1"))
    path = list(sys.path)
    application = app.build({"source": str(tmp_path / "run"), "code": code.url})
    sys.path[:] = path
    code_archive._used.clear()
    del sys.modules["spirals"]
    app.Replica(*application._bound_deployment.init_args)
    assert [each.name for each in imported] == [code.digest] * 2
