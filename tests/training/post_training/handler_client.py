"""A client for the requests of one replica, without a server."""

from __future__ import annotations

import asyncio
import json
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


def ask(handler: RequestHandler, *calls: tuple[str, str, Any]) -> list[httpx.Response]:
    """Send requests at the same time."""

    async def all_of_them() -> list[httpx.Response]:
        async with HandlerClient(handler) as client:
            return list(
                await asyncio.gather(
                    *(client.request(method, path, content=_content(body)) for method, path, body in calls)
                )
            )

    return asyncio.run(all_of_them())


def _content(body: Any) -> Any:
    return body if body is None or isinstance(body, bytes) else json.dumps(body)
