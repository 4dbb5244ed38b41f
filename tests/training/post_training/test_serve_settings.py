"""Settings of each request to a language model: validated, independent of other requests, and streamed."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.training.launches import wait_for
from tests.training.post_training.handler_client import ask
from trainfleet.training.inference.predictor import Predictor, open_predictor
from trainfleet.training.inference.serve.batcher import Batcher
from trainfleet.training.inference.serve.request_handler import Limits, RequestHandler

ROW = {"text": "the tensor"}


@pytest.fixture(scope="module")
def predictor(run_dir: Path) -> Predictor:
    return open_predictor(str(run_dir))


def post(handler: RequestHandler, *bodies: dict[str, Any]) -> list[httpx.Response]:
    return ask(handler, *(("POST", "/predict", body) for body in bodies))


def test_requests_with_different_settings_share_a_batch_and_each_is_answered_as_if_alone(
    predictor: Predictor,
) -> None:
    bodies = [
        {"rows": [{"text": text}, {"text": f"{text} sums"}], **settings}
        for text in ("the tensor", "a", "")
        for settings in (
            {},
            {"seed": 7},
            {"temperature": 0, "max_tokens": 9},
            {"temperature": 1.5, "top_k": 0, "top_p": 0.7, "max_tokens": 30, "seed": 3},
        )
    ]
    handler = RequestHandler(predictor, Limits(batch=64, wait_ms=300))
    together = [each.json()["predictions"] for each in post(handler, *bodies)]
    assert (handler.metrics.rows, handler.metrics.batches) == (24, 1)
    alone = [post(RequestHandler(predictor, Limits()), body)[0].json()["predictions"] for body in bodies]
    assert together == alone
    assert len({each[0]["text"] for each in together[:4]}) == 4


@pytest.mark.parametrize(
    ("settings", "field", "words"),
    [
        ({"max_tokens": 0}, "max_tokens", "at least 1"),
        ({"max_tokens": "many"}, "max_tokens", "whole number"),
        ({"max_tokens": 101}, "max_tokens", "limit of 100"),
        ({"temperature": -1}, "temperature", "at least 0"),
        ({"temperature": float("nan")}, "temperature", ""),
        ({"top_p": 0}, "top_p", "more than 0"),
        ({"seed": -1}, "seed", "at least 0"),
        ({"temprature": 1}, "temprature", "temperature"),
        ({"stream": "yes"}, "stream", "true or false"),
    ],
)
def test_an_invalid_setting_is_a_422_that_names_the_field(
    predictor: Predictor, settings: dict[str, Any], field: str, words: str
) -> None:
    reply = post(RequestHandler(predictor, Limits(max_tokens=100)), {"rows": [ROW], **settings})[0]
    assert reply.status_code == 422, reply.text
    assert [each["field"] for each in reply.json()["problems"]] == [field]
    assert words in reply.json()["problems"][0]["error"], reply.text


def test_the_limit_also_holds_for_requests_that_name_no_length(predictor: Predictor) -> None:
    first = post(RequestHandler(predictor, Limits(max_tokens=3)), {"rows": [ROW]})[0].json()["predictions"]
    assert first == predictor([ROW], max_tokens=3) != predictor([ROW])


def test_a_model_without_text_refuses_to_stream_and_unknown_settings(pictures: Path) -> None:
    handler = RequestHandler(open_predictor(str(pictures)), Limits())
    row = {"image": [[0] * 8] * 8}
    streamed, unknown, top = post(
        handler,
        {"rows": [row], "stream": True},
        {"rows": [row], "max_tokens": 3},
        {"rows": [row], "top": 2},
    )
    assert (streamed.status_code, streamed.json()["problems"][0]["field"]) == (422, "stream")
    assert (unknown.status_code, unknown.json()["problems"][0]["field"]) == (422, "max_tokens")
    assert len(top.json()["predictions"][0]["top"]) == 2


def test_settings_that_a_batch_must_share_are_computed_in_batches_of_their_own(pictures: Path) -> None:
    handler = RequestHandler(open_predictor(str(pictures)), Limits(wait_ms=300))
    row = {"image": [[0] * 8] * 8}
    replies = post(handler, *({"rows": [row, row], "top": 1 + number % 3} for number in range(6)))
    assert (handler.metrics.rows, handler.metrics.batches) == (12, 3)
    for number, reply in enumerate(replies):
        assert all(len(each.get("top", [0])) == 1 + number % 3 for each in reply.json()["predictions"])


def test_rows_that_cannot_share_a_batch_keep_their_order() -> None:
    batches: list[list[str]] = []

    def compute(rows: Any) -> list[str]:
        batches.append(list(rows))
        return list(rows)

    async def main() -> list[Any]:
        batcher = Batcher(compute, 2, 0.05, key=lambda row: row[0])
        return list(await asyncio.gather(*(batcher([row]) for row in ("a1", "b1", "a2", "b2", "a3"))))

    assert asyncio.run(main()) == [["a1"], ["b1"], ["a2"], ["b2"], ["a3"]]
    assert batches == [["a1", "a2"], ["b1", "b2"], ["a3"]]


def events_of(text: str) -> list[dict[str, Any]]:
    return [
        json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")
    ]


def test_a_stream_has_the_pieces_of_each_row_and_then_the_same_predictions(predictor: Predictor) -> None:
    body = {"rows": [ROW, {"text": "café "}], "max_tokens": 40, "temperature": 1.2, "seed": 5}
    handler = RequestHandler(predictor, Limits(wait_ms=100))
    whole, streamed = post(handler, body, {**body, "stream": True})
    assert streamed.headers["content-type"].startswith("text/event-stream")
    *pieces, last = events_of(streamed.text)
    assert last == whole.json()
    assert len(pieces) > 20
    for number, each in enumerate(last["predictions"]):
        assert "".join(piece["text"] for piece in pieces if piece["row"] == number) == each["text"]
    assert (handler.metrics.codes, handler.waiting) == ({"200": 2}, 0)


def test_a_stream_that_cannot_begin_has_a_status_code_like_any_other_request(predictor: Predictor) -> None:
    wrong, late = (
        post(RequestHandler(predictor, limits), {"rows": [row], "stream": True})[0]
        for limits, row in ((Limits(), {"prompt": "x"}), (Limits(timeout_s=0.001, wait_ms=50), ROW))
    )
    assert (wrong.status_code, wrong.json()["problems"][0]["row"]) == (422, 0)
    assert late.status_code == 504


def test_a_stream_that_fails_after_its_start_ends_with_an_error_event(
    predictor: Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = RequestHandler(predictor, Limits(timeout_s=0.5))
    original = predictor.workload.predict

    def slow(model: Any, batch: Any, *, hear: Any, **settings: Any) -> Any:
        hear(0, "begin")
        import threading

        threading.Event().wait(1.0)
        return original(model, batch, **settings)

    monkeypatch.setattr(predictor.workload, "predict", slow)
    reply = post(handler, {"rows": [ROW], "stream": True})[0]
    assert events_of(reply.text)[0] == {"row": 0, "text": "begin"}
    assert "event: error\ndata: " in reply.text
    assert "0.5 s" in events_of(reply.text)[-1]["error"]
    assert handler.metrics.codes == {"504": 1}


def test_pieces_arrive_before_the_whole_answer(predictor: Predictor) -> None:
    """The first event is received while the rest is still computed."""
    handler = RequestHandler(predictor, Limits())
    computing: list[bool] = []

    async def main() -> None:
        from starlette.requests import Request

        body = json.dumps({"rows": [ROW], "max_tokens": 60, "stream": True}).encode()
        scope = {"type": "http", "method": "POST", "path": "/predict", "headers": [], "query_string": b""}

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        reply: Any = await handler.answer(Request(scope, receive))
        computing.extend([handler.waiting == 1 async for _ in reply.body_iterator])

    asyncio.run(main())
    assert computing[0]
    assert not computing[-1]


@pytest.mark.launch
@pytest.mark.deep  # above, without Ray; test_serve starts Ray Serve
@pytest.mark.timeout(600)
def test_ray_serve_passes_pieces_on_while_the_rest_is_computed(run_dir: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [str(Path(sys.executable).with_name("trainfleet")), "serve", str(run_dir), "--port", str(port)]
    process = subprocess.Popen(
        [*command, "--precision", "bf16", "--max-tokens", "400", "--json"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    address = f"http://127.0.0.1:{port}"

    def healthy() -> bool:
        assert process.poll() is None, process.communicate()
        try:
            return httpx.get(f"{address}/healthz", timeout=5).status_code == 200
        except httpx.HTTPError:
            return False

    try:
        wait_for(healthy, "the server is not ready")
        refused = httpx.post(f"{address}/predict", json={"rows": [ROW], "max_tokens": 401}, timeout=60)
        assert (refused.status_code, refused.json()["problems"][0]["field"]) == (422, "max_tokens")
        body = {"rows": [ROW], "max_tokens": 400, "temperature": 2, "top_k": 0, "stream": True}
        with httpx.stream("POST", f"{address}/predict", json=body, timeout=60) as reply:
            arrived = list(reply.iter_raw())
        assert len(arrived) > 3
        *pieces, last = events_of(b"".join(arrived).decode())
        assert "".join(each["text"] for each in pieces) == last["predictions"][0]["text"]
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=120)
