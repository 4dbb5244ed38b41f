"""Logins of a kubeconfig: what their commands report, which the Kubernetes client only logs, and how to renew
one that has ended.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from trainfleet import yaml_limits
from trainfleet.errors import InputError, Problem

CLOUD_LOGINS = {
    "aws": "aws sso login",
    "gke-gcloud-auth-plugin": "gcloud auth login",
    "kubelogin": "az login",
}
"""How to log in to a cloud again, by the login command of its kubeconfig."""
LOG_IN_AGAIN = "log in to the cluster again"


@contextlib.contextmanager
def login_errors(name: str) -> Iterator[None]:
    """Raise what a login command reports: the client only logs it, and then calls without a login.

    Raises:
        InputError: the command failed, or is missing.
    """
    messages: list[str] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
    if messages:
        lines = [" ".join(line.split()) for line in messages[-1].splitlines() if line.strip()]
        what = f"its login grants no token: {lines[-1] if lines else 'it printed nothing'}"
        raise InputError("cannot log in to the cluster", [Problem(name, what, "log in to the cloud again")])


def client_settings() -> Any:
    """The settings of a Kubernetes client, for `load_kube_config`."""
    from kubernetes import client

    settings = client.Configuration()
    settings.retries = False
    # NOTE: the client reads HTTPS_PROXY, and drops what it reads from NO_PROXY (kubernetes 35).
    settings.no_proxy = os.environ.get("no_proxy") or os.environ.get("NO_PROXY")
    return settings


def renewal(user: str, kubeconfig: str = "") -> str:
    """How a user gets a new login.

    Args:
        user: the name of a user in the user's own kubeconfig; empty: the login of `kubeconfig`.
        kubeconfig: that of a platform's contract.
    """
    if user.startswith("trainfleet-launcher-"):
        return "log in to the cloud, then trainfleet sky setup --stack FILE"
    if user == "trainfleet-launcher":
        return "write its kubeconfig again with trainfleet kubeconfig"
    documents = _own() if user else [_parsed(kubeconfig)]
    commands = [
        Path(str(_part(_part(each, "user"), "exec").get("command") or "")).name
        for document in documents
        for each in _entries(document, "users")
        if not user or each.get("name") == user
    ]
    return next((CLOUD_LOGINS[each] for each in commands if each in CLOUD_LOGINS), LOG_IN_AGAIN)


def _own() -> list[dict[str, Any]]:
    """The user's kubeconfig, which may be several files."""
    found = []
    for name in (os.environ.get("KUBECONFIG") or "~/.kube/config").split(os.pathsep):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            found.append(_parsed(Path(name).expanduser().read_text(encoding="utf-8")))
    return found


def _parsed(text: str) -> dict[str, Any]:
    try:
        document = yaml_limits.load(text)
    except yaml.YAMLError:
        return {}
    return document if isinstance(document, dict) else {}


def _entries(document: dict[str, Any], key: str) -> list[dict[str, Any]]:
    found = document.get(key)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _part(document: dict[str, Any], key: str) -> dict[str, Any]:
    found = document.get(key)
    return found if isinstance(found, dict) else {}
