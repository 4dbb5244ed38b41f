"""`trainfleet kubeconfig`: write a kubeconfig with a token of the launcher, for CI and for SkyPilot's
controllers.

A cloud's own kubeconfig runs a login command, which a controller's pod lacks (skypilot#4379).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainfleet import yaml_limits
from trainfleet.console import EXIT_CODES

if TYPE_CHECKING:
    from trainfleet.infra.outputs.contract import PlatformOutputs
    from trainfleet.infra.outputs.launcher_token import Token

USER = "trainfleet-launcher"

kubeconfig = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)

_HELP = f"""Write a kubeconfig that carries a launcher's token, with rights in the training namespace only.

The platform's outputs have the cluster's address. The token is requested from the cluster through a context
of your own and ends after hours, or is read from a file.
To revoke all tokens, delete the service account `launcher`; `pulumi up --refresh` creates a new one.

[bold]Examples[/]

  trainfleet kubeconfig --platform platform.json --from-cluster my-admin-context --output launcher.kubeconfig

  trainfleet kubeconfig --platform platform.json --from-cluster my-context --hours 2 --output ci.kubeconfig

  trainfleet kubeconfig --platform platform.json --token-file token --output launcher.kubeconfig --json

{EXIT_CODES}
"""

Platform = Annotated[
    Path,
    typer.Option(
        metavar="FILE",
        help="The platform's outputs: pulumi stack output --json > FILE.",
        show_default=False,
    ),
]
Output = Annotated[
    Path,
    typer.Option("--output", "-o", metavar="FILE", help="The kubeconfig to write.", show_default=False),
]
TokenFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="A file with the token.", show_default=False)
]
FromCluster = Annotated[
    str | None,
    typer.Option(
        metavar="CONTEXT",
        help="Request the token by this context of your own kubeconfig.",
        show_default=False,
    ),
]
Hours = Annotated[
    float | None,
    typer.Option(
        help="With --from-cluster: how long the token lasts. The cluster may grant less. Default: 8.",
        min=0.2,
        max=24.0,
        show_default=False,
    ),
]
LongLived = Annotated[
    bool,
    typer.Option(
        "--long-lived",
        help="With --from-cluster: the token that never ends, of a platform with layer.launcher_token.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print what was written as one JSON document.")]


@kubeconfig.command(help=_HELP)
def write(  # noqa: PLR0917 - Typer passes options by name
    platform: Platform,
    output: Output,
    token_file: TokenFile = None,
    from_cluster: FromCluster = None,
    hours: Hours = None,
    long_lived: LongLived = False,
    as_json: Json = False,
) -> None:
    """Write the kubeconfig."""
    from trainfleet.console import err, print_json
    from trainfleet.errors import InputError, Problem
    from trainfleet.files import write_whole
    from trainfleet.infra.outputs.contract import load_outputs
    from trainfleet.infra.outputs.launcher_token import HOURS, Token, read_token

    if (token_file is None) == (from_cluster is None):
        raise InputError(
            "cannot tell where the token is",
            [Problem("", "pass either --token-file or --from-cluster")],
        )
    if silent := [
        Problem(flag, f"has no effect with {other}", "leave it out")
        for flag, other, both in (
            ("--hours", "--token-file", hours is not None and token_file),
            ("--long-lived", "--token-file", long_lived and token_file),
            ("--hours", "--long-lived", hours is not None and long_lived),
        )
        if both
    ]:
        raise InputError("these options exclude each other", silent)
    outputs = load_outputs(platform)
    _refuse_to_overwrite(output)
    document = with_token(outputs.kubeconfig, outputs.kube_context, outputs.namespace, "")
    token = (
        Token(read_token(token_file), None)
        if token_file
        else _fetched(outputs, from_cluster or "", hours or HOURS, long_lived)
    )
    document["users"][0]["user"]["token"] = token.value
    write_whole(output, json.dumps(document, indent=2) + "\n", mode=0o600)
    if as_json:
        print_json(
            {
                "output": str(output),
                "context": outputs.kube_context,
                "namespace": outputs.namespace,
                "user": USER,
                "expires": token.expires.isoformat() if token.expires else None,
            }
        )
    else:
        err().print(
            f"{output}: context {outputs.kube_context}, namespace {outputs.namespace}. "
            f"It contains a token{'' if token_file else f' that {token.end()}'}: protect it like a password."
            + ("" if token.expires is None else " To renew it, run this command again.")
        )


def with_token(text: str, context: str, namespace: str, token: str) -> dict[str, Any]:
    """The kubeconfig in `text` with one user, who has the token and no login command.

    Raises:
        InputError: the platform's outputs have no kubeconfig with a cluster.
    """
    from trainfleet.infra.outputs.launcher_token import cluster_address

    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": context, "cluster": cluster_address(text, "platform.kubeconfig")}],
        "users": [{"name": USER, "user": {"token": token}}],
        "contexts": [
            {"name": context, "context": {"cluster": context, "user": USER, "namespace": namespace}}
        ],
        "current-context": context,
    }


def _fetched(outputs: PlatformOutputs, context: str, hours: float, long_lived: bool) -> Token:
    """The token, by a context of the user's own.

    Raises:
        InputError: the platform has no such account or Secret.
        TrainfleetError: the cluster refuses.
    """
    from trainfleet.errors import InputError, Problem
    from trainfleet.infra.outputs.launcher_token import Login, request_token, secret_token

    if long_lived and not outputs.launcher_token_secret:
        problem = Problem("--long-lived", "the platform has no such token", "set layer.launcher_token: true")
        raise InputError("cannot get a token", [problem])
    if not outputs.launcher_account:
        problem = Problem(
            "--from-cluster", "the platform has no launcher account", "layer.launcher_access: true"
        )
        raise InputError("cannot get a token", [problem])
    login = Login(context)
    if long_lived:
        return secret_token(login, outputs.namespace, outputs.launcher_token_secret)
    return request_token(login, outputs.namespace, outputs.launcher_account, hours)


def _refuse_to_overwrite(output: Path) -> None:
    """Reject an existing kubeconfig with other users than the launcher."""
    import yaml

    from trainfleet.errors import InputError, Problem

    if not output.exists():
        return
    try:
        document = yaml_limits.load(output.read_text(encoding="utf-8"))
        ours = [user["name"] for user in document["users"]] == [USER]
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError):
        ours = False
    if not ours:
        raise InputError(
            "cannot write a kubeconfig",
            [Problem(str(output), "exists and was not written by this command", "choose another file")],
        )
