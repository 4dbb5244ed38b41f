"""Simulated Azure APIs for preflight: Resource Manager, Microsoft Graph and the token endpoint, JSON over
REST.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.infra.simulated_api import Reply, Request

SECRET = "simulated-secret"
CALLER = "aaaaaaaa-0000-0000-0000-000000000001"


def token(audience: str) -> str:
    """A token with the claims that preflight reads. Its signature is nobody's."""
    claims = {"aud": audience, "oid": CALLER, "appid": "simulated-app"}
    parts = [
        base64.urlsafe_b64encode(json.dumps(each).encode()).decode().rstrip("=") for each in ({}, claims)
    ]
    return ".".join([*parts, "signature"])


@dataclass
class SimulatedAzure:
    """One subscription: the rows or the document by path. A path without one is answered with 404."""

    documents: dict[str, Any]
    groups: list[str]
    """The groups that the caller is a member of."""
    denied: tuple[str, ...] = ()
    """Ends of paths that the caller may not read."""
    audiences: list[str] = field(default_factory=list)
    """The APIs for which a token was asked."""

    def __call__(self, asked: Request) -> Reply:
        """Answer one request."""
        parts = urlsplit(asked.path)
        if parts.path.endswith("/oauth2/v2.0/token"):
            return self._token(parse_qs(asked.body))
        if not asked.headers.get("authorization", "").endswith(".signature"):
            return _error(401, "InvalidAuthenticationToken")
        if parts.path.endswith(self.denied or ("\n",)):
            return _error(403, "AuthorizationFailed")
        if parts.path == f"/graph/v1.0/directoryObjects/{CALLER}/checkMemberGroups" and asked.verb == "POST":
            expected = json.loads(asked.body)["groupIds"]
            return _json({"value": [each for each in expected if each in self.groups]})
        query = parse_qs(parts.query)
        assert query["api-version"], asked.path
        found = self.documents.get(parts.path)
        if found is None:
            return _error(404, "NotFound")
        if not isinstance(found, list):
            return _json(found)
        return self._page(asked, found, int(query.get("$skiptoken", ["0"])[0]))

    def _page(self, asked: Request, rows: list[Any], start: int) -> Reply:
        """Two rows a page."""
        document: dict[str, Any] = {"value": rows[start : start + 2]}
        if len(rows) > start + 2:
            url = f"http://{asked.headers['host']}{asked.path.partition('&$skiptoken')[0]}"
            document["nextLink"] = f"{url}&$skiptoken={start + 2}"
        return _json(document)

    def _token(self, form: dict[str, list[str]]) -> Reply:
        """Client credentials (Microsoft identity platform)."""
        signed = form.get("client_assertion", [""])[0]
        if SECRET not in (form.get("client_secret", [""])[0], signed):
            return (
                401,
                "application/json",
                json.dumps({"error_description": "AADSTS7000215: simulated\nmore"}),
            )
        audience = form["scope"][0].removesuffix("/.default")
        self.audiences.append(audience)
        return _json({"access_token": token(audience), "expires_in": 3599})


def _json(document: dict[str, Any]) -> Reply:
    return 200, "application/json", json.dumps(document)


def _error(status: int, code: str) -> Reply:
    return status, "application/json", json.dumps({"error": {"code": code, "message": "simulated"}})
