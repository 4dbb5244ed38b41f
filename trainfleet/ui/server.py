"""Opens a port of 127.0.0.1 and serves the console there, with limits for slow and for many clients."""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from collections.abc import Callable
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from trainfleet.errors import InputError, Problem
from trainfleet.ui.guard import LARGEST_HEAD

HOST = "127.0.0.1"
DEFAULT_PORT = 8970
PORTS_TRIED = 20
HEAD_S = 10.0
"""How long the first request of a connection may take to arrive."""
RESPONSE_S = 30.0
"""How long a response may take, and a further request of the same connection."""
MOST_CONNECTIONS = 64
"""Beyond these the one that has waited longest without a request is closed."""


class LimitedConnection(H11Protocol):
    """Closes connections that are slow: uvicorn has no limit for the arrival of a request.

    A client that opens connections and sends a byte at a time (slowloris) would otherwise keep all of them.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._limit: asyncio.TimerHandle | None = None
        self.since = time.monotonic()

    @property
    def waiting(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
        """Start the time limit; close another connection if there are too many."""
        super().connection_made(transport)
        self._end_after(HEAD_S)
        if len(self.connections) > MOST_CONNECTIONS:
            idle = [
                each
                for each in self.connections
                if isinstance(each, LimitedConnection) and each is not self and each.waiting
            ]
            if idle:
                oldest = min(idle, key=lambda each: each.since)
                self.connections.discard(oldest)  # not only when the loop has closed it: others follow
                oldest.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the time limit."""
        if self._limit is not None:
            self._limit.cancel()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Once a request has arrived, its response has a time limit of its own."""
        before = self.cycle
        super().handle_events()
        if self.cycle is not before and not self.transport.is_closing():
            self._end_after(RESPONSE_S)

    def on_response_complete(self) -> None:
        """Limit the time for sending the response, and for the next request."""
        self.since = time.monotonic()
        self._end_after(RESPONSE_S)
        super().on_response_complete()

    def abort(self) -> None:
        """Close the connection, whatever is not yet sent."""
        self.transport.abort()

    def _end_after(self, seconds: float) -> None:
        if self._limit is not None:
            self._limit.cancel()
        self._limit = self.loop.call_later(seconds, self.abort)


def listen(port: int | None) -> socket.socket:
    """A socket of 127.0.0.1.

    Args:
        port: 0 takes a free one; None takes DEFAULT_PORT or one of the next.

    Raises:
        InputError: the port is in use, or this user may not open it.
    """
    tried = range(DEFAULT_PORT, DEFAULT_PORT + PORTS_TRIED) if port is None else [port]
    for each in tried:
        opened = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            opened.bind((HOST, each))
            opened.listen(128)
        except OSError as error:
            opened.close()
            if port is None and error.errno == errno.EADDRINUSE:
                continue
            what = "another program listens on it" if error.errno == errno.EADDRINUSE else str(error.strerror)
            problem = Problem(f"--port {each}", what, "--port 0 takes a free one")
            raise InputError("cannot open the port", [problem]) from error
        return opened
    what = f"the ports {tried[0]} to {tried[-1]} are in use"
    raise InputError("no free port", [Problem("--port", what, "--port 0 takes a free one")])


class AnnouncedServer(uvicorn.Server):
    """Calls `ready` once it answers and handles signals: one that arrives before would leave a traceback."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], object]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to answer."""
        await super().startup(sockets)
        self._ready()


def server(app: ASGIApp, ready: Callable[[], object] = lambda: None) -> uvicorn.Server:
    """A server of the application; `run(sockets=[...])` calls `ready`, and serves until SIGINT or SIGTERM."""
    config = uvicorn.Config(
        app,
        http=LimitedConnection,
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_config=None,
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        limit_concurrency=2 * MOST_CONNECTIONS,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=2,
        h11_max_incomplete_event_size=LARGEST_HEAD,
    )
    return AnnouncedServer(config, ready)
