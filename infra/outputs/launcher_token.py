"""Tokens of a platform's account `launcher`, and the cluster that they are for. Imports no Pulumi.

A token is requested from the cluster (TokenRequest) with the user's own login and ends after hours. With
`layer.launcher_token`, the cluster also has one in a Secret, which never ends.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trainfleet.errors import InputError, MissingToolError, Problem, TrainfleetError

TIMEOUT_S = 60
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


def request_token(login: Sequence[str], namespace: str, account: str, hours: float, where: str) -> Token:
    """Request a token of an account.

    Args:
        login: kubectl's flags that choose the cluster and the user who asks.
        hours: how long it shall last; the cluster may grant less.
        where: the cluster, for messages.

    Raises:
        MissingToolError: kubectl is missing.
        TokenForbiddenError: the user may not.
        TrainfleetError: the cluster does not answer, or has no such account.
    """
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    spec = {"expirationSeconds": round(hours * 3600)}
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    text = _kubectl([*login, "create", "--raw", path, "-f", "-"], where, json.dumps(body))
    status = json.loads(text)["status"]
    expires = datetime.fromisoformat(status["expirationTimestamp"].replace("Z", "+00:00")).astimezone(UTC)
    return Token(checked_token(status["token"], where), expires)


def secret_token(login: Sequence[str], namespace: str, secret: str, where: str) -> Token:
    """Read the token that never ends from its Secret.

    Raises:
        MissingToolError: kubectl is missing.
        TrainfleetError: the cluster does not answer, or has no such Secret, or it is still empty.
    """
    path = f"/api/v1/namespaces/{namespace}/secrets/{secret}"
    data = (json.loads(_kubectl([*login, "get", "--raw", path], where)).get("data") or {}).get("token", "")
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


def _kubectl(arguments: Sequence[str], where: str, given: str = "") -> str:
    program = shutil.which("kubectl")
    if program is None:
        raise MissingToolError(
            CANNOT, [Problem("kubectl", "is not on the path", "install it, or use --token-file")]
        )
    command = [program, f"--request-timeout={TIMEOUT_S // 2}s", *arguments]
    try:
        # No terminal: kubectl would ask for a user name where the kubeconfig has no login.
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S, input=given
        )
    except subprocess.TimeoutExpired as error:
        raise TrainfleetError(CANNOT, [Problem(where, f"did not answer within {TIMEOUT_S} s")]) from error
    if done.returncode == 0:
        return done.stdout
    message = (done.stderr.strip() or "kubectl failed").splitlines()[-1]
    if "(Forbidden)" in message or "forbidden" in message:
        fix = "a launcher may, once the stack is applied with this release; or use --token-file"
        raise TokenForbiddenError(CANNOT, [Problem(where, message, fix)])
    fix = "log in to the cloud, or use --token-file; a private endpoint answers only in its network"
    raise TrainfleetError(CANNOT, [Problem(where, message, fix)])
