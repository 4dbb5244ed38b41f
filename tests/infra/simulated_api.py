"""The HTTP server of the simulated cloud APIs: it answers on the loopback interface and records requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


@dataclass(frozen=True)
class Request:
    """One request."""

    verb: str
    path: str
    headers: dict[str, str]
    body: str


Reply = tuple[int, str, str]
"""Status, content type, text."""


@contextmanager
def serving(answer: Callable[[Request], Reply]) -> Iterator[tuple[str, list[Request]]]:
    """Serve until the block ends; yields the URL and the requests so far."""
    asked: list[Request] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
            headers = {key.lower(): value for key, value in self.headers.items()}
            request = Request(self.command, self.path, headers, body)
            asked.append(request)
            status, kind, text = answer(request)
            data = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = _any  # noqa: N815

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
