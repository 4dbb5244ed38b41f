"""`trainfleet ci`: the steps of continuous delivery that no other command has. Each also works by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainfleet.console import EXIT_CODES

ci = typer.Typer(
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help=f"""Apply a reviewed plan, check an approval, publish a platform's outputs, and renew a job's token.

The workflows of `trainfleet init` call these commands; they work by hand, too.

[bold]Examples[/]

  pulumi preview --stack dev --refresh --save-plan plan.json --event-log preview.jsonl

  trainfleet diff dev --events preview.jsonl --plan plan.json

  trainfleet ci apply dev --plan plan.json --sha256 DIGEST

  trainfleet ci publish dev --to s3://my-state

  trainfleet launch workloads/spirals.yaml --on kuberay --stack s3://my-state/contracts/dev.json

{EXIT_CODES}
""",
)
Stack = Annotated[str, typer.Argument(metavar="STACK", help="A stack of this project.")]


@ci.command()
def apply(
    stack: Stack,
    plan: Annotated[
        Path, typer.Option(metavar="FILE", help="The plan that `pulumi preview --save-plan` wrote.")
    ],
    sha256: Annotated[
        str, typer.Option("--sha256", metavar="DIGEST", help="The digest that the review shows.")
    ],
    policy_pack: Annotated[
        list[Path] | None, typer.Option(metavar="DIR", help="Check this policy pack; repeatable.")
    ] = None,
) -> None:
    """Apply exactly a reviewed plan: verify its digest, then run `pulumi up --plan`.

    Refused if an interrupted apply left operations whose result the state does not know. After a failure,
    the message says how to continue.
    """
    from trainfleet.ci.apply import apply as run

    run(stack, plan, sha256, policy_pack or ())


@ci.command()
def approval(
    pull_request: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="The output of `gh pr view NUMBER --json number,author,labels,reviews,headRefOid`.",
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check that a destructive pull request has the label `destructive-change` and an approval of its last
    commit by somebody other than its author; exit code 1 if not.
    """
    from trainfleet.ci.approval import check_approved, read_pull_request
    from trainfleet.console import print_json

    document = read_pull_request(pull_request)
    found = check_approved(document)
    if as_json:
        print_json({"number": document["number"], "approved_by": found})
    else:
        typer.echo(f"Pull request #{document['number']} was approved by {', '.join(found)}.")


@ci.command()
def publish(
    stack: Stack,
    to: Annotated[
        str, typer.Option(metavar="URL", help="A bucket, or the URL of a Pulumi state backend in one.")
    ],
) -> None:
    """Write the platform's outputs to `contracts/STACK.json` of a bucket and print the URL, which `--stack`
    of the other commands reads.

    The outputs contain a kubeconfig: use a bucket that trainings cannot write, such as that of the state.
    """
    from trainfleet.ci.publish import publish as write

    typer.echo(write(stack, to))


@ci.command()
def token(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write it, readable for you alone.")],
    audience: Annotated[
        str,
        typer.Option(
            metavar="AUDIENCE", help="For whom: `api://AzureADTokenExchange` is Microsoft Entra ID."
        ),
    ],
    every: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=1,
            help="Write a new one that often until the command is ended, for example by the end of the job.",
        ),
    ] = None,
) -> None:
    """Write the OIDC token of this job of GitHub Actions into a file, for clients that read one, such as
    those of Azure's storage and key vaults (AZURE_FEDERATED_TOKEN_FILE). A token is valid for minutes.
    """
    import threading

    from trainfleet.ci.job_token import renew_token, write_token

    write_token(file, audience)
    if every is not None:
        renew_token(file, audience, every, threading.Event())
