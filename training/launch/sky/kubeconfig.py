"""A platform's context in the kubeconfig that SkyPilot reads. It logs in with the launcher's token.

Login commands (aws, gcloud, kubelogin) are missing where SkyPilot's API server and its managed jobs run
(skypilot#4379).
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from trainfleet.errors import InputError, MissingToolError, Problem, TrainfleetError
from trainfleet.infra.outputs.contract import PlatformOutputs
from trainfleet.training.launch.sky.config import context_name

USER = "trainfleet-launcher"
TIMEOUT_S = 60
_ADDRESS = ("server", "certificate-authority-data", "certificate-authority", "tls-server-name")


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
        document = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
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
    document: Mapping[str, Any], outputs: PlatformOutputs, token: str, *, replace: bool = False
) -> dict[str, Any]:
    """The kubeconfig with the platform's context in it, which logs in with `token`.

    Raises:
        InputError: the outputs have no cluster's address, or the user has another login in a context of this
            name and `replace` is not set.
    """
    name = context_name(outputs)
    cluster = _cluster(outputs)
    user = f"{USER}-{name}"
    theirs = next((each for each in document.get("contexts") or [] if each.get("name") == name), None)
    if theirs is not None and (theirs.get("context") or {}).get("user") != user and not replace:
        user_of_theirs = (theirs.get("context") or {}).get("user")
        what = f"the context `{name}` exists and logs in as `{user_of_theirs}`"
        fix = "--kubeconfig FILE for another file, or --replace to overwrite it (--undo restores it)"
        raise InputError("a context of yours has this name", [Problem("kubeconfig", what, fix)])
    context = {"cluster": name, "user": user, "namespace": outputs.namespace}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        **document,
        "clusters": _put(document.get("clusters"), {"name": name, "cluster": cluster}),
        "users": _put(document.get("users"), {"name": user, "user": {"token": token}}),
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


def fetch_token(outputs: PlatformOutputs) -> str:
    """Read the launcher's token from the cluster, with the contract's login.

    Raises:
        MissingToolError: kubectl is missing.
        TrainfleetError: the cluster does not answer, or has no such Secret.
    """
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise MissingToolError(
            "cannot fetch the token",
            [Problem("kubectl", "is not on the path", "install it, or use --token-file")],
        )
    path = f"/api/v1/namespaces/{outputs.namespace}/secrets/{outputs.launcher_token_secret}"
    with tempfile.TemporaryDirectory() as folder:
        login = ["--kubeconfig", str(_own_login(outputs, Path(folder)))]
        command = [kubectl, *login, f"--request-timeout={TIMEOUT_S // 2}s", "get", "--raw", path]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise TrainfleetError(
                "cannot fetch the token",
                [Problem(outputs.kube_context, f"did not answer within {TIMEOUT_S} s")],
            ) from error
    if done.returncode != 0:
        message = (done.stderr.strip() or "kubectl failed").splitlines()[-1]
        fix = "log in to the cloud, or use --token-file; a private endpoint answers only in its network"
        raise TrainfleetError("cannot fetch the token", [Problem(outputs.kube_context, message, fix)])
    data = (json.loads(done.stdout).get("data") or {}).get("token", "")
    where = f"secret {outputs.namespace}/{outputs.launcher_token_secret}"
    if not data:
        raise TrainfleetError(
            "cannot fetch the token", [Problem(where, "is still empty", "try again in a moment")]
        )
    return checked_token(base64.b64decode(data).decode(), where)


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
        raise InputError(
            "cannot use the token",
            [
                Problem(
                    where, "is not a service account's token", "three parts separated by dots, on one line"
                )
            ],
        )
    return token


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


def _cluster(outputs: PlatformOutputs) -> dict[str, Any]:
    try:
        cluster = json.loads(outputs.kubeconfig)["clusters"][0]["cluster"]
        found = {key: cluster[key] for key in _ADDRESS if key in cluster}
        server = str(found["server"])
    except (ValueError, KeyError, IndexError, TypeError) as error:
        what = (
            "has no cluster address"
            if outputs.kubeconfig
            else "is empty: the stack was created without a kubeconfig"
        )
        raise InputError(
            "cannot write a context",
            [Problem(f"{outputs.name}.kubeconfig", what, "pulumi up, then save its outputs again")],
        ) from error
    if not server.startswith("https://"):
        raise InputError(
            "cannot write a context",
            [
                Problem(
                    f"{outputs.name}.kubeconfig", f"a token is not sent to {server}", "an address with https"
                )
            ],
        )
    return found


def _own_login(outputs: PlatformOutputs, folder: Path) -> Path:
    file = folder / "config"
    file.touch(mode=0o600)
    file.write_text(outputs.kubeconfig, encoding="utf-8")
    return file


def _put(entries: list[dict[str, Any]] | None, entry: dict[str, Any]) -> list[dict[str, Any]]:
    """The entries with this one in place of the one of its name, or last."""
    found = list(entries or [])
    places = [index for index, each in enumerate(found) if each.get("name") == entry["name"]]
    if places:
        found[places[0]] = entry
        return found
    return [*found, entry]
