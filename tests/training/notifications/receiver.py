"""A real HTTP server, by default on the loopback interface, that receives messages, and answers as a test says."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

TOKEN = "T0KEN-of-the-address"
"""Part of the path of the address. It must not appear in any output."""


@dataclass
class Received:
    """One request."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found


@dataclass
class Receiver:
    """What was received; `answers` are used up one by one, then every request gets 200."""

    host: str = "127.0.0.1"
    certificate: tuple[Path, Path] | None = None
    """Of a server with TLS: certificate and key."""
    port: int = 0
    answers: list[int] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    silent: bool = False
    """Never answer."""
    received: list[Received] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"http{'s' if self.certificate else ''}://{self.host}:{self.port}/hooks/{TOKEN}"

    def types(self) -> list[str]:
        """The type of each message of a webhook, in order."""
        return [each.document["type"] for each in self.received]


@contextmanager
def receiving(**settings: Any) -> Iterator[Receiver]:
    """A server for the block."""
    receiver = Receiver(**settings)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            receiver.received.append(Received(self.path, headers, body))
            if receiver.silent:
                receiver.released.wait()
                return
            self.send_response(receiver.answers.pop(0) if receiver.answers else 200)
            for name, value in receiver.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer((receiver.host, 0), Handler)
    if receiver.certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*receiver.certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    server.daemon_threads = True
    receiver.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield receiver
    finally:
        receiver.released.set()
        server.shutdown()
        server.server_close()
        thread.join()
