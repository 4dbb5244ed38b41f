"""A loopback server that answers as a failing Kubernetes API server does, for errors that a real one cannot
produce on demand.

It keeps objects by path, returns the errors in `refusals`, and calls `on_request` before each answer, which
changes objects as controllers do. tests/cluster runs against a real cluster.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml

NAMESPACE = "/api/v1/namespaces/training"
PODS, MAPS = f"{NAMESPACE}/pods", f"{NAMESPACE}/configmaps"
JOBS = "/apis/ray.io/v1/namespaces/training/rayjobs"
JOB = f"{JOBS}/tf-lm-tiny"
STATUS = {
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "AlreadyExists",
    422: "Invalid",
    400: "BadRequest",
}


class FakeApi:
    """The state of the server, and its answers."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {
            NAMESPACE: {"kind": "Namespace", "metadata": {"name": "training"}},
            "/apis/ray.io": {"kind": "APIGroup", "versions": [{"version": "v1"}]},
        }
        self.refusals: dict[tuple[str, str], tuple[int, str]] = {}
        """(method, path) to (status, message)."""
        self.logs: dict[str, str] = {}
        self.on_request: Callable[[FakeApi], Any] = lambda api: None
        self.asked: list[tuple[str, str]] = []
        self.address = ""
        self._one_at_a_time = threading.Lock()
        self._uids = itertools.count(1)
        self.tokens: set[str] | None = None
        """Those that are accepted; None: any."""
        self.allowed = True
        """Whether the caller may do what it asks about."""

    def answer(self, method: str, target: str, body: dict[str, Any] | None) -> tuple[int, bytes]:
        """The status and document of one call."""
        with self._one_at_a_time:
            return self._answer(method, target, body)

    def _answer(self, method: str, target: str, body: dict[str, Any] | None) -> tuple[int, bytes]:
        url = urlsplit(target)
        path = url.path
        self.asked.append((method, path))
        self.on_request(self)
        if (method, path) in self.refusals:
            return _refused(*self.refusals[method, path])
        if path.endswith("/log"):
            return 200, self.logs.get(path.split("/")[-2], "").encode()
        if path.endswith("/selfsubjectaccessreviews"):
            return 201, json.dumps({"status": {"allowed": self.allowed}}).encode()
        if method == "POST" and body is not None:
            path = f"{path}/{body['metadata']['name']}"
            if path in self.objects:
                return _refused(409, f"{path} already exists")
        if method in ("POST", "PATCH") and body is not None:
            made = {
                **body,
                "metadata": {
                    **body["metadata"],
                    "uid": f"uid-{next(self._uids)}",
                    "creationTimestamp": "2026-01-01T00:00:00Z",
                },
            }
            if "dryRun" not in url.query:
                self.objects[path] = made
            return 201, json.dumps(made).encode()
        if method == "DELETE":
            return self._delete(path, (body or {}).get("preconditions", {}).get("uid"))
        if path in self.objects:
            return 200, json.dumps(_with_uid(self.objects[path])).encode()
        if path.rpartition("/")[2] in ("pods", "events", "rayjobs", "workloads"):
            found = [value for key, value in self.objects.items() if key.startswith(f"{path}/")]
            job = unquote(url.query).partition("job-name=")[2].partition("&")[0]
            items = [each for each in found if not job or _job_of(each) in ("", job)]
            return 200, json.dumps({"items": [_with_uid(each) for each in items]}).encode()
        return _refused(404, f"{path} not found")

    def _delete(self, path: str, uid: str | None) -> tuple[int, bytes]:
        if path not in self.objects:
            return _refused(404, "not found")
        if uid not in (None, _with_uid(self.objects[path])["metadata"]["uid"]):
            return _refused(409, f"Precondition failed: UID in precondition: {uid}", "Conflict")
        del self.objects[path]
        return 200, b"{}"

    def kubeconfig(self, file: Path) -> Path:
        """A kubeconfig whose context `fake` is this server."""
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "fake",
            "clusters": [{"name": "fake", "cluster": {"server": self.address}}],
            "users": [{"name": "me", "user": {"token": "secret-token"}}],
            "contexts": [
                {"name": "fake", "context": {"cluster": "fake", "user": "me", "namespace": "training"}}
            ],
        }
        file.write_text(yaml.safe_dump(document))
        return file


def _with_uid(document: dict[str, Any]) -> dict[str, Any]:
    """An object that a test has put there, with the uid that every object has."""
    metadata = document.get("metadata", {})
    return {**document, "metadata": {"uid": f"uid-of-{metadata.get('name')}", **metadata}}


def owned_by(api: FakeApi, path: str) -> dict[str, Any]:
    """The metadata of what the object at a path owns."""
    return {"ownerReferences": [{"uid": api.objects[path]["metadata"]["uid"]}]}


def _job_of(pod: dict[str, Any]) -> str:
    """The Job of a pod; empty if it is the only pod of its test."""
    return str(pod["metadata"].get("labels", {}).get("job-name", ""))


def _refused(status: int, message: str, reason: str = "") -> tuple[int, bytes]:
    return status, json.dumps(
        {"kind": "Status", "reason": reason or STATUS.get(status, ""), "message": message, "code": status}
    ).encode()


@contextmanager
def serving() -> Iterator[FakeApi]:
    """Run the server until the end of the block."""
    api = FakeApi()

    class Handler(BaseHTTPRequestHandler):
        def _handle(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
            if api.tokens is not None and token not in api.tokens:
                status, data = _refused(401, "Unauthorized")
            else:
                status, data = api.answer(self.command, self.path, body if isinstance(body, dict) else None)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PATCH = do_DELETE = _handle  # noqa: N815 - names that http.server asks for

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    api.address = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield api
    finally:
        server.shutdown()
        server.server_close()
