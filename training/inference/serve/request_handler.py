"""One replica's counter: takes requests, refuses what is too much, puts rows of many requests through the
model together, counts.

Used by `trainfleet.training.inference.serve.app` inside Ray Serve, and by tests without it. Easy to get
wrong: the model computes in a thread, or health
checks would wait for it; and whoever is refused must be told when to come again, or all come again at once.
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
from trainfleet.training.inference.serve.metrics import Gauges

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from trainfleet.training.inference.predictor import Answer, Predictor


class Limits(BaseModel):
    """What a replica puts up with."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    body_kib: int = Field(1024, ge=1, description="Largest request.")
    rows: int = Field(64, ge=1, description="Most rows of a request.")
    queue: int = Field(
        256, ge=1, description="Most rows that wait or are computed; more is refused with 503."
    )
    batch: int = Field(16, ge=1, description="Most rows that go through the model at once.")
    wait_ms: float = Field(5.0, ge=0, description="How long a batch that is not full waits for more rows.")
    timeout_s: float = Field(30.0, gt=0, description="Longest a request may take; then 504.")


class Refused(Exception):  # noqa: N818 - an answer, no fault
    """Raised for a request that gets no prediction: status, reason, and after how many seconds to come again."""

    def __init__(
        self, status: int, error: str, problems: Sequence[dict[str, Any]] = (), again_s: int | None = None
    ) -> None:
        super().__init__(error)
        self.status, self.error, self.problems, self.again_s = status, error, list(problems), again_s


class Desk:
    """Answers HTTP requests with a predictor.

    Args:
        predictor: the model.
        limits: what is put up with.
        name: of this replica.
        folder: where replicas of a machine leave their figures for each other, if anywhere.
    """

    def __init__(
        self, predictor: Predictor, limits: Limits, name: str = "0", folder: Path | None = None
    ) -> None:
        self.predictor, self.limits = predictor, limits
        self.gauges = Gauges(name, folder)
        self.waiting = 0
        self.row_s = 0.0
        self._together = Batcher(self._compute, limits.batch, limits.wait_ms / 1e3)

    async def answer(self, request: Request) -> Response:
        """The reply to a request, whatever happens."""
        from starlette.responses import JSONResponse, PlainTextResponse

        path = request.url.path.rstrip("/") or "/"
        known = {"/predict": "POST", "/healthz": "GET", "/metrics": "GET", "/": "GET"}
        if path not in known:
            return JSONResponse({"error": f"there is no {path}", "known": list(known)}, 404)
        if request.method != known[path]:
            return JSONResponse({"error": f"{path} takes {known[path]}"}, 405, {"Allow": known[path]})
        if path == "/metrics":
            return PlainTextResponse(self.gauges.text(self.waiting), media_type="text/plain; version=0.0.4")
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
        except Refused as refused:
            status = refused.status
            document = {"error": refused.error} | ({"problems": refused.problems} if refused.problems else {})
            headers = {"Retry-After": str(refused.again_s)} if refused.again_s is not None else {}
        self.gauges.request(status, time.monotonic() - began)
        return JSONResponse(document, status, headers)

    async def _predict(self, request: Request) -> list[dict[str, Any]]:
        rows = self._rows(await self._body(request))
        if self.waiting + len(rows) > self.limits.queue:
            busy = max(1, min(60, math.ceil(self.waiting * self.row_s)))
            raise Refused(
                503, f"{self.waiting} rows are waiting, the limit is {self.limits.queue}", again_s=busy
            )
        self.waiting += len(rows)
        try:
            answers = await asyncio.wait_for(self._together(rows), self.limits.timeout_s)
        except TimeoutError:
            raise Refused(504, f"not done within {self.limits.timeout_s:g} s", again_s=1) from None
        except TrainfleetError as error:
            raise Refused(500, error.summary) from error
        finally:
            self.waiting -= len(rows)
        wrong = [
            {"row": number, "error": each.error}
            for number, each in enumerate(answers)
            if each.prediction is None
        ]
        if wrong:
            raise Refused(422, f"{len(wrong)} of {len(rows)} rows cannot be read", wrong)
        return [each.prediction for each in answers if each.prediction is not None]

    async def _body(self, request: Request) -> bytes:
        limit = self.limits.body_kib << 10
        too_large = Refused(413, f"the request is larger than {self.limits.body_kib} KiB")
        said = request.headers.get("content-length", "")
        if said.isdigit() and int(said) > limit:
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
            raise Refused(400, "the request is no JSON") from None
        rows = document.get("rows") if isinstance(document, dict) else None
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise Refused(400, 'the request must be {"rows": [{...}, ...]}')
        if not 1 <= len(rows) <= self.limits.rows:
            raise Refused(413 if rows else 400, f"{len(rows)} rows; from 1 to {self.limits.rows} are taken")
        problems: list[dict[str, Any]] = []
        for number, row in enumerate(rows):
            for key in ("audio", "image"):
                if isinstance(row.get(key), str):
                    problems.append(
                        {
                            "row": number,
                            "error": f"`{key}` is a path, and files of the server are not read: send `{key}_base64`",
                        }
                    )
                elif f"{key}_base64" in row:
                    try:
                        row[key] = base64.b64decode(row.pop(f"{key}_base64"), validate=True)
                    except (ValueError, TypeError):
                        problems.append({"row": number, "error": f"`{key}_base64` is no base64"})
        if problems:
            raise Refused(422, "rows that cannot be read", problems)
        return rows

    def _compute(self, rows: Sequence[dict[str, Any]]) -> list[Answer]:
        """In a thread, one batch at a time."""
        began = time.monotonic()
        found = self.predictor.answers(rows)
        taken = (time.monotonic() - began) / len(rows)
        self.row_s = taken if not self.row_s else 0.8 * self.row_s + 0.2 * taken
        self.gauges.batch(len(rows))
        return found
