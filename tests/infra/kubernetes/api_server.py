"""A small API server on loopback with TLS: what the layer's own programs ask of a cluster, and nothing more."""

from __future__ import annotations

import json
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any


@dataclass
class ApiServer:
    """Objects by path, who may ask, and what was asked."""

    folder: Path
    token: str
    port: int = 0
    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    granted: list[str] = field(default_factory=list)
    """Tokens that were requested and not revoked."""
    reviews: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The status of a TokenReview, by the token. Others are not authenticated."""
    lasts: timedelta = timedelta(hours=8)
    """How long it lets a token last at most."""

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def certificate(self) -> Path:
        return self.folder / "server.crt"

    @property
    def key(self) -> Path:
        return self.folder / "server.key"


@contextmanager
def api_server(folder: Path, token: str) -> Iterator[ApiServer]:
    """Serve until the end of the block."""
    server = ApiServer(folder, token)
    _issue_certificate(server)
    listening = ThreadingHTTPServer(("127.0.0.1", 0), _handler(server))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server.certificate, server.key)
    listening.socket = context.wrap_socket(listening.socket, server_side=True)
    server.port = listening.server_address[1]
    thread = Thread(target=listening.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        listening.shutdown()
        thread.join()
        listening.server_close()


def _issue_certificate(server: ApiServer) -> None:
    files = [
        "-keyout",
        str(server.key),
        "-out",
        str(server.certificate),
        "-subj",
        "/CN=api",
        "-addext",
        "subjectAltName=IP:127.0.0.1",
    ]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *files],
        check=True,
        capture_output=True,
    )


FORBIDDEN = {"kind": "Status", "reason": "Forbidden", "message": "forbidden", "code": 403}


def _body(request: BaseHTTPRequestHandler) -> bytes:
    """The body of a request. `kubectl create --raw` sends it in chunks."""
    if request.headers.get("Transfer-Encoding") != "chunked":
        return request.rfile.read(int(request.headers["Content-Length"]))
    parts = []
    while length := int(request.rfile.readline(), 16):
        parts.append(request.rfile.read(length))
        request.rfile.readline()
    request.rfile.readline()
    return b"".join(parts)


def _granted(server: ApiServer, request: dict[str, Any]) -> dict[str, Any]:
    """The answer to a TokenRequest, whose token `server` accepts from now on."""
    server.granted.append(f"granted.{len(server.granted)}.token")
    end = datetime.now(UTC) + min(timedelta(seconds=request["spec"]["expirationSeconds"]), server.lasts)
    status = {"token": server.granted[-1], "expirationTimestamp": f"{end:%Y-%m-%dT%H:%M:%SZ}"}
    kind = {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1"}
    return {**kind, "metadata": {}, "spec": request["spec"], "status": status}


def _payload(status: int, body: dict[str, Any] | None) -> bytes:
    """The document of an answer."""
    missing = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": "there is no such object",
        "code": 404,
    }
    denied = {**missing, "message": "not allowed", "reason": "Unauthorized", "code": 401}
    return json.dumps(denied if status == 401 else body or missing).encode()


def _listed(server: ApiServer, path: str) -> dict[str, Any] | None:
    """The objects of a collection, if it has any."""
    items = [each for name, each in server.objects.items() if name.rpartition("/")[0] == path]
    return {"kind": "List", "items": items} if items else None


def _reviewed(server: ApiServer, spec: dict[str, Any]) -> dict[str, Any]:
    """The status of a TokenReview. A token is not authenticated for an audience that it was not issued for."""
    status = server.reviews.get(spec["token"], {"error": "invalid bearer token"})
    if status.get("audiences") and not set(status["audiences"]) & set(spec["audiences"]):
        targets, has = spec["audiences"], status["audiences"]
        return {"error": f"token audiences {has} is invalid for the target audiences {targets}"}
    return status


def _handler(server: ApiServer) -> type[BaseHTTPRequestHandler]:
    """The handler of requests for the objects of a server."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            self._answer(200 if self._may() else 401, server.objects.get(path) or _listed(server, path))

        def do_PUT(self) -> None:
            found = self._may() and self.path in server.objects
            if found:
                server.objects[self.path] = json.loads(_body(self))
            self._answer(200 if found else 404, server.objects.get(self.path))

        def do_DELETE(self) -> None:
            self._answer(200 if self._may() else 401, server.objects.pop(self.path, None))

        def do_POST(self) -> None:
            if not self._may():
                self._answer(401, None)
                return
            body = json.loads(_body(self))
            if self.path.partition("?")[0].endswith("/token"):
                self._grant(body)
                return
            if self.path.endswith("/tokenreviews"):
                self._answer(201, {**body, "status": _reviewed(server, body["spec"])})
                return
            path = f"{self.path.partition('?')[0]}/{body['metadata']['name']}"
            if path in server.objects:
                self._answer(409, {"kind": "Status", "code": 409})
            else:
                server.objects[path] = body
                self._answer(201, body)

        def _grant(self, body: dict[str, Any]) -> None:
            """Answer a TokenRequest, which a granted token may not make."""
            if self.headers.get("Authorization") == f"Bearer {server.token}":
                self._answer(201, _granted(server, body))
            else:
                self._answer(403, FORBIDDEN)

        def _may(self) -> bool:
            server.asked.append(f"{self.command} {self.path}")
            valid = [server.token, *server.granted]
            return self.headers.get("Authorization") in [f"Bearer {token}" for token in valid]

        def _answer(self, status: int, body: dict[str, Any] | None) -> None:
            payload = _payload(status, body)
            self.send_response(404 if body is None and status == 200 else status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
            """Say nothing."""

    return Handler
