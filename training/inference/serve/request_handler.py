"""Handles one replica's HTTP requests: checks limits, batches rows of several requests, counts.

The model computes in a thread, so that health checks do not wait for it.
"""

from __future__ import annotations

import asyncio
import base64
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

from trainfleet.errors import TrainfleetError
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
        self._batcher = Batcher(self._compute, limits.batch, limits.wait_ms / 1e3)

    async def answer(self, request: Request) -> Response:
        """The reply to a request, also if it fails."""
        from starlette.responses import JSONResponse, PlainTextResponse

        path = request.url.path.rstrip("/") or "/"
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
        began = time.monotonic()
        try:
            document, status, headers = (
                {"predictions": await self._predict(request), "step": self.predictor.step},
                200,
                {},
            )
        except RejectedRequest as rejected:
            status = rejected.status
            document = {"error": rejected.error}
            if rejected.problems:
                document["problems"] = rejected.problems
            retry_after_s = rejected.retry_after_s
            headers = {"Retry-After": str(retry_after_s)} if retry_after_s is not None else {}
        self.metrics.request(status, time.monotonic() - began)
        return JSONResponse(document, status, headers)

    async def _predict(self, request: Request) -> list[dict[str, Any]]:
        rows = self._rows(await self._body(request))
        if self.waiting + len(rows) > self.limits.queue:
            busy = max(1, min(60, math.ceil(self.waiting * self.row_s)))
            raise RejectedRequest(
                503, f"{self.waiting} rows are waiting, the limit is {self.limits.queue}", retry_after_s=busy
            )
        self.waiting += len(rows)
        try:
            answers = await asyncio.wait_for(self._batcher(rows), self.limits.timeout_s)
        except TimeoutError:
            raise RejectedRequest(
                504, f"not finished within {self.limits.timeout_s:g} s", retry_after_s=1
            ) from None
        except TrainfleetError as error:
            raise RejectedRequest(500, error.summary) from error
        finally:
            self.waiting -= len(rows)
        wrong = [
            {"row": number, "error": each.error}
            for number, each in enumerate(answers)
            if each.prediction is None
        ]
        if wrong:
            raise RejectedRequest(422, f"{len(wrong)} of {len(rows)} rows cannot be read", wrong)
        return [each.prediction for each in answers if each.prediction is not None]

    async def _body(self, request: Request) -> bytes:
        limit = self.limits.body_kib << 10
        too_large = RejectedRequest(413, f"the request is larger than {self.limits.body_kib} KiB")
        declared = request.headers.get("content-length", "")
        if declared.isdigit() and int(declared) > limit:
            raise too_large
        body = bytearray()
        async for piece in request.stream():
            body += piece
            if len(body) > limit:
                raise too_large
        return bytes(body)

    def _rows(self, body: bytes) -> list[dict[str, Any]]:
        try:
            document = json.loads(body)
        except (ValueError, RecursionError):
            raise RejectedRequest(400, "the request is not JSON") from None
        rows = document.get("rows") if isinstance(document, dict) else None
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise RejectedRequest(400, 'the request must be {"rows": [{...}, ...]}')
        if not 1 <= len(rows) <= self.limits.rows:
            raise RejectedRequest(
                413 if rows else 400, f"{len(rows)} rows; a request must have 1 to {self.limits.rows}"
            )
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

    def _compute(self, rows: Sequence[dict[str, Any]]) -> list[Answer]:
        """Compute one batch, in a thread."""
        began = time.monotonic()
        found = self.predictor.answers(rows)
        taken = (time.monotonic() - began) / len(rows)
        self.row_s = taken if not self.row_s else 0.8 * self.row_s + 0.2 * taken
        self.metrics.batch(len(rows))
        return found
