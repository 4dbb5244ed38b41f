"""Simulated Google APIs for preflight: JSON over REST of the methods that it calls, and the token endpoint."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from tests.infra.simulated_api import Reply, Request

TOKEN = "simulated-token"
JSON = "application/json"


@dataclass
class SimulatedGcp:
    """One project: the documents by path. A path without a document is answered with 404."""

    documents: dict[str, dict[str, Any]]
    permissions: list[str]
    disabled: tuple[str, ...] = ()
    """Short names of APIs that are disabled."""
    denied: tuple[str, ...] = ()
    """Ends of paths that the caller may not read."""
    tokens: list[str] = field(default_factory=lambda: [TOKEN])
    """The tokens that are accepted."""

    def __call__(self, asked: Request) -> Reply:
        """Answer `/<service>/<path>`; `/token` exchanges a signed assertion for a token (RFC 7523)."""
        if asked.path == "/token":
            assert "grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Ajwt-bearer" in asked.body
            return _json({"access_token": TOKEN, "expires_in": 3600, "token_type": "Bearer"})
        if asked.headers.get("authorization", "").removeprefix("Bearer ") not in self.tokens:
            return _error(401, "UNAUTHENTICATED")
        _, service, path = asked.path.split("/", 2)
        if service in self.disabled:
            return _error(403, "SERVICE_DISABLED")
        if asked.path.endswith(self.denied or ("\n",)):
            return _error(403, "IAM_PERMISSION_DENIED")
        if path.endswith(":testIamPermissions") and asked.verb == "POST":
            expected = json.loads(asked.body)["permissions"]
            return _json({"permissions": [each for each in expected if each in self.permissions]})
        document = self.documents.get(asked.path)
        return _json(document) if document is not None else _error(404, "notFound")


def _json(document: dict[str, Any]) -> Reply:
    return 200, JSON, json.dumps(document)


def _error(status: int, reason: str) -> Reply:
    """An error as google.rpc.Status."""
    details = [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason}]
    error = {"code": status, "message": f"simulated {reason}", "details": details}
    return status, JSON, json.dumps({"error": error})
