"""The tokens with which SkyPilot logs in to a platform: requested with the login that `trainfleet sky setup`
wrote next to the context, and kept in a file of the user until they are about to end.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trainfleet.errors import InputError, Problem
from trainfleet.files import write_whole
from trainfleet.infra.outputs.launcher_token import Login, Token, request_token
from trainfleet.training.launch.sky import credential_plugin
from trainfleet.training.launch.sky.credential_plugin import EARLY
from trainfleet.training.launch.sky.kubeconfig import CREDENTIAL_VERSION, LOGIN_USER


def credential(
    document: Mapping[str, Any],
    context: str,
    account: str,
    hours: float,
    env: Mapping[str, str],
    *,
    fresh: bool = False,
) -> Token:
    """A token for a context that `trainfleet sky setup` wrote.

    Args:
        document: the kubeconfig.
        context: a context in it, whose cluster and namespace are used.
        account: the service account in that namespace.
        hours: how long a new token lasts.
        env: the user's environment; HOME holds the kept tokens.
        fresh: whether kept tokens are not used, here and by kubectl, because they may have been revoked.

    Raises:
        InputError: the kubeconfig has no such context or login.
        MissingToolError: the package `kubernetes` is missing.
        TrainfleetError: the cluster does not grant a token.
    """
    login, namespace = _login(document, context)
    text = json.dumps(login)
    digest = hashlib.sha256(f"{text} {namespace} {account} {hours:g}".encode()).hexdigest()
    kept = _folder(env) / f"{digest[:32]}.json"
    if not fresh and (token := _kept(kept, datetime.now(UTC))):
        return token
    token = request_token(Login(context, login), namespace, account, hours)
    now = datetime.now(UTC)
    _folder(env).mkdir(mode=0o700, parents=True, exist_ok=True)
    write_whole(kept, json.dumps({**status(token), "since": now.isoformat()}), 0o600)
    for stale in _folder(env).glob(f"{credential_plugin.PREFIX}*") if fresh else ():
        stale.unlink(missing_ok=True)
    return token


def status(token: Token) -> dict[str, str]:
    """The token as the status of an ExecCredential."""
    end = {} if token.expires is None else {"expirationTimestamp": f"{token.expires:%Y-%m-%dT%H:%M:%SZ}"}
    return {"token": token.value, **end}


def exec_credential(token: Token) -> dict[str, Any]:
    """What a credential plugin prints."""
    return {"apiVersion": CREDENTIAL_VERSION, "kind": "ExecCredential", "status": status(token)}


def forget(env: Mapping[str, str]) -> None:
    """Delete the kept tokens."""
    shutil.rmtree(_folder(env), ignore_errors=True)


def _login(document: Mapping[str, Any], context: str) -> tuple[dict[str, Any], str]:
    """A kubeconfig of the user who requests tokens, and the context's namespace."""
    there = _named(document, "contexts", context).get("context") or {}
    cluster = _named(document, "clusters", str(there.get("cluster")))
    user = _named(document, "users", f"{LOGIN_USER}-{context}")
    if not (there and cluster and user):
        what = f"the kubeconfig has no login for the context `{context}`"
        problem = Problem("kubeconfig", what, "write it again with: trainfleet sky setup")
        raise InputError("cannot get a token", [problem])
    parts = {"cluster": cluster["name"], "user": user["name"]}
    login = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [cluster],
        "users": [user],
        "contexts": [{"name": context, "context": parts}],
        "current-context": context,
    }
    return login, str(there.get("namespace") or "default")


def _named(document: Mapping[str, Any], part: str, name: str) -> dict[str, Any]:
    return next((dict(each) for each in document.get(part) or [] if each.get("name") == name), {})


def _folder(env: Mapping[str, str]) -> Path:
    return credential_plugin.kept_tokens(Path(env.get("HOME", "~")).expanduser())


def _kept(file: Path, now: datetime) -> Token | None:
    """The token in a file, unless it is about to end or the file cannot be read."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        expires = datetime.fromisoformat(found["expirationTimestamp"].replace("Z", "+00:00"))
        since = datetime.fromisoformat(found["since"])
        token = Token(str(found["token"]), expires)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return token if expires - now > min(EARLY, (expires - since) / 2) else None
