"""A Google Cloud project as preflight reads it: REST with google-auth's session, limited to reads."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from threading import Lock
from typing import Any

from trainfleet.errors import MissingToolError, Problem
from trainfleet.infra.gcp.layout import cluster_name
from trainfleet.infra.preflight import NotAnsweredError
from trainfleet.infra.preflight_requests import TIMEOUT_S, Cluster
from trainfleet.infra.spec.schema import PlatformSpec

HOST = "https://{service}.googleapis.com"
SCOPES = ("https://www.googleapis.com/auth/cloud-platform", "https://www.googleapis.com/auth/userinfo.email")
LOGIN = "gcloud auth application-default login; in CI: GOOGLE_APPLICATION_CREDENTIALS or a workload identity"
READING_POSTS = (":testIamPermissions", ":getEffectiveOrgPolicy")
"""Methods that are sent as POST and only read (Resource Manager API)."""


class Account:
    """One project."""

    def __init__(self, spec: PlatformSpec, session: Any) -> None:
        self._spec, self._session = spec, session
        self._looking_up = Lock()

    def read(self, service: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the answer of a method that reads.

        Args:
            service: the API's short name.
            path: the path on its host.
            body: sent by the few methods that read with a POST.

        Raises:
            NotAnsweredError: no permission, a disabled API, or no connection.
            LookupError: there is no such resource.
        """
        import requests
        from google.auth.exceptions import GoogleAuthError

        if body is not None and not path.endswith(READING_POSTS):
            raise ValueError(f"{path} may write")
        url = HOST.format(service=service) + path
        try:
            answer = self._session.request(
                "GET" if body is None else "POST", url, json=body, timeout=TIMEOUT_S
            )
            document = answer.json() if answer.content else {}
        except GoogleAuthError as error:
            raise NotAnsweredError(f"the credentials were not accepted ({LOGIN}): {error}") from error
        except requests.RequestException as error:
            raise NotAnsweredError(f"{service}: {error}") from error
        if answer.status_code == 404:
            raise LookupError(path)
        if answer.status_code != 200:
            raise NotAnsweredError(_reason(service, document, answer.status_code))
        found: dict[str, Any] = document
        return found

    @cached_property
    def _email(self) -> str:
        known = getattr(self._session.credentials, "service_account_email", "")
        if known and "@" in known:
            return str(known)
        try:
            return str(self.read("openidconnect", "/v1/userinfo").get("email", ""))
        except LookupError:
            return ""

    def who(self) -> str:
        """Return the caller's e-mail address; empty if the credentials do not tell."""
        with self._looking_up:
            return self._email

    @cached_property
    def _cluster(self) -> Cluster | None:
        spec = self._spec
        path = f"/v1/projects/{spec.account}/locations/{spec.region}/clusters/{cluster_name(spec)}"
        try:
            found = self.read("container", path)
        except LookupError:
            return None
        endpoints = found.get("controlPlaneEndpointsConfig", {}).get("dnsEndpointConfig", {})
        dns = str(endpoints.get("endpoint", "")) if endpoints.get("allowExternalTraffic") else ""
        platform = str(found.get("resourceLabels", {}).get("trainfleet-platform", ""))
        return Cluster(dns or str(found.get("endpoint", "")), platform)

    def cluster(self) -> Cluster | None:
        """Return the cluster with the platform's name, or None."""
        with self._looking_up:
            return self._cluster


def _reason(service: str, document: Any, status: int) -> str:
    """The reason of an error, in the form of google.rpc.Status."""
    error = document.get("error", {}) if isinstance(document, dict) else {}
    details = error.get("details", []) if isinstance(error, dict) else []
    if any(each.get("reason") == "SERVICE_DISABLED" for each in details):
        return f"the API {service}.googleapis.com is disabled: enable it first"
    message = error.get("message", "") if isinstance(error, dict) else str(error)
    if status in (401, 403):
        return f"{service}: the caller may not: {message}"
    return f"{service}: HTTP {status} {message}"


def connect(spec: PlatformSpec, settings: Mapping[str, Any]) -> Account:
    """Return the project with the application default credentials, which Pulumi's provider uses as well.

    Raises:
        MissingToolError: there are no credentials, or they cannot be read.
    """
    import google.auth
    from google.auth.exceptions import GoogleAuthError
    from google.auth.transport.requests import AuthorizedSession

    written = settings.get("gcp:credentials")
    try:
        if isinstance(written, str) and written and not written.lstrip().startswith("{"):
            load: Any = google.auth.load_credentials_from_file
            credentials, _ = load(written, scopes=SCOPES)
        else:
            credentials, _ = google.auth.default(scopes=SCOPES)
    except GoogleAuthError as error:
        what = str(error).splitlines()[0]
        raise MissingToolError("GCP: not logged in", [Problem("credentials", what, LOGIN)]) from error
    session: Any = AuthorizedSession
    return Account(spec, session(credentials))
