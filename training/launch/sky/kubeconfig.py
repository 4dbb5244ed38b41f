"""A platform's context in the kubeconfig that SkyPilot reads: the launcher's token, never a login command.

Used by `trainfleet sky setup`. A login command (aws, gcloud, kubelogin) is not there where SkyPilot's API
server or its managed
jobs run (skypilot#4379). Easy to get wrong: a context of that name may be there already with its owner's own
login, as gcloud
writes it; it is not ours to replace without being told.
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
    """The kubeconfig that SkyPilot reads: the first of KUBECONFIG, else the one below the home folder."""
    said = env.get("KUBECONFIG", "").split(os.pathsep)[0]
    return Path(said).expanduser() if said else Path(env.get("HOME", "~")).expanduser() / ".kube" / "config"


def read_kubeconfig(path: Path) -> dict[str, Any]:
    """A kubeconfig's document; an empty one where there is no file.

    Raises:
        InputError: the file is no kubeconfig.
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
            [Problem(str(path), "is no kubeconfig", "move it away, or name another with --kubeconfig")],
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
        InputError: the outputs have no cluster's address, or a context of this name logs in another way and
        `replace` is not said.
    """
    name = context_name(outputs)
    cluster = _cluster(outputs)
    user = f"{USER}-{name}"
    theirs = next((each for each in document.get("contexts") or [] if each.get("name") == name), None)
    if theirs is not None and (theirs.get("context") or {}).get("user") != user and not replace:
        what = f"there is a context `{name}` already, which logs in as `{(theirs.get('context') or {}).get('user')}`"
        fix = "--kubeconfig FILE for a file of its own, or --replace to write over it (--undo brings it back)"
        raise InputError("will not replace a context that is yours", [Problem("kubeconfig", what, fix)])
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


def fetch_token(outputs: PlatformOutputs, own_context: str | None = None) -> str:
    """The launcher's token, read from the cluster with the caller's own login: the contract's, or a context
    of the caller's kubeconfig.

    Raises:
        MissingToolError: there is no kubectl.
        TrainfleetError: the cluster does not answer, or has no such Secret.
    """
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise MissingToolError(
            "cannot fetch the token",
            [Problem("kubectl", "is not on the path", "install it, or give --token-file")],
        )
    path = f"/api/v1/namespaces/{outputs.namespace}/secrets/{outputs.launcher_token_secret}"
    with tempfile.TemporaryDirectory() as folder:
        login = (
            ["--context", own_context]
            if own_context
            else ["--kubeconfig", str(_own_login(outputs, Path(folder)))]
        )
        command = [kubectl, *login, f"--request-timeout={TIMEOUT_S // 2}s", "get", "--raw", path]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise TrainfleetError(
                "cannot fetch the token",
                [Problem(outputs.kube_context, f"did not answer within {TIMEOUT_S} s")],
            ) from error
    if done.returncode != 0:
        said = (done.stderr.strip() or "kubectl failed").splitlines()[-1]
        fix = "log in to the cloud first, or give --token-file; a private control plane answers only inside its network"
        raise TrainfleetError(
            "cannot fetch the token", [Problem(own_context or outputs.kube_context, said, fix)]
        )
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
        InputError: no such file, or no token in it.
    """
    try:
        return checked_token(path.read_text(encoding="utf-8").strip(), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            "cannot read the token", [Problem(str(path), getattr(error, "strerror", None) or "is not text")]
        ) from error


def checked_token(token: str, where: str) -> str:
    """A service account's token has three parts with dots between; anything else would be answered with 401
    much later.

    Raises:
        InputError: it has not.
    """
    if token.count(".") != 2 or not all(token.split(".")) or any(letter.isspace() for letter in token):
        raise InputError(
            "cannot use the token",
            [
                Problem(
                    where, "is not a service account's token", "three parts with dots between, on one line"
                )
            ],
        )
    return token


def masked(document: Mapping[str, Any]) -> str:
    """A kubeconfig as it may be shown: what is secret in it replaced by a word."""
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
            "holds no cluster's address"
            if outputs.kubeconfig
            else "is empty: the stack was built without a kubeconfig at hand"
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
    """The entries with this one in the place of its namesake, or last."""
    found = list(entries or [])
    places = [index for index, each in enumerate(found) if each.get("name") == entry["name"]]
    if places:
        found[places[0]] = entry
        return found
    return [*found, entry]
