"""The API server, by the pod's own account."""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

API_S = 10.0
"""Time limit of a call."""
Document = dict[str, Any]


class RefusedError(Exception):
    """A request that is not signed. The pod prints the reason, and repeats the request after a temporary
    status: 401, 409 and 5xx.
    """

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


def log(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


class Api:
    """The API server, by the pod's own account."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._host, self._port = env["KUBERNETES_SERVICE_HOST"], int(env["KUBERNETES_SERVICE_PORT"])
        self._account = Path(env.get("ACCOUNT", "/var/run/secrets/kubernetes.io/serviceaccount"))

    def request(self, method: str, path: str, body: Document | None = None) -> tuple[int, Document]:
        """The status and the document of an answer.

        Raises:
            RefusedError: 503, the API server does not answer.
        """
        try:
            trust = ssl.create_default_context(cafile=str(self._account / "ca.crt"))
            with contextlib.closing(
                http.client.HTTPSConnection(self._host, self._port, timeout=API_S, context=trust)
            ) as connection:
                token = (self._account / "token").read_text(encoding="utf-8").strip()
                headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
                connection.request(method, path, None if body is None else json.dumps(body), headers)
                answer = connection.getresponse()
                document = json.loads(answer.read() or b"{}")
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise RefusedError(503, f"the signer cannot reach the API server: {error}") from error
        return answer.status, document if isinstance(document, dict) else {}

    def expect(
        self, allowed: Iterable[int], method: str, path: str, body: Document | None = None
    ) -> Document:
        """The document of an answer with one of these statuses.

        Raises:
            RefusedError: 503, another status.
        """
        status, document = self.request(method, path, body)
        if status not in allowed:
            message = document.get("message") or "no reason given"
            raise RefusedError(503, f"the signer's {method} {path} was answered with {status}: {message}")
        return document
