"""`trainfleet sky`: configure and check SkyPilot for the platforms. Only `sky check` imports SkyPilot."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainfleet.console import EXIT_CODES
from trainfleet.errors import InputError, Problem
from trainfleet.training.cli.options import AliasedCommand, Json, Stacks
from trainfleet.training.cli.sky_options import (
    Hours,
    JsonWithYes,
    Kubeconfig,
    Managed,
    Print,
    Quick,
    Replace,
    Server,
    TokenFile,
    Undo,
    Yes,
)
from trainfleet.training.launch.sky.tokens import HOURS, LEAST_HOURS, MOST_HOURS

if TYPE_CHECKING:
    from trainfleet.training.launch.platform_outputs import NamedPlatform, PlatformOutputs
    from trainfleet.training.launch.sky.configure import Change, Setup
    from trainfleet.training.launch.sky.kubeconfig import Requested

HELP = f"""Configure SkyPilot for the platforms' clusters, and check that it can use them.

[bold]Examples[/]

    trainfleet sky setup --stack aws-prod.json --stack gcp-prod.json

    trainfleet sky check --stack aws-prod.json --quick

    trainfleet sky setup --undo

{EXIT_CODES}"""

sky = typer.Typer(
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help=HELP,
)


@sky.command(cls=AliasedCommand, epilog=EXIT_CODES)
def setup(  # noqa: PLR0917 - Typer passes options by name
    stack: Stacks = None,
    token_file: TokenFile = None,
    hours: Hours = None,
    kubeconfig: Kubeconfig = None,
    replace: Replace = False,
    managed: Managed = False,
    server: Server = None,
    show: Print = False,
    undo: Undo = False,
    yes: Yes = False,
    as_json: JsonWithYes = False,
) -> None:
    """Write the platforms' contexts into the kubeconfig, and their settings into SkyPilot's configuration.

    A context logs in as the platform's restricted launcher account, with tokens that end after hours. New
    ones are requested with your own cloud login, as long as that is valid. The difference is shown first.
    Your own settings and comments stay. Both files are written, or none.

    [bold]Examples[/]

    trainfleet sky setup --stack aws-prod.json --stack gcp-prod.json

    trainfleet sky setup --stack aws-prod.json --token-file aws-prod=token --yes

    trainfleet sky setup --stack aws-prod.json --token-file aws-prod=token --server for-the-server

    trainfleet sky setup --undo
    """
    from trainfleet.training.launch.platform_outputs import load_platforms
    from trainfleet.training.launch.sky import configure

    _require_consistent(server, show=show, undo=undo, kubeconfig=kubeconfig, replace=replace, hours=hours)
    if undo:
        _undo(yes, as_json)
        return
    if server is not None:
        named = load_platforms(stack or ())
        _for_a_server(server, named, token_file or [], managed=managed, show=show, as_json=as_json)
        return
    platforms = _with_logins(load_platforms(stack or ()), token_file or [], hours)
    found = configure.prepare(platforms, os.environ, kubeconfig=kubeconfig, replace=replace, managed=managed)
    _write(found, platforms, yes, as_json, next_steps=_next_steps(kubeconfig, managed))


def _write(
    found: Setup,
    platforms: list[tuple[PlatformOutputs, str | Requested | None]],
    yes: bool,
    as_json: bool,
    *,
    next_steps: list[str],
) -> None:
    """Write the changes of a setup after they are confirmed."""
    from trainfleet.training.launch.sky import configure

    files = [str(change.file) for change in found.changes]
    tokens = _first_tokens(platforms, found.changes[0])
    if found.empty:
        _report(
            {"written": [], "contexts": list(found.contexts)},
            as_json,
            [f"{' and '.join(files)} are up to date", *tokens],
        )
        return
    differences = [change.difference() for change in found.changes if not change.empty]
    if found.comments_lost:
        differences.append(
            f"{files[1]} cannot be edited in place: comments are lost, as the difference shows\n"
        )
    _confirm(differences, yes, as_json)
    configure.apply(found)
    written = [str(change.file) for change in found.changes if not change.empty]
    lines = [
        *(f"written: {file}" for file in written),
        f"contexts: {', '.join(found.contexts)}",
        *tokens,
        *next_steps,
    ]
    _report({"written": written, "contexts": list(found.contexts)}, as_json, lines)


def _require_consistent(
    server: Path | None,
    *,
    show: bool,
    undo: bool,
    kubeconfig: Path | None,
    replace: bool,
    hours: float | None,
) -> None:
    """Reject options that another one silences, and files that a team's server never reads.

    Raises:
        InputError: all of them.
    """
    from trainfleet.training.launch.sky.configure import config_path
    from trainfleet.training.launch.sky.server import remote_endpoint, shown

    given = {"--undo": undo, "--kubeconfig": kubeconfig is not None, "--replace": replace}
    given["--hours"] = hours is not None
    what = "--server writes new files, with tokens from files"
    problems = [Problem(flag, what, "leave it out") for flag, value in given.items() if value and server]
    if show and server is None:
        problems.append(Problem("--print", "prints what --server writes", "add --server FOLDER"))
    endpoint = remote_endpoint(os.environ, config_path(os.environ))
    if endpoint and server is None and not undo:
        what = f"SkyPilot uses the server at {shown(endpoint)}, which reads no file of this machine"
        fix = "nothing to set up here; its administrator runs: trainfleet sky setup --server FOLDER"
        problems.append(Problem("", what, fix))
    if problems:
        raise InputError("the setup cannot be made as requested", problems)


def _for_a_server(
    folder: Path,
    platforms: list[NamedPlatform],
    token_files: list[str],
    *,
    managed: bool,
    show: bool,
    as_json: bool,
) -> None:
    """Write what the administrator of a team's server installs, and say how; or print the Helm values."""
    from trainfleet.training.launch.sky import server_files as made
    from trainfleet.training.launch.sky.run_spec import by_name

    if show:  # the values hold no token, so none is fetched
        without_tokens = [(outputs, "") for _, outputs in by_name(platforms)]
        sys.stdout.write(made.server_files(without_tokens, managed=managed)[made.VALUES])
        return
    files = made.server_files(_with_logins(platforms, token_files, None), managed=managed)
    written = [str(file) for file in made.write_server_files(folder, files)]
    commands = made.how_to_install(folder)
    lines = [*(f"written: {file}" for file in written), *commands]
    _report({"written": written, "commands": commands}, as_json, lines)


def _undo(yes: bool, as_json: bool) -> None:
    """Restore the files from before the first setup."""
    from trainfleet.training.launch.sky import configure
    from trainfleet.training.launch.sky.login import forget

    changes = configure.undo(os.environ)
    _confirm([change.difference() for change in changes if not change.empty], yes, as_json)
    configure.apply_undo(changes, os.environ)
    forget(os.environ)
    _report(
        {"undone": [str(change.file) for change in changes]},
        as_json,
        [f"restored: {change.file}" for change in changes],
    )


def _next_steps(kubeconfig: Path | None, managed: bool) -> list[str]:
    """What to run after the setup, so that SkyPilot reads what was written."""
    from trainfleet.training.launch.sky.server import answers

    lines = ["next: trainfleet sky check"]
    if managed and answers(os.environ):
        lines.append("SkyPilot's server is running and reads this when it starts: sky api stop")
    if kubeconfig is not None:
        lines.append(f"SkyPilot reads it with: export KUBECONFIG={kubeconfig}")
    return lines


@sky.command(cls=AliasedCommand, epilog=EXIT_CODES)
def check(
    stack: Stacks = None,
    quick: Quick = False,
    as_json: Json = False,
) -> None:
    """Check each platform's context with a small SkyPilot task, and report what is missing.

    Without --quick, a one-CPU pod imports Trainfleet, Ray and torch in the platform's image and is deleted.

    [bold]Examples[/]

    trainfleet sky check --stack aws-prod.json --stack gcp-prod.json

    trainfleet sky check --stack aws-prod.json --quick --json
    """
    from trainfleet.console import out, print_json
    from trainfleet.errors import TrainfleetError
    from trainfleet.training.launch.platform_outputs import load_platforms
    from trainfleet.training.launch.sky.probe import probe
    from trainfleet.training.launch.sky.run_spec import by_name

    progress = (lambda _: None) if as_json else _progress
    with contextlib.redirect_stdout(sys.stderr):  # stdout is for the result, not for SkyPilot's output
        reports = [
            probe(name, outputs, os.environ, quick=quick, progress=progress)
            for name, outputs in by_name(load_platforms(stack or ()))
        ]
    if as_json:
        print_json([report.as_json() for report in reports])
    else:
        for report in reports:
            out().print(report.line(), soft_wrap=True, markup=False)
    if problems := [
        Problem(report.context, each.what, each.fix) for report in reports for each in report.problems
    ]:
        raise TrainfleetError("some contexts cannot be used", problems)


def _with_logins(
    named_platforms: list[NamedPlatform], texts: list[str], hours: float | None
) -> list[tuple[PlatformOutputs, str | Requested | None]]:
    """Each platform with a token from its file, or as one whose tokens are requested; None where the user has
    a context.
    """
    from trainfleet.training.launch.sky.kubeconfig import Requested, uses_own_context
    from trainfleet.training.launch.sky.run_spec import by_name
    from trainfleet.training.launch.sky.tokens import read_token

    platforms = by_name(named_platforms)
    files = {}
    for text in texts:
        name, equals, file = text.partition("=")
        if not equals or name not in dict(platforms):
            fix = f"STACK=FILE with STACK: {', '.join(dict(platforms))}"
            problem = Problem(f"--token-file {text}", "does not name a platform of --stack", fix)
            raise InputError("a token is for an unknown platform", [problem])
        files[name] = Path(file)
    if unnamed := [name for name, outputs in platforms if not outputs.kube_context]:
        problems = [
            Problem(
                name,
                "its outputs have no context",
                "set kubernetes.context in its spec, and apply it",
            )
            for name in unnamed
        ]
        raise InputError("a platform has no cluster", problems)
    found: list[tuple[PlatformOutputs, str | Requested | None]] = []
    for name, outputs in platforms:
        if name in files:
            found.append((outputs, read_token(files[name])))
        else:
            found.append((outputs, None if uses_own_context(outputs) else Requested(hours or HOURS)))
    if hours is not None and not any(isinstance(login, Requested) for _, login in found):
        what = "has no effect: no token of these platforms is requested"
        raise InputError("an option has no effect", [Problem("--hours", what, "leave it out")])
    return found


def _first_tokens(
    platforms: list[tuple[PlatformOutputs, str | Requested | None]], kubeconfig: Change
) -> list[str]:
    """Request the first token of each platform with the kubeconfig as it will be, and say when it ends.

    Raises:
        TrainfleetError: a cluster does not grant one.
    """
    import yaml

    from trainfleet.errors import TrainfleetError
    from trainfleet.training.launch.sky.config import context_name
    from trainfleet.training.launch.sky.kubeconfig import Requested
    from trainfleet.training.launch.sky.login import credential

    document, lines, problems = yaml.safe_load(kubeconfig.after or "") or {}, [], []
    for outputs, login in platforms:
        if isinstance(login, Requested):
            name, account = context_name(outputs), outputs.launcher_account
            try:
                granted = credential(document, name, account, login.hours, os.environ, fresh=True)
            except TrainfleetError as error:
                problems += list(error.problems)
            else:
                lines.append(f"{name}: a token that {granted.end()}; renewed while your cloud login is valid")
    if problems:
        raise TrainfleetError("cannot get a token; nothing was written", problems)
    return lines


@sky.command(cls=AliasedCommand, epilog=EXIT_CODES)
def token(
    context: Annotated[str, typer.Option(metavar="NAME", help="A context that `sky setup` wrote.")],
    kubeconfig: Annotated[Path, typer.Option(metavar="FILE", help="The kubeconfig that has it.")],
    account: Annotated[str, typer.Option(metavar="NAME", help="The service account.")] = "launcher",
    hours: Annotated[
        float, typer.Option(help="How long a new token lasts.", min=LEAST_HOURS, max=MOST_HOURS)
    ] = HOURS,
) -> None:
    """Print a token of the launcher for kubectl, which calls this for the contexts of `sky setup`.

    A token is kept in ~/.kube/cache/trainfleet until shortly before its end.

    [bold]Examples[/]

    trainfleet sky token --kubeconfig ~/.kube/config --context prod-eu-west-1
    """
    import json

    from trainfleet.training.launch.sky.kubeconfig import read_kubeconfig
    from trainfleet.training.launch.sky.login import credential, exec_credential

    found = credential(read_kubeconfig(kubeconfig), context, account, hours, os.environ)
    sys.stdout.write(json.dumps(exec_credential(found)) + "\n")


def _confirm(differences: list[str], yes: bool, as_json: bool) -> None:
    """Show what would change, and ask for confirmation.

    Raises:
        InputError: there is no terminal to ask.
    """
    if not as_json:
        for difference in differences:
            sys.stdout.write(difference)
    if yes:
        return
    if as_json or not sys.stdin.isatty():
        raise InputError(
            "nothing was written",
            [Problem("", "there is no terminal to ask", "use --yes, after checking the difference")],
        )
    if not typer.confirm("Write this?"):
        raise typer.Exit(1)


def _report(document: dict[str, Any], as_json: bool, lines: list[str]) -> None:
    from trainfleet.console import out, print_json

    if as_json:
        print_json(document)
        return
    for line in lines:
        out().print(line, soft_wrap=True, markup=False)


def _progress(text: str) -> None:
    from trainfleet.console import err

    err().print(text, soft_wrap=True, markup=False, style="dim")
