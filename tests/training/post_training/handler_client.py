"""A client for the requests of one replica, without a server."""

from __future__ import annotations

from typing import Any

import httpx
from starlette.requests import Request

from trainfleet.training.inference.serve.request_handler import RequestHandler


class HandlerClient(httpx.AsyncClient):
    """A client that passes its requests directly to a handler."""

    def __init__(self, handler: RequestHandler) -> None:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            reply = await handler.answer(Request(scope, receive))
            await reply(scope, receive, send)

        super().__init__(transport=httpx.ASGITransport(app=app), base_url="http://handler")
