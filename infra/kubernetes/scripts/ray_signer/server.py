"""The signer's HTTPS server: limits of size, time and connections."""

from __future__ import annotations

import contextlib
import re
import socket
import sys
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import IPv6Address, ip_address
from threading import Lock, Timer
from typing import TYPE_CHECKING, Any

from .api import RefusedError, log

if TYPE_CHECKING:
    from .signer import Signer

SOCKET_S, CONNECTION_S = 10.0, 30.0
"""Time limits: of a read or write of a client, and of its whole connection."""
MAX_BYTES, MAX_DRAINED = 8192, 65536
"""Of a request: one with a P-256 key has 500. A longer one is read up to the second before it is refused, so
that the client gets the answer."""
MAX_CONNECTIONS, MAX_PER_ADDRESS = 256, 4
SIGN_PATH, READY_PATH = "/sign", "/ready"


class Handler(BaseHTTPRequestHandler):
    """One request of a pod, or of the kubelet's probe."""

    server: Server
    timeout = SOCKET_S

    def do_GET(self) -> None:
        ready = self.path == READY_PATH
        self._reply(200 if ready else 404, b"ready\n" if ready else b"there is no such path\n")

    def do_POST(self) -> None:
        address = plain_address(self.client_address[0])
        try:
            request = self._request()
            subject, certificate = self.server.signer.answer(self._token(), request, address)
        except RefusedError as refused:
            log(f"refused {address}: {refused.status}, {refused.reason}")
            self._reply(refused.status, f"{refused.reason}\n".encode())
            return
        log(f"signed for {subject}")
        self._reply(200, certificate)

    def _token(self) -> str:
        kind, _, token = self.headers.get("Authorization", "").partition(" ")
        if kind != "Bearer" or not token.strip():
            raise RefusedError(401, "the request has no token")
        return token.strip()

    def _request(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not re.fullmatch(r"\d{1,9}", length):
            raise RefusedError(400, "the request has no Content-Length")
        if not 0 < int(length) <= MAX_BYTES:
            self.rfile.read(min(int(length), MAX_DRAINED))
            raise RefusedError(413, f"the request has {length} bytes, and may have 1 to {MAX_BYTES}")
        body = self.rfile.read(int(length))
        if self.path != SIGN_PATH:
            raise RefusedError(404, "there is no such path")
        return body

    def _reply(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
        """Say nothing of probes; `do_POST` writes its own lines."""


def plain_address(text: str) -> str:
    """An address without the prefix that a socket for both families adds to IPv4 (::ffff:10.0.0.1)."""
    address = ip_address(text.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)


class Server(ThreadingHTTPServer):
    """HTTPS in a thread per connection, with limits per address and in total."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, signer: Signer, port: int) -> None:
        self.signer = signer
        self._open: Counter[str] = Counter()
        self._lock = Lock()
        both = socket.has_dualstack_ipv6()
        self.address_family = socket.AF_INET6 if both else socket.AF_INET
        super().__init__(("", port), Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = socket.create_server(
            ("", port), family=self.address_family, backlog=self.request_queue_size, dualstack_ipv6=both
        )
        self.server_address = self.socket.getsockname()

    def verify_request(self, request: object, client_address: Any) -> bool:  # noqa: ARG002 - the base class's
        """Whether the address may open one more connection."""
        with self._lock:
            allowed = self._open.total() < MAX_CONNECTIONS and self._open[client_address[0]] < MAX_PER_ADDRESS
            self._open[client_address[0]] += allowed
            return allowed

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._open[client_address[0]] -= 1
                self._open += Counter()  # without the addresses that have none

    def finish_request(self, request: Any, client_address: Any) -> None:
        """The handshake too belongs to the thread of its connection, and to its time limit."""
        request.settimeout(SOCKET_S)
        assert self.signer.context is not None, "the server starts after the CA is loaded"
        with self.signer.context.wrap_socket(request, server_side=True, do_handshake_on_connect=False) as tls:
            limit = Timer(CONNECTION_S, _cut, (tls,))
            limit.start()
            try:
                tls.do_handshake()
                Handler(tls, client_address, self)
            finally:
                limit.cancel()

    def handle_error(self, request: object, client_address: Any) -> None:  # noqa: ARG002 - the base class's
        error = sys.exception()
        log(f"connection of {plain_address(client_address[0])} ended: {type(error).__name__}: {error}")


def _cut(connection: socket.socket) -> None:
    """End a connection whose thread is still reading."""
    with contextlib.suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
