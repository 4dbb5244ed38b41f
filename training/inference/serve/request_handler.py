"""Handles one replica's HTTP requests: checks limits, batches rows of several requests, counts.

The model computes in a thread, so that health checks do not wait for it.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import json
import math
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

from trainfleet.errors import InputError, TrainfleetError
from trainfleet.training.inference.predictor import Call
from trainfleet.training.inference.serve.batcher import Batcher
from trainfleet.training.inference.serve.metrics import ServeMetrics

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from trainfleet.training.inference.predictor import Answer, Predictor


class Limits(BaseModel):
    """Limits of a replica."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    body_kib: int = Field(1024, ge=1, description="Maximum request size.")
    rows: int = Field(64, ge=1, description="Maximum rows per request.")
    queue: int = Field(
        256, ge=1, description="Maximum rows waiting or being computed; further requests get 503."
    )
    batch: int = Field(16, ge=1, description="Maximum rows per forward pass.")
    wait_ms: float = Field(5.0, ge=0, description="How long a partial batch waits for more rows.")
    timeout_s: float = Field(30.0, gt=0, description="Maximum time of a request; then 504.")
    max_tokens: int = Field(1024, ge=1, description="Maximum `max_tokens` of a request; then 422.")


class RejectedRequest(Exception):  # noqa: N818 - a reply, not a failure
    """Raised for a request without a prediction: status, reason, and seconds until a retry."""

    def __init__(
        self,
        status: int,
        error: str,
        problems: Sequence[dict[str, Any]] = (),
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(error)
        self.status, self.error, self.problems, self.retry_after_s = (
            status,
            error,
            list(problems),
            retry_after_s,
        )

    def document(self) -> dict[str, Any]:
        """The body of the reply."""
        return {"error": self.error, **({"problems": self.problems} if self.problems else {})}


@dataclass(frozen=True)
class PredictRequest:
    """The body of a request: rows, validated settings, and whether the answer is streamed."""

    rows: list[dict[str, Any]]
    settings: dict[str, Any]
    stream: bool


class RequestHandler:
    """Answers HTTP requests with a predictor.

    Args:
        predictor: the model.
        limits: of this replica.
        name: of this replica.
        folder: where the replicas of a machine share their metrics, if anywhere.
    """

    def __init__(
        self, predictor: Predictor, limits: Limits, name: str = "0", folder: Path | None = None
    ) -> None:
        self.predictor, self.limits = predictor, limits
        self.metrics = ServeMetrics(name, folder)
        self.waiting = 0
        self.row_s = 0.0
        self._batcher = Batcher(self._compute, limits.batch, limits.wait_ms / 1e3, self._key)

    async def answer(self, request: Request) -> Response:
        """The reply to a request, also if it fails."""
        from starlette.responses import JSONResponse, PlainTextResponse

        # NOTE: not `request.url`, which fails for a query that is not UTF-8.
        path = str(request.scope["path"]).rstrip("/") or "/"
        known = {"/predict": "POST", "/healthz": "GET", "/metrics": "GET", "/": "GET"}
        if path not in known:
            return JSONResponse({"error": f"unknown path {path}", "known": list(known)}, 404)
        if request.method != known[path]:
            return JSONResponse({"error": f"{path} requires {known[path]}"}, 405, {"Allow": known[path]})
        if path == "/metrics":
            return PlainTextResponse(self.metrics.text(self.waiting), media_type="text/plain; version=0.0.4")
        if path != "/predict":
            return JSONResponse(
                {
                    "status": "ok",
                    "name": self.predictor.recipe.name,
                    "step": self.predictor.step,
                    "waiting": self.waiting,
                }
            )
        return await self._answer(request)

    async def _answer(self, request: Request) -> Response:
        """The reply to a request for predictions."""
        from starlette.responses import JSONResponse

        began = time.monotonic()
        try:
            asked = self._parse(await self._body(request))
            self._admit(asked)
            if asked.stream:
                return await self._stream(asked, began)
            predictions = await self._predict(asked)
        except RejectedRequest as rejected:
            headers = {} if rejected.retry_after_s is None else {"Retry-After": str(rejected.retry_after_s)}
            self.metrics.request(rejected.status, time.monotonic() - began)
            return JSONResponse(rejected.document(), rejected.status, headers)
        self.metrics.request(200, time.monotonic() - began)
        return JSONResponse({"predictions": predictions, "step": self.predictor.step})

    def _admit(self, asked: PredictRequest) -> None:
        """Reject a request that does not fit into the queue."""
        if self.waiting + len(asked.rows) > self.limits.queue:
            busy = max(1, min(60, math.ceil(self.waiting * self.row_s)))
            raise RejectedRequest(
                503, f"{self.waiting} rows are waiting, the limit is {self.limits.queue}", retry_after_s=busy
            )

    async def _predict(
        self, asked: PredictRequest, hear: Callable[[int, str], Any] | None = None
    ) -> list[dict[str, Any]]:
        calls = [
            Call(row, asked.settings, functools.partial(hear, number) if hear is not None else None)
            for number, row in enumerate(asked.rows)
        ]
        self.waiting += len(calls)
        try:
            answers = await asyncio.wait_for(self._batcher(calls), self.limits.timeout_s)
        except TimeoutError:
            raise RejectedRequest(
                504, f"not finished within {self.limits.timeout_s:g} s", retry_after_s=1
            ) from None
        except TrainfleetError as error:
            raise RejectedRequest(500, error.summary) from error
        finally:
            self.waiting -= len(calls)
        wrong = [
            {"row": number, "error": each.error}
            for number, each in enumerate(answers)
            if each.prediction is None
        ]
        if wrong:
            raise RejectedRequest(422, f"{len(wrong)} of {len(calls)} rows cannot be read", wrong)
        return [each.prediction for each in answers if each.prediction is not None]

    async def _stream(self, asked: PredictRequest, began: float) -> Response:
        """Server-sent events: pieces of each row's text, then the predictions. A request that fails before
        its first piece gets a status code like any other.
        """
        from starlette.responses import StreamingResponse

        loop, pieces = asyncio.get_running_loop(), asyncio.Queue[dict[str, Any] | None]()

        def hear(row: int, text: str) -> None:  # in the thread that computes
            loop.call_soon_threadsafe(pieces.put_nowait, {"row": row, "text": text})

        work = loop.create_task(self._predict(asked, hear))
        work.add_done_callback(lambda _: pieces.put_nowait(None))
        first = await pieces.get()
        if first is None:
            await work  # raises what went wrong

        async def events() -> AsyncIterator[str]:
            status, piece = 499, first  # 499: the client has left
            try:
                while piece is not None:
                    yield _event(piece)
                    piece = await pieces.get()
                try:
                    last = _event({"predictions": await work, "step": self.predictor.step})
                    status = 200
                except RejectedRequest as rejected:
                    last, status = _event(rejected.document(), "error"), rejected.status
                yield last
            finally:
                work.cancel()
                self.metrics.request(status, time.monotonic() - began)

        return StreamingResponse(
            events(), media_type="text/event-stream", headers={"Cache-Control": "no-cache"}
        )

    async def _body(self, request: Request) -> bytes:
        limit = self.limits.body_kib << 10
        too_large = RejectedRequest(413, f"the request is larger than {self.limits.body_kib} KiB")
        declared = request.headers.get("content-length", "")
        # NOTE: `isdigit` is true for other digits of Unicode, and `int` rejects more than 4,300 digits.
        if re.fullmatch(r"[0-9]{1,18}", declared) and int(declared) > limit:
            raise too_large
        body = bytearray()
        async for piece in request.stream():
            body += piece
            if len(body) > limit:
                raise too_large
        return bytes(body)

    def _parse(self, body: bytes) -> PredictRequest:
        try:
            text = body.decode("utf-8-sig")
            document = json.loads(text)
            if "\\ud" in text.lower():  # half of a surrogate pair, in which no workload can find characters
                json.dumps(document, ensure_ascii=False).encode()
        except UnicodeError:
            raise RejectedRequest(400, "the request is not Unicode text") from None
        except (ValueError, RecursionError):
            raise RejectedRequest(400, "the request is not JSON") from None
        rows = document.pop("rows", None) if isinstance(document, dict) else None
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise RejectedRequest(400, 'the request must be {"rows": [{...}, ...]}')
        if not 1 <= len(rows) <= self.limits.rows:
            raise RejectedRequest(
                413 if rows else 400, f"{len(rows)} rows; a request must have 1 to {self.limits.rows}"
            )
        stream = document.pop("stream", False)
        problems: list[dict[str, Any]] = []
        if not isinstance(stream, bool):
            problems.append({"field": "stream", "error": "must be true or false"})
        elif stream and not self.predictor.streams:
            problems.append({"field": "stream", "error": "this model's predictions cannot be streamed"})
        settings = self._settings(document, problems)
        if problems:
            raise RejectedRequest(422, "invalid settings", problems)
        return PredictRequest(self._rows(rows), settings, stream)

    def _settings(self, given: dict[str, Any], problems: list[dict[str, Any]]) -> dict[str, Any]:
        """The settings with their defaults; appends what is wrong to `problems`."""
        try:
            settings = self.predictor.check(given)
        except InputError as error:
            for each in error.problems:
                what = f"{each.what} ({each.fix})" if each.fix else each.what
                problems.append({"field": each.where, "error": what})
            return {}
        limit = self.limits.max_tokens
        if isinstance(most := settings.get("max_tokens"), int) and most > limit:
            if "max_tokens" in given:
                what = f"{most} is more than this server's limit of {limit}"
                problems.append({"field": "max_tokens", "error": what})
            settings["max_tokens"] = limit
        return settings

    def _rows(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The rows with decoded audio and images."""
        problems: list[dict[str, Any]] = []
        for number, row in enumerate(rows):
            for key in ("audio", "image"):
                if isinstance(row.get(key), str):
                    problems.append(
                        {
                            "row": number,
                            "error": f"`{key}` is a path; the server reads no files: send `{key}_base64`",
                        }
                    )
                elif f"{key}_base64" in row:
                    try:
                        row[key] = base64.b64decode(row.pop(f"{key}_base64"), validate=True)
                    except (ValueError, TypeError):
                        problems.append({"row": number, "error": f"`{key}_base64` is not base64"})
        if problems:
            raise RejectedRequest(422, "rows that cannot be read", problems)
        return rows

    def _key(self, call: Call) -> str:
        """Rows with an equal one may share a batch."""
        return json.dumps(self.predictor.common(call.settings), sort_keys=True)

    def _compute(self, calls: Sequence[Call]) -> list[Answer]:
        """Compute one batch, in a thread."""
        began = time.monotonic()
        found = self.predictor.answers_of(calls)
        taken = (time.monotonic() - began) / len(calls)
        self.row_s = taken if not self.row_s else 0.8 * self.row_s + 0.2 * taken
        self.metrics.batch(len(calls))
        return found


def _event(document: dict[str, Any], kind: str | None = None) -> str:
    """A server-sent event."""
    name = f"event: {kind}\n" if kind else ""
    return f"{name}data: {json.dumps(document, ensure_ascii=False)}\n\n"
