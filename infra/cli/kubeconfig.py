"""`trainfleet kubeconfig`: write a kubeconfig with the launcher's token, for SkyPilot's controllers and for
CI.

A cloud's own kubeconfig runs a login command, which a controller's pod lacks (skypilot#4379).
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from pathlib import Path
from typing import Annotated, Any

import typer

from trainfleet.console import EXIT_CODES

USER = "trainfleet-launcher"
TIMEOUT_SECONDS = 60
CLUSTER_KEYS = ("server", "certificate-authority-data", "certificate-authority", "tls-server-name")

kubeconfig = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)

_HELP = f"""Write a kubeconfig that carries the launcher's token, with rights in the training namespace only.

The platform's outputs have the cluster's address. The token is read from a file, or from the cluster through
a context of your own.
Delete the Secret `launcher-token` to revoke every such kubeconfig; `pulumi up --refresh` creates a new one.

[bold]Examples[/]

  trainfleet kubeconfig --platform platform.json --from-cluster my-admin-context --output launcher.kubeconfig

  trainfleet kubeconfig --platform platform.json --token-file token --output launcher.kubeconfig --json

{EXIT_CODES}
"""


@kubeconfig.command(help=_HELP)
def write(
    platform: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="The platform's outputs: pulumi stack output --json > FILE.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE", help="The kubeconfig to write.", show_default=False),
    ],
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A file with the token.", show_default=False)
    ] = None,
    from_cluster: Annotated[
        str | None,
        typer.Option(
            metavar="CONTEXT",
            help="Fetch the token with kubectl, by this context of your own kubeconfig.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what was written as one JSON document.")
    ] = False,
) -> None:
    """Write the kubeconfig."""
    from trainfleet.console import err, print_json
    from trainfleet.errors import InputError, Problem
    from trainfleet.files import write_whole
    from trainfleet.infra.outputs.contract import load_outputs

    if (token_file is None) == (from_cluster is None):
        raise InputError(
            "cannot tell where the token is",
            [Problem("", "pass either --token-file or --from-cluster")],
        )
    outputs = load_outputs(platform)
    _refuse_to_overwrite(output)
    document = with_token(outputs.kubeconfig, outputs.kube_context, outputs.namespace, "")
    token = read_token(token_file) if token_file else fetch_token(from_cluster or "", outputs.namespace)
    document["users"][0]["user"]["token"] = token
    write_whole(output, json.dumps(document, indent=2) + "\n", mode=0o600)
    if as_json:
        print_json(
            {
                "output": str(output),
                "context": outputs.kube_context,
                "namespace": outputs.namespace,
                "user": USER,
            }
        )
    else:
        err().print(
            f"{output}: context {outputs.kube_context}, namespace {outputs.namespace}. "
            f"It contains a token: protect it like a password."
        )


def with_token(text: str, context: str, namespace: str, token: str) -> dict[str, Any]:
    """The kubeconfig in `text` with one user, who has the token and no login command.

    Raises:
        InputError: the platform's outputs have no kubeconfig with a cluster.
    """
    from trainfleet.errors import InputError, Problem

    try:
        clusters = json.loads(text)["clusters"]
        cluster = {key: clusters[0]["cluster"][key] for key in CLUSTER_KEYS if key in clusters[0]["cluster"]}
        server = cluster["server"]
    except (ValueError, KeyError, IndexError, TypeError) as error:
        what = "has no cluster address" if text else "is empty: the stack was built without a kubeconfig"
        raise InputError(
            "cannot write a kubeconfig",
            [Problem("platform.kubeconfig", what, "run pulumi up, then save its outputs again")],
        ) from error
    if not str(server).startswith("https://"):
        raise InputError(
            "cannot write a kubeconfig",
            [Problem("platform.kubeconfig", f"a token is not sent to {server}", "an address with https")],
        )
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": context, "cluster": cluster}],
        "users": [{"name": USER, "user": {"token": token}}],
        "contexts": [
            {"name": context, "context": {"cluster": context, "user": USER, "namespace": namespace}}
        ],
        "current-context": context,
    }


def read_token(path: Path) -> str:
    """The token in a file.

    Raises:
        InputError: no such file, or it does not contain the token of a service account.
    """
    from trainfleet.errors import InputError, Problem

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            "cannot read the token", [Problem(str(path), getattr(error, "strerror", None) or "is not text")]
        ) from error
    return _checked(text.strip(), str(path))


def fetch_token(context: str, namespace: str) -> str:
    """The token in the launcher's Secret, read with the caller's own login.

    Raises:
        MissingToolError: there is no kubectl.
        TrainfleetError: the cluster does not answer, or the Secret is missing or still empty.
    """
    from trainfleet.errors import MissingToolError, Problem, TrainfleetError
    from trainfleet.infra.kubernetes.names import LAUNCHER_TOKEN

    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise MissingToolError(
            "cannot fetch the token",
            [Problem("kubectl", "is not on the path", "install it, or pass --token-file")],
        )
    path = f"/api/v1/namespaces/{namespace}/secrets/{LAUNCHER_TOKEN}"
    command = [
        kubectl,
        "--context",
        context,
        f"--request-timeout={TIMEOUT_SECONDS // 2}s",
        "get",
        "--raw",
        path,
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise TrainfleetError(
            "cannot fetch the token",
            [Problem(context, f"the cluster did not answer within {TIMEOUT_SECONDS} s")],
        ) from error
    if done.returncode != 0:
        reason = (done.stderr.strip() or "kubectl failed").splitlines()[-1]
        raise TrainfleetError(
            "cannot fetch the token",
            [Problem(context, reason, "the context's user needs permission to read secrets there")],
        )
    data = (json.loads(done.stdout).get("data") or {}).get("token", "")
    if not data:
        raise TrainfleetError(
            "cannot fetch the token",
            [Problem(f"secret {namespace}/{LAUNCHER_TOKEN}", "is still empty", "try again in a moment")],
        )
    return _checked(base64.b64decode(data).decode(), f"secret {namespace}/{LAUNCHER_TOKEN}")


def _checked(token: str, where: str) -> str:
    """A service account's token has three parts, separated by dots. A cluster would answer anything else with
    401.
    """
    from trainfleet.errors import InputError, Problem

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


def _refuse_to_overwrite(output: Path) -> None:
    """Reject an existing kubeconfig with other users than the launcher."""
    import yaml

    from trainfleet.errors import InputError, Problem

    if not output.exists():
        return
    try:
        document = yaml.safe_load(output.read_text(encoding="utf-8"))
        ours = [user["name"] for user in document["users"]] == [USER]
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError):
        ours = False
    if not ours:
        raise InputError(
            "cannot write a kubeconfig",
            [Problem(str(output), "exists and was not written by this command", "choose another file")],
        )
