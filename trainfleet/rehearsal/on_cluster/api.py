"""A client for a real cluster's API server; `kubectl proxy` supports every login method of kubectl.

The proxy listens on a Unix socket in a private temporary folder.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from trainfleet.errors import Problem, TrainfleetError
from trainfleet.rehearsal.on_cluster.cluster_target import Target
from trainfleet.toolchain import kill_tree, spawn

Document = dict[str, Any]
MANAGER = "trainfleet-rehearsal"
"""Field manager of rehearsals; different from the launchers', which distinguishes their objects."""
APPLY = "application/apply-patch+yaml"
_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
_TIMEOUT_S = 30.0
_START_S = 30.0
POLL_INTERVAL_S = 0.05


class ApiError(TrainfleetError):
    """An error response of the API server; status 0: the server could not be reached."""

    def __init__(self, status: int, message: str, reason: str = "") -> None:
        self.status, self.message, self.reason = status, message, reason
        super().__init__(
            f"the cluster rejected the request: {message}"
            if status
            else f"the cluster cannot be reached: {message}"
        )


@dataclass(frozen=True)
class Kind:
    """A resource kind as listed by the API server."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool
    verbs: tuple[str, ...] = ()

    def path(self, namespace: str = "", name: str = "") -> str:
        """Return the path of the collection, or of one object."""
        root = f"/apis/{self.api_version}" if "/" in self.api_version else f"/api/{self.api_version}"
        place = f"/namespaces/{quote(namespace)}" if self.namespaced and namespace else ""
        return f"{root}{place}/{self.plural}" + (f"/{quote(name, safe=':')}" if name else "")


class UnknownKindError(TrainfleetError):
    """The API server does not serve this kind: its CustomResourceDefinition is not installed."""


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(_TIMEOUT_S)
        self.sock.connect(self._path)


class Api:
    """A thread-safe client of one API server."""

    def __init__(self, socket_path: str, context: str) -> None:
        self._socket, self.context = socket_path, context
        self._kinds: dict[str, dict[str, Kind]] = {}
        self._local = threading.local()
        self.warnings: dict[str, list[str]] = {}
        """Warnings of the API server, by object path."""

    def request(  # noqa: PLR0917 - the parts of an HTTP request
        self,
        method: str,
        path: str,
        query: dict[str, str] | None = None,
        body: Any = None,
        content: str = "application/json",
        accept: str = "",
    ) -> Document:
        """Send one request.

        Args:
            method: HTTP method.
            path: path below the server's address.
            query: query parameters.
            body: document to send as JSON; None for none.
            content: type of `body`, such as a kind of patch.
            accept: type of the answer; empty for JSON.

        Raises:
            ApiError: the server rejected the request or could not be reached.
        """
        url = f"{path}?{urlencode(query)}" if query else path
        headers = {
            "Accept": accept or "application/json",
            **({"Content-Type": content} if body is not None else {}),
        }
        text = json.dumps(body) if body is not None else None
        answer, data = self._call(method, url, text, headers)
        try:
            document = dict(json.loads(data)) if data else {}
        except ValueError:
            document = {"message": data.decode(errors="replace").strip()[:400]}
        if answer.status >= 400:
            raise ApiError(
                answer.status,
                str(document.get("message") or answer.reason),
                str(document.get("reason") or ""),
            )
        if warnings := [_warning(header) for header in answer.headers.get_all("Warning") or ()]:
            self.warnings.setdefault(path, []).extend(warnings)
        return document

    def _call(
        self, method: str, url: str, text: str | None, headers: dict[str, str]
    ) -> tuple[http.client.HTTPResponse, bytes]:
        for last in (False, True):
            connection: _Connection | None = getattr(self._local, "connection", None)
            fresh = connection is None
            if connection is None:
                connection = self._local.connection = _Connection(self._socket)
            try:
                connection.request(method, url, text, headers)
                answer = connection.getresponse()
                return answer, answer.read()
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                self._local.connection = None
                # The server may have closed a kept-alive connection, so retry once. If a new connection fails
                # too, the server is unreachable.
                if fresh or last or not isinstance(error, (ConnectionError, http.client.RemoteDisconnected)):
                    raise ApiError(0, f"{self.context}: {error or type(error).__name__}") from error
        raise AssertionError("unreachable")

    def kind(self, api_version: str, kind: str) -> Kind:
        """Look up a kind.

        Raises:
            UnknownKindError: the API server does not serve it.
        """
        if kind not in self._kinds.get(api_version, {}):
            self._kinds[api_version] = self._listed(api_version)
        try:
            return self._kinds[api_version][kind]
        except KeyError:
            raise UnknownKindError(
                f"{self.context} has no kind {kind} of {api_version}: its definition is not installed there"
            ) from None

    def _listed(self, api_version: str) -> dict[str, Kind]:
        try:
            rows = self.request(
                "GET", f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
            ).get("resources", [])
        except ApiError as error:
            if error.status == 404:
                return {}
            raise
        found = [row for row in rows if "/" not in row["name"]]
        return {
            row["kind"]: Kind(
                api_version, row["kind"], row["name"], bool(row["namespaced"]), tuple(row["verbs"])
            )
            for row in found
        }

    def kinds(self) -> list[Kind]:
        """Return all listable kinds, each in the API server's preferred version."""
        groups = self.request("GET", "/apis").get("groups", [])
        versions = ["v1", *(group["preferredVersion"]["groupVersion"] for group in groups)]
        found = [kind for version in versions for kind in self._listed(version).values()]
        return [kind for kind in found if "list" in kind.verbs]

    def path_of(self, document: Document) -> str:
        """Return the path of an object.

        Raises:
            UnknownKindError: the API server does not serve its kind.
        """
        metadata = document["metadata"]
        return self.kind(document["apiVersion"], document["kind"]).path(
            metadata.get("namespace") or "default", metadata["name"]
        )

    def get(self, path: str) -> Document | None:
        """Return an object, or None if it does not exist."""
        try:
            return self.request("GET", path)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def apply(self, document: Document, *, dry_run: bool = False, force: bool = False) -> Document:
        """Create or update an object with server-side apply.

        Without `force`, a field that another manager set to a different value is a conflict.
        """
        query = {
            "fieldManager": MANAGER,
            "fieldValidation": "Strict",
            "force": str(force).lower(),
            **({"dryRun": "All"} if dry_run else {}),
        }
        return self.request("PATCH", self.path_of(document), query, document, APPLY)

    def create(self, document: Document, *, dry_run: bool = False, manager: str = MANAGER) -> Document:
        """Create an object that does not exist."""
        path = self.path_of(document).rpartition("/")[0]
        query = {
            "fieldManager": manager,
            "fieldValidation": "Strict",
            **({"dryRun": "All"} if dry_run else {}),
        }
        return self.request("POST", path, query, document)

    def delete(self, path: str, uid: str = "") -> bool:
        """Start a foreground deletion; return whether the object existed. `uid`: only this instance."""
        options: Document = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Foreground"}
        options |= {"preconditions": {"uid": uid}} if uid else {}
        try:
            self.request("DELETE", path, body=options)
        except ApiError as error:
            if error.status in (404, 409):
                return False
            raise
        return True

    def listed(self, kind: Kind) -> list[Document]:
        """Return the metadata of all objects of a kind."""
        return list(self.request("GET", kind.path(), accept=_LIST).get("items") or [])

    def wait(self, done: Any, limit: float) -> bool:
        """Poll `done` for up to `limit` seconds; return whether it became true."""
        deadline, pause = time.monotonic() + limit, POLL_INTERVAL_S
        while not done():
            if time.monotonic() > deadline:
                return False
            time.sleep(pause)
            pause = min(pause * 1.5, 1.0)
        return True

    def gone(self, path: str, limit: float, uid: str = "") -> bool:
        """Wait up to `limit` seconds until an object is deleted; return whether it is."""
        return self.wait(
            lambda: (found := self.get(path)) is None or bool(uid and found["metadata"]["uid"] != uid), limit
        )


def _warning(header: str) -> str:
    """Return the text of a Warning header (`299 - "text"`)."""
    match = re.search(r'"(.*)"', header, re.S)
    return match.group(1).replace('\\"', '"') if match else header


def _is_listening(path: Path) -> bool:
    # The socket's file exists from bind() on, and refuses connections until listen(). On a busy machine
    # the proxy can be preempted in between.
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.connect(str(path))
        return True
    return False


@contextlib.contextmanager
def connected(target: Target) -> Iterator[Api]:
    """Connect to a cluster for the duration of the block.

    Raises:
        TrainfleetError: the cluster cannot be reached or rejects the credentials.
    """
    folder = Path(tempfile.mkdtemp(prefix="trainfleet-api-"))
    child: subprocess.Popen[bytes] | None = None
    try:
        path, warnings = folder / "api", folder / "said"
        with warnings.open("wb") as output:
            command = [*target.kubectl, "proxy", f"--unix-socket={path}"]
            child = spawn(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=target.environment,
                start_new_session=True,
            )
        running, deadline = child, time.monotonic() + _START_S
        api = Api(str(path), target.context)
        while not _is_listening(path):
            if running.poll() is not None or time.monotonic() > deadline:
                raise TrainfleetError(
                    "the cluster cannot be reached",
                    [Problem(target.context, warnings.read_text().strip()[-400:] or "kubectl ended")],
                )
            time.sleep(POLL_INTERVAL_S)
        try:
            api.request("GET", "/version")
            api.request("GET", "/api/v1")
        except ApiError as error:
            raise TrainfleetError(
                "the cluster cannot be reached", [Problem(target.context, error.message)]
            ) from error
        yield api
    finally:
        if child is not None:
            kill_tree(child)
        shutil.rmtree(folder, ignore_errors=True)
