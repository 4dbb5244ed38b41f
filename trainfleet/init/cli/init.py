"""`trainfleet init`: create a repository for your platforms, or upgrade one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainfleet.console import EXIT_CODES

if TYPE_CHECKING:
    from trainfleet.init.answers import Answers
    from trainfleet.init.requirement import Requirement
    from trainfleet.init.upgrade import Merged

init = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)

_HELP = f"""Create a repository of your own: stacks, a policy, a workload, tests, CI.

Asks for what is missing. Nothing is applied and no account is needed: `make check` in the new folder
rehearses, tests and trains.

With --upgrade, merge what a later version of Trainfleet generates into the repository. Your changes are
kept, and the merge is shown before anything is written.

[bold]Examples[/]

  trainfleet init platform

  trainfleet init platform --cloud aws --name acme --owner ml@example.com

  trainfleet init platform --cloud gcp --name acme --owner ml@example.com --account acme-ml-123456 --ci gitlab

  trainfleet init . --cloud local --name lab --owner me@example.com

  trainfleet init platform --upgrade

{EXIT_CODES}
"""

_ASKED = (
    ("name", "Name of the platform (part of every resource's name)"),
    ("cloud", "Cloud: aws, gcp, azure or local"),
    ("owner", "E-mail address of the team that owns it"),
    ("ci", "CI system: github, gitlab or none"),
)


@init.command(help=_HELP)
def main(  # noqa: PLR0917 - one per flag
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to create, or to upgrade.")],
    cloud: Annotated[str, typer.Option(metavar="CLOUD", help="aws, gcp, azure or local.")] = "",
    name: Annotated[str, typer.Option(help="Name of the platform. Default: the folder's.")] = "",
    owner: Annotated[str, typer.Option(metavar="EMAIL", help="The team that owns the platform.")] = "",
    region: Annotated[
        str, typer.Option(help="Region. Default: one that offers every machine of the stacks.")
    ] = "",
    account: Annotated[
        str, typer.Option(metavar="ID", help="Project id (gcp), subscription id (azure), account id (aws).")
    ] = "",
    admin: Annotated[
        str,
        typer.Option(metavar="ID", help="Administrator of the production cluster: role, e-mail or group id."),
    ] = "",
    public_range: Annotated[
        str, typer.Option(metavar="CIDR", help="Addresses from which you reach the API server.")
    ] = "",
    ci: Annotated[str, typer.Option(metavar="SYSTEM", help="github, gitlab or none. Default: github.")] = "",
    upgrade: Annotated[bool, typer.Option("--upgrade", help="Merge this version's files into DIR.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With --upgrade: do not ask before writing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document; ask nothing.")] = False,
) -> None:
    """See _HELP."""
    given = {
        "name": name, "cloud": cloud, "owner": owner, "region": region,
        "account": account, "admin": admin, "public_range": public_range, "ci": ci,
    }  # fmt: skip
    if upgrade:
        _upgrade(folder, given, agreed=yes, as_json=as_json)
    else:
        _create(folder, given, agreed=yes, as_json=as_json)


def _create(folder: Path, given: dict[str, str], *, agreed: bool, as_json: bool) -> None:
    from trainfleet.console import out, print_json
    from trainfleet.errors import InputError, Problem
    from trainfleet.init.answers import complete
    from trainfleet.init.render import render
    from trainfleet.init.requirement import WHEELS, installed
    from trainfleet.init.write import create, refuse_existing, start_git

    if agreed:
        raise InputError("an option has no effect", [Problem("--yes", "belongs to --upgrade", "omit it")])
    _ask(folder, given, ask=sys.stdin.isatty() and not as_json)
    answers, requirement = complete(given), installed()
    files = render(answers, requirement)
    _check_stacks(files, answers)
    refuse_existing(folder, files)
    create(folder, answers, files, requirement)
    started = start_git(folder)
    names = [*files, *([f"{WHEELS}/{requirement.wheel.name}"] if requirement.wheel else [])]
    if as_json:
        print_json({"folder": str(folder), "files": names, "git": started, "answers": vars(answers)})
        return
    console = out()
    for each in names:
        console.print(f"  {each}")
    console.print(f"\nCreated {len(names)} files in {folder}." + (" Git: branch main." if started else ""))
    console.print(_next_steps(folder, answers, requirement), markup=False, soft_wrap=True)


def _ask(folder: Path, given: dict[str, str], *, ask: bool) -> None:
    """Fill in defaults, and ask for the rest if somebody can answer."""
    from trainfleet.init.answers import CI_SYSTEMS, CLOUDS, LONGEST_NAME

    suggested = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-0123456789")[:LONGEST_NAME]
    defaults = {"name": suggested.strip("-"), "cloud": "", "owner": _git_email(), "ci": CI_SYSTEMS[0]}
    for key, question in _ASKED:
        if not given[key]:
            given[key] = typer.prompt(question, default=defaults[key] or None) if ask else defaults[key]
    cloud = CLOUDS.get(given["cloud"])
    if not ask or cloud is None or not cloud.region:
        return
    given["region"] = given["region"] or typer.prompt("Region", default=cloud.region)
    if cloud.account_required and not given["account"]:
        given["account"] = typer.prompt(
            f"The {cloud.account} of {cloud.title}, such as {cloud.account_example}"
        )


def _git_email() -> str:
    try:
        done = subprocess.run(["git", "config", "user.email"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.strip()


def _check_stacks(files: dict[str, str], answers: Answers) -> None:
    """Validate the rendered stacks with the rules of the spec, before anything is written."""
    import yaml

    from trainfleet.errors import InputError
    from trainfleet.infra.bootstrap.schema import BOOTSTRAP_KEY, parse_bootstrap
    from trainfleet.infra.spec.load import parse_spec
    from trainfleet.infra.spec.stack_file import PLATFORM_KEY
    from trainfleet.init.render import BOOTSTRAP_STACK

    problems: list[Any] = []
    for stack in answers.stacks:
        name = f"stacks/Pulumi.{stack}.yaml"
        document = yaml.safe_load(files[name])
        try:
            parse_spec(document["config"][PLATFORM_KEY], name)
        except InputError as error:
            problems += error.problems
    if BOOTSTRAP_STACK in files:
        document = yaml.safe_load(files[BOOTSTRAP_STACK])
        try:
            parse_bootstrap(document["config"][BOOTSTRAP_KEY], BOOTSTRAP_STACK)
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError("the answers do not make a valid platform", dict.fromkeys(problems))


def _next_steps(folder: Path, answers: Answers, requirement: Requirement) -> str:
    from trainfleet.init.requirement import Requirement

    # An editable install, for example: pip finds no such version.
    unknown = requirement == Requirement()
    python = " PYTHON=python" if unknown else ""
    steps = [
        f"make check{python}     # validates, rehearses, tests and trains; no account needed",
        "git add -A && git commit -m 'Create the platform'",
        f"make review{python}    # what your uncommitted changes would do",
    ]
    if unknown:
        steps.insert(
            0,
            "# requirements.txt does not say where pip finds this version of trainfleet: until it does, make"
            " uses this environment (PYTHON=python), and CI cannot install it",
        )
    prefix = "" if folder.resolve() == Path.cwd() else f"  cd {folder}\n"
    last = "" if answers.cloud == "local" else "\n\nREADME.md lists what to replace before the first apply."
    return "\nNext:\n" + prefix + "\n".join(f"  {step}" for step in steps) + last


def _upgrade(folder: Path, given: dict[str, str], *, agreed: bool, as_json: bool) -> None:
    from trainfleet import __version__
    from trainfleet.errors import InputError, Problem, TrainfleetError
    from trainfleet.files import write_whole
    from trainfleet.init.render import render
    from trainfleet.init.requirement import WHEELS, installed
    from trainfleet.init.upgrade import Fate, merge, read_record
    from trainfleet.init.write import RECORD, record

    if refused := [key for key, value in given.items() if value]:
        problems = [
            Problem(f"--{key.replace('_', '-')}", f"is recorded in {RECORD}", "omit it") for key in refused
        ]
        raise InputError("an upgrade keeps the answers of the repository", problems)
    old, requirement = read_record(folder), installed()
    new = render(old.answers, requirement)
    changed = merge(folder, old.files, new)
    _show_merge(old.version, changed, written=agreed, as_json=as_json)
    if changed and not agreed and not _agrees(len(changed), ask=sys.stdin.isatty() and not as_json):
        return
    for each in changed:
        if each.text is None and each.before is not None:
            (folder / each.name).unlink()
        elif each.text is not None and each.text != each.before:
            write_whole(folder / each.name, each.text)
    if requirement.wheel is not None and changed:
        write_whole(folder / WHEELS / requirement.wheel.name, requirement.wheel.read_bytes())
    if changed or old.version != __version__:
        write_whole(folder / RECORD, record(old.answers, new))
    if conflicts := [each for each in changed if each.fate is Fate.CONFLICT]:
        raise TrainfleetError(
            "written with conflict markers; resolve them",
            [Problem(str(folder / each.name), "both sides changed the same lines") for each in conflicts],
        )


def _show_merge(version: str, changed: list[Merged], *, written: bool, as_json: bool) -> None:
    """Print the diff of each file and what happens to it."""
    from trainfleet import __version__
    from trainfleet.console import out, print_json

    if as_json:
        files = [{"name": each.name, "fate": each.fate, "diff": each.diff()} for each in changed]
        print_json({"from": version, "to": __version__, "files": files, "written": written})
        return
    console = out()
    for each in changed:
        if difference := each.diff():
            typer.echo(difference)  # Rich would expand tabs
    for each in changed:
        console.print(f"  {each.name}: {each.fate}", markup=False)
    if not changed:
        console.print(f"Nothing to merge: the files are those of version {__version__}.")


def _agrees(count: int, *, ask: bool) -> bool:
    from trainfleet.console import err

    if ask:
        return typer.confirm(f"Write {count} files?")
    err().print("Nothing was written; add --yes to write these changes.")
    return False
