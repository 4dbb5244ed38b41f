"""An Azure subscription as preflight reads it: REST of Resource Manager and Microsoft Graph, with a token of
the Azure CLI or of the service principal that Pulumi's provider uses.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from functools import cached_property
from threading import Lock
from typing import Any
from urllib.parse import urlsplit

from trainfleet.errors import MissingToolError, Problem
from trainfleet.infra.azure.layout import cluster_name
from trainfleet.infra.preflight import NotAnsweredError
from trainfleet.infra.preflight_requests import TIMEOUT_S, Cluster
from trainfleet.infra.spec.schema import PlatformSpec

MANAGER, GRAPH = "https://management.azure.com", "https://graph.microsoft.com"
LOGIN_HOST = "https://login.microsoftonline.com"
AUDIENCE = "api://AzureADTokenExchange"
LOGIN = "az login; in CI: ARM_CLIENT_ID, ARM_TENANT_ID and ARM_CLIENT_SECRET, ARM_OIDC_TOKEN or ARM_USE_OIDC"
CLI_S = 30
"""Seconds for the Azure CLI, which starts slowly and may have to renew its token."""
READING_POSTS = ("/checkMemberGroups",)
"""Methods that are sent as POST and only read (Graph API)."""


class Account:
    """One subscription."""

    def __init__(self, spec: PlatformSpec, settings: Mapping[str, Any]) -> None:
        self._spec, self._settings = spec, settings
        self._tokens: dict[str, str] = {}
        self._locking, self._looking_up = Lock(), Lock()

    def read(self, path: str, version: str, query: str = "") -> dict[str, Any]:
        """Return the answer of Resource Manager, with all its pages under `value`.

        Args:
            path: the resource's id, or its path within the subscription if it does not begin with `/`.
            version: the API's version.
            query: further parameters.

        Raises:
            NotAnsweredError: no permission, or no connection.
            LookupError: there is no such resource.
        """
        base = path if path.startswith("/") else f"/subscriptions/{self._spec.account}/{path}"
        url: str | None = f"{MANAGER}{base}?api-version={version}{query}"
        rows: list[Any] = []
        while url:
            document = self._request("GET", url, MANAGER)
            if "value" not in document:
                return document
            rows += document["value"]
            url = document.get("nextLink")
        return {"value": rows}

    def groups_of(self, who: str, groups: list[str]) -> list[str]:
        """Return which of the groups a principal is a member of, also indirectly (Graph API,
        directoryObject: checkMemberGroups).
        """
        url = f"{GRAPH}/v1.0/directoryObjects/{who}/checkMemberGroups"
        return [str(each) for each in self._request("POST", url, GRAPH, {"groupIds": groups})["value"]]

    def _request(self, verb: str, url: str, audience: str, body: Any = None) -> dict[str, Any]:
        import requests

        if verb != "GET" and not url.endswith(READING_POSTS):
            raise ValueError(f"{verb} {url} may write")
        # The next page's address comes from the answer, and the token must not go elsewhere.
        if urlsplit(url).hostname != urlsplit(audience).hostname or urlsplit(url).scheme not in audience:
            raise NotAnsweredError(f"the answer continues at another host than {audience}")
        headers = {"Authorization": f"Bearer {self.token(audience)}"}
        try:
            answer = requests.request(verb, url, headers=headers, json=body, timeout=TIMEOUT_S)
            document: dict[str, Any] = answer.json() if answer.content else {}
        except requests.RequestException as error:
            raise NotAnsweredError(f"{audience}: {error}") from error
        if answer.status_code == 404:
            raise LookupError(url)
        if answer.status_code != 200:
            reported = document.get("error", {})
            message = f"{reported.get('code', '')} {reported.get('message', '')}".strip()
            denied = "the caller may not: " if answer.status_code in (401, 403) else ""
            raise NotAnsweredError(f"{denied}HTTP {answer.status_code} {message}")
        return document

    def token(self, audience: str) -> str:
        """Return a token for one of the two APIs.

        Raises:
            MissingToolError: there are no credentials.
            NotAnsweredError: they were not accepted.
        """
        with self._locking:
            if audience not in self._tokens:
                client = self._setting("clientId", "ARM_CLIENT_ID")
                found = self._of_principal(audience, client) if client else _of_cli(audience)
                self._tokens[audience] = found
            return self._tokens[audience]

    def _setting(self, key: str, variable: str) -> str:
        """A setting of Pulumi's provider, or its environment variable. An encrypted setting is not text."""
        written = self._settings.get(f"azure-native:{key}")
        return written if isinstance(written, str) else os.environ.get(variable, "")

    def _of_principal(self, audience: str, client: str) -> str:
        """The token of a service principal (Microsoft identity platform, client credentials)."""
        import requests

        tenant = self._setting("tenantId", "ARM_TENANT_ID")
        secret = os.environ.get("ARM_CLIENT_SECRET", "")
        signed = "" if secret else os.environ.get("ARM_OIDC_TOKEN", "") or _of_github()
        if not tenant or not (secret or signed):
            raise _not_logged_in("ARM_CLIENT_ID is set, but not ARM_TENANT_ID and a secret or token")
        form = {"grant_type": "client_credentials", "client_id": client, "scope": f"{audience}/.default"}
        if secret:
            form["client_secret"] = secret
        else:
            form["client_assertion_type"] = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
            form["client_assertion"] = signed
        try:
            answer = requests.post(f"{LOGIN_HOST}/{tenant}/oauth2/v2.0/token", data=form, timeout=TIMEOUT_S)
            document = answer.json()
        except requests.RequestException as error:
            raise NotAnsweredError(f"{LOGIN_HOST}: {error}") from error
        if answer.status_code != 200:
            what = str(document.get("error_description", document)).splitlines()[0]
            raise NotAnsweredError(f"the credentials were not accepted: {what}")
        return str(document["access_token"])

    @cached_property
    def claims(self) -> dict[str, Any]:
        """The claims of the caller's token: `oid`, and `upn` or `appid`."""
        part = self.token(MANAGER).split(".")[1]
        try:
            found: dict[str, Any] = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
        except ValueError as error:
            raise NotAnsweredError("the caller's token has no readable claims") from error
        return found

    def who(self) -> str:
        """Return the caller's name, or the id of its application."""
        return str(self.claims.get("upn") or self.claims.get("unique_name") or self.claims.get("appid", ""))

    @cached_property
    def _cluster(self) -> Cluster | None:
        name = cluster_name(self._spec)
        rows = self.read("providers/Microsoft.ContainerService/managedClusters", "2025-05-01")["value"]
        for row in rows:
            if row["name"] == name and row["location"].lower() == self._spec.region:
                properties = row.get("properties", {})
                host = properties.get("fqdn") or properties.get("privateFQDN") or ""
                return Cluster(str(host), str((row.get("tags") or {}).get("trainfleet:platform", "")))
        return None

    def cluster(self) -> Cluster | None:
        """Return the cluster with the platform's name, or None."""
        with self._looking_up:
            return self._cluster

    @cached_property
    def _sizes(self) -> dict[str, dict[str, Any]]:
        query = f"&$filter=location eq '{self._spec.region}'"
        rows = self.read("providers/Microsoft.Compute/skus", "2021-07-01", query)["value"]
        return {str(row["name"]).lower(): row for row in rows if row["resourceType"] == "virtualMachines"}

    def size(self, name: str) -> dict[str, Any] | None:
        """Return what the subscription sees of a size of machines in the region; None if nothing."""
        with self._looking_up:
            return self._sizes.get(name.lower())


def _of_github() -> str:
    """The token of a job of GitHub Actions, requested as Pulumi's provider does; empty elsewhere.

    Raises:
        NotAnsweredError: GitHub gives none.
    """
    import requests

    url = os.environ.get("ACTIONS_ID_TOKEN_REQUEST_URL", "")
    bearer = os.environ.get("ACTIONS_ID_TOKEN_REQUEST_TOKEN", "")
    if os.environ.get("ARM_USE_OIDC", "").lower() != "true" or not (url and bearer):
        return ""
    headers = {"Authorization": f"Bearer {bearer}"}
    try:
        answer = requests.get(url, {"audience": AUDIENCE}, headers=headers, timeout=TIMEOUT_S)
        return str(answer.json()["value"])
    except (requests.RequestException, ValueError, KeyError) as error:
        raise NotAnsweredError(f"GitHub gives the job no token: {error}") from error


def _of_cli(audience: str) -> str:
    """The token of the user who is logged in at the Azure CLI."""
    if (az := shutil.which("az")) is None:
        raise _not_logged_in("the Azure CLI (az) is not installed, and ARM_CLIENT_ID is not set")
    command = [az, "account", "get-access-token", "--resource", audience, "--output", "json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=CLI_S, check=False)
        if done.returncode == 0:
            return str(json.loads(done.stdout)["accessToken"])
        what = (done.stderr.strip() or f"az ended with {done.returncode}").splitlines()[0]
    except (OSError, subprocess.TimeoutExpired, ValueError, KeyError) as error:
        what = f"az account get-access-token: {error}"
    if audience != MANAGER:
        raise NotAnsweredError(what)
    raise _not_logged_in(what)


def _not_logged_in(what: str) -> MissingToolError:
    return MissingToolError("Azure: not logged in", [Problem("credentials", what, LOGIN)])


def connect(spec: PlatformSpec, settings: Mapping[str, Any]) -> Account:
    """Return the subscription with the credentials of Pulumi's provider, or of the Azure CLI.

    Raises:
        MissingToolError: there are no credentials.
    """
    import requests  # noqa: F401 - a missing package is reported before the first request

    account = Account(spec, settings)
    try:
        account.token(MANAGER)
    except NotAnsweredError as error:
        raise _not_logged_in(str(error)) from error
    return account
