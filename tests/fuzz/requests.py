"""Strategies for HTTP requests, and an ASGI application that answers one without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from hypothesis import strategies as st

from tests.fuzz import hostile

METHODS = ("GET", "GET", "GET", "GET", "POST", "HEAD", "PUT", "OPTIONS", "TRACE")
NAMES = (
    b"accept",
    b"authorization",
    b"content-length",
    b"content-type",
    b"cookie",
    b"expect",
    b"forwarded",
    b"host",
    b"if-none-match",
    b"origin",
    b"range",
    b"sec-fetch-site",
    b"transfer-encoding",
    b"x-forwarded-for",
)
VALUES = (
    b"",
    b"0",
    b"-1",
    b"\xb2",
    b"9" * 5_000,
    b"chunked",
    b"null",
    b"a=b; c",
    b"bytes=0-,-1",
    b"\xff\xfe",
)


@dataclass(frozen=True)
class Request:
    """One request. `path` is percent-encoded, and without the query."""

    method: str
    path: str
    query: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    body: tuple[bytes, ...]


@dataclass
class Reply:
    """What was answered."""

    status: int
    headers: dict[str, str]
    body: bytes


class RejectedRequest(Exception):  # noqa: N818 - an answer
    """Raised for a reply that rejects the request, with its text."""


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "replace")[:3_000]


def requests(
    paths: Sequence[str],
    bodies: st.SearchStrategy[bytes],
    queries: Sequence[str] = ("",),
    methods: Sequence[str] = METHODS,
) -> st.SearchStrategy[Request]:
    """Requests of these paths and others."""
    odd = st.sampled_from(hostile.TEXTS).map(lambda text: "".join(f"%{byte:02x}" for byte in _encoded(text)))
    path = st.one_of(
        st.sampled_from(paths),
        st.sampled_from(paths),
        odd.map("/{}".format),
        st.tuples(st.sampled_from(paths), odd).map("/".join),
    )
    value = st.one_of(
        st.sampled_from(VALUES),
        st.sampled_from(hostile.TEXTS).map(_encoded),
        st.binary(max_size=30),
    ).map(lambda raw: raw.translate(None, b"\r\n\0"))
    name = st.one_of(st.sampled_from(NAMES), st.text("abcz-", min_size=1, max_size=9).map(str.encode))
    query = st.one_of(
        st.sampled_from(queries).map(str.encode),
        st.tuples(st.sampled_from(queries), odd).map(lambda pair: "".join(pair).encode()),
        st.binary(max_size=40),
    )
    pieces = bodies.flatmap(
        lambda raw: st.integers(0, len(raw)).map(
            lambda at: tuple(each for each in (raw[:at], raw[at:]) if each)
        )
    )
    return st.builds(
        Request,
        st.sampled_from(methods),
        path,
        query,
        st.one_of(st.just(()), st.lists(st.tuples(name, value), max_size=3).map(tuple)),
        pieces,
    )


def answered(app: Callable[..., Any], request: Request, *own: tuple[bytes, bytes]) -> Reply:
    """What an ASGI application answers, with further headers of a valid client before those of the request."""
    messages: list[dict[str, Any]] = []
    pieces = list(request.body) or [b""]

    async def receive() -> dict[str, Any]:
        if pieces:
            return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    async def send(message: dict[str, Any]) -> None:
        messages.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": "http",
        "path": unquote(request.path),
        "raw_path": request.path.encode("ascii", "replace"),
        "query_string": request.query,
        "root_path": "",
        "headers": [*own, *request.headers],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8970),
    }
    asyncio.run(app(scope, receive, send))
    start, *rest = messages
    assert start["type"] == "http.response.start"
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in start["headers"]}
    return Reply(start["status"], headers, b"".join(each.get("body", b"") for each in rest))
