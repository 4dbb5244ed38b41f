"""Tokens of a platform's account `launcher`, and the cluster that they are for. Imports no Pulumi.

A token is requested from the cluster (TokenRequest) with the user's own login and ends after hours. With
`layer.launcher_token`, the cluster also has one in a Secret, which never ends.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any

from trainfleet.console import install_hint
from trainfleet.errors import InputError, MissingToolError, Problem, TrainfleetError
from trainfleet.kubernetes_login import client_settings, login_errors
from trainfleet.workspace import key_files

TIMEOUT_S = 30
HOURS = 8.0
"""How long a token lasts by default: a working day. EKS limits it to 24 hours, others to what they like."""
LEAST_HOURS, MOST_HOURS = 0.2, 24.0
"""The API server rejects less than 10 minutes (kubernetes, pkg/apis/authentication/validation)."""
ADDRESS = ("server", "certificate-authority-data", "certificate-authority", "tls-server-name")
CANNOT = "cannot get a token"


class TokenForbiddenError(TrainfleetError):
    """Raised when the login may not request tokens: the stack was applied by an older release, or the user is
    not a launcher.
    """


@dataclass(frozen=True)
class Token:
    """A token, and when it ends; None: never."""

    value: str
    expires: datetime | None = None

    def end(self) -> str:
        """When it ends, for people."""
        return "never ends" if self.expires is None else f"ends at {self.expires:%Y-%m-%d %H:%M} UTC"


@dataclass(frozen=True)
class Login:
    """The cluster, and the user who asks."""

    context: str
    kubeconfig: Mapping[str, Any] | Path | None = None
    """With the context; None: the user's own."""


def request_token(login: Login, namespace: str, account: str, hours: float) -> Token:
    """Request a token of an account.

    Args:
        login: the cluster, and the user who asks.
        namespace: the account's.
        account: the service account.
        hours: how long it shall last; the cluster may grant less.

    Raises:
        MissingToolError: the package `kubernetes` is missing.
        TokenForbiddenError: the user may not.
        TrainfleetError: the cluster does not answer, or has no such account.
    """
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    spec = {"expirationSeconds": round(hours * 3600)}
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    status = _request(login, "POST", path, body)["status"]
    expires = datetime.fromisoformat(status["expirationTimestamp"].replace("Z", "+00:00")).astimezone(UTC)
    return Token(checked_token(status["token"], login.context), expires)


def secret_token(login: Login, namespace: str, secret: str) -> Token:
    """Read the token that never ends from its Secret.

    Raises:
        MissingToolError: the package `kubernetes` is missing.
        TrainfleetError: the cluster does not answer, or has no such Secret, or it is still empty.
    """
    path = f"/api/v1/namespaces/{namespace}/secrets/{secret}"
    data = (_request(login, "GET", path).get("data") or {}).get("token", "")
    place = f"secret {namespace}/{secret}"
    if not data:
        raise TrainfleetError(CANNOT, [Problem(place, "is still empty", "try again in a moment")])
    return Token(checked_token(base64.b64decode(data).decode(), place))


def read_token(path: Path) -> str:
    """The token in a file.

    Raises:
        InputError: there is no such file, or it has no token.
    """
    try:
        return checked_token(path.read_text(encoding="utf-8").strip(), str(path))
    except (OSError, UnicodeDecodeError) as error:
        what = (error.strerror if isinstance(error, OSError) else None) or "is not text"
        raise InputError("cannot read the token", [Problem(str(path), what)]) from error


def checked_token(token: str, where: str) -> str:
    """Check that a token has the three parts of a service account's token.

    Raises:
        InputError: it does not; the cluster would answer with 401 much later.
    """
    if token.count(".") != 2 or not all(token.split(".")) or any(letter.isspace() for letter in token):
        fix = "three parts separated by dots, on one line"
        raise InputError("cannot use the token", [Problem(where, "is not a service account's token", fix)])
    return token


def cluster_address(kubeconfig: str, where: str) -> dict[str, Any]:
    """The address and certificate of the cluster in a contract's kubeconfig.

    Raises:
        InputError: it has none, or one to which no token is sent.
    """
    try:
        cluster = json.loads(kubeconfig)["clusters"][0]["cluster"]
        found = {key: cluster[key] for key in ADDRESS if key in cluster}
        server = str(found["server"])
    except (ValueError, KeyError, IndexError, TypeError) as error:
        what = "has no cluster address" if kubeconfig else "is empty: the stack has no kubeconfig"
        fix = "run pulumi up, then save its outputs again"
        raise InputError("cannot write a kubeconfig", [Problem(where, what, fix)]) from error
    if not server.startswith("https://"):
        problem = Problem(where, f"a token is not sent to {server}", "an address with https")
        raise InputError("cannot write a kubeconfig", [problem])
    return found


def _request(login: Login, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """One call; the document of its response."""
    try:
        from kubernetes import client
        from kubernetes.client.exceptions import ApiException
        from kubernetes.config.config_exception import ConfigException
    except ModuleNotFoundError as error:
        fix = f"{install_hint('kuberay')}, or use --token-file"
        problem = Problem("kubernetes", "is not installed", fix)
        raise MissingToolError(CANNOT, [problem]) from error

    where, fix = login.context, "log in to the cloud, or use --token-file"
    try:
        api = client.ApiClient(_settings(login))
        response = api.call_api(
            path,
            method,
            header_params={"Content-Type": "application/json", "Accept": "application/json"},
            body=body,
            auth_settings=["BearerToken"],
            _return_http_data_only=True,
            _preload_content=False,
            _request_timeout=TIMEOUT_S,
        )
        return dict(json.loads(response.data))
    except InputError as error:
        raise TrainfleetError(CANNOT, error.problems) from error
    except ConfigException as error:
        raise TrainfleetError(CANNOT, [Problem(where, str(error).strip(), fix)]) from error
    except ApiException as error:
        message = _message(error.body) or f"status {error.status}: {error.reason}"
        if error.status == HTTPStatus.FORBIDDEN:
            fix = "a launcher may, once the stack is applied with this release; or use --token-file"
            raise TokenForbiddenError(CANNOT, [Problem(where, message, fix)]) from error
        if error.status == HTTPStatus.UNAUTHORIZED:
            message = f"rejects the login: {message}"
        raise TrainfleetError(CANNOT, [Problem(where, message, fix)]) from error
    except Exception as error:  # one of many of urllib3's
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        fix += "; a private endpoint answers only in its network"
        raise TrainfleetError(CANNOT, [Problem(where, f"does not answer: {first[:200]}", fix)]) from error


def _settings(login: Login) -> Any:
    """The client's settings with the login of a kubeconfig."""
    from kubernetes import config

    settings = client_settings()
    given = login.kubeconfig
    with login_errors(login.context):
        if isinstance(given, Mapping):
            config.load_kube_config_from_dict(
                dict(given),
                context=login.context,
                client_configuration=settings,
                temp_file_path=str(key_files()),
            )
        else:
            # The client reads KUBECONFIG at its import, and takes an empty one for a file.
            file = str(given or os.environ.get("KUBECONFIG") or "~/.kube/config")
            config.load_kube_config(
                file,
                context=login.context,
                client_configuration=settings,
                temp_file_path=str(key_files()),
            )
    settings.retries = False
    return settings


def _message(body: Any) -> str:
    """The message in a response of an API server; empty if it has none."""
    try:
        return str(json.loads(body)["message"])
    except (ValueError, TypeError, KeyError):
        return ""
