"""A platform's context in the kubeconfig that SkyPilot reads. It logs in as the platform's launcher: by
`trainfleet sky token`, which requests tokens with the user's cloud login, or with a token from a file.

Login commands (aws, gcloud, kubelogin) are missing where a team's SkyPilot API server and pods of managed
jobs run (skypilot#4379); there a token is needed.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from trainfleet import yaml_limits
from trainfleet.errors import InputError, Problem
from trainfleet.infra.outputs.contract import PlatformOutputs
from trainfleet.infra.outputs.launcher_token import cluster_address
from trainfleet.training.launch.sky import credential_plugin
from trainfleet.training.launch.sky.config import context_name

USER = "trainfleet-launcher"
# NOTE: SkyPilot knows the owner of its clusters by this name (sky/clouds/kubernetes.py).
LOGIN_USER = "trainfleet-login"
"""The user who requests tokens: the login of the contract."""
CREDENTIAL_VERSION = "client.authentication.k8s.io/v1"


@dataclass(frozen=True)
class Requested:
    """A context whose tokens are requested when they are needed."""

    hours: float


def kubeconfig_path(env: Mapping[str, str]) -> Path:
    """The kubeconfig that SkyPilot reads: the first of KUBECONFIG, else the one in the home folder."""
    path = env.get("KUBECONFIG", "").split(os.pathsep)[0]
    return Path(path).expanduser() if path else Path(env.get("HOME", "~")).expanduser() / ".kube" / "config"


def read_kubeconfig(path: Path) -> dict[str, Any]:
    """A kubeconfig's document; empty if the file does not exist.

    Raises:
        InputError: the file is not a kubeconfig.
    """
    try:
        document = yaml_limits.load(path.read_text(encoding="utf-8")) or {}
    except FileNotFoundError:
        document = {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(
            "cannot read the kubeconfig", [Problem(str(path), str(error).splitlines()[0])]
        ) from error
    parts = ("clusters", "users", "contexts")
    if not isinstance(document, dict) or any(
        not isinstance(document.get(part) or [], list) for part in parts
    ):
        raise InputError(
            "cannot read the kubeconfig",
            [Problem(str(path), "is not a kubeconfig", "move it, or use another with --kubeconfig")],
        )
    return document


def context_names(document: Mapping[str, Any]) -> list[str]:
    """The contexts of a kubeconfig."""
    return [str(each.get("name")) for each in document.get("contexts") or []]


def with_context(
    document: Mapping[str, Any],
    outputs: PlatformOutputs,
    token: str | Requested,
    *,
    file: Path,
    replace: bool = False,
) -> dict[str, Any]:
    """The kubeconfig, of the path `file`, with the platform's context in it, which logs in with `token`.

    Raises:
        InputError: the outputs have no cluster's address, or the user has another login in a context of this
            name and `replace` is not set.
    """
    name = context_name(outputs)
    cluster = cluster_address(outputs.kubeconfig, f"{outputs.name}.kubeconfig")
    user = f"{USER}-{name}"
    theirs = next((each for each in document.get("contexts") or [] if each.get("name") == name), None)
    if theirs is not None and (theirs.get("context") or {}).get("user") != user and not replace:
        user_of_theirs = (theirs.get("context") or {}).get("user")
        what = f"the context `{name}` exists and logs in as `{user_of_theirs}`"
        fix = "--kubeconfig FILE for another file, or --replace to overwrite it (--undo restores it)"
        raise InputError("a context of yours has this name", [Problem("kubeconfig", what, fix)])
    context = {"cluster": name, "user": user, "namespace": outputs.namespace}
    if isinstance(token, Requested):
        login: dict[str, Any] = {"exec": _token_command(outputs, file, token.hours)}
        asks = {"name": f"{LOGIN_USER}-{name}", "user": json.loads(outputs.kubeconfig)["users"][0]["user"]}
        users = _put(document.get("users"), asks)
    else:
        login, users = {"token": token}, list(document.get("users") or [])
    return {
        "apiVersion": "v1",
        "kind": "Config",
        **document,
        "clusters": _put(document.get("clusters"), {"name": name, "cluster": cluster}),
        "users": _put(users, {"name": user, "user": login}),
        "contexts": _put(document.get("contexts"), {"name": name, "context": context}),
        "current-context": document.get("current-context") or name,
    }


def uses_own_context(outputs: PlatformOutputs) -> bool:
    """Whether SkyPilot uses the context that the user has: the platform has no launcher account, or its
    contract names no login with which its token could be fetched (an existing cluster).
    """
    if not outputs.launcher_account:
        return True
    try:
        users = json.loads(outputs.kubeconfig)["users"]
    except (ValueError, KeyError, TypeError):
        return False
    return not any(each.get("user") for each in users)


def _token_command(outputs: PlatformOutputs, file: Path, hours: float) -> dict[str, Any]:
    """The credential plugin of a context."""
    options = {
        "--kubeconfig": str(file.absolute()),
        "--context": context_name(outputs),
        "--account": outputs.launcher_account,
        "--hours": f"{hours:g}",
    }
    # It needs the standard library only, and starts in half the time without the others.
    program = ["-I", "-S", credential_plugin.__file__]
    return {
        "apiVersion": CREDENTIAL_VERSION,
        "command": sys.executable,
        "args": [*program, *(part for option in options.items() for part in option)],
        "interactiveMode": "Never",
        "installHint": "this context was written by `trainfleet sky setup`; run it again",
    }


def masked(document: Mapping[str, Any]) -> str:
    """A kubeconfig as YAML, without its secrets."""
    secret = ("token", "client-key-data", "client-certificate-data", "password", "certificate-authority-data")

    def hide(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {
                key: f"<{len(str(member))} letters>" if key in secret else hide(member)
                for key, member in value.items()
            }
        return [hide(member) for member in value] if isinstance(value, list) else value

    return yaml.safe_dump(hide(document), sort_keys=False, width=150) if document else ""


def _put(entries: list[dict[str, Any]] | None, entry: dict[str, Any]) -> list[dict[str, Any]]:
    """The entries with this one in place of the one of its name, or last."""
    found = list(entries or [])
    places = [index for index, each in enumerate(found) if each.get("name") == entry["name"]]
    if places:
        found[places[0]] = entry
        return found
    return [*found, entry]
