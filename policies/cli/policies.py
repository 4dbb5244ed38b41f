"""`trainfleet policies`: what must hold on every platform. Reads the catalogue; the rules themselves are
plain
functions.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from trainfleet.policies.engine.rule import Rule

policies = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)
WIDTH = 100
"""Table width without a terminal."""
SHORT = {"kubernetes": "k8s"}
COLOURS = {"critical": "bold red", "high": "red", "medium": "yellow", "low": "dim"}

_HELP = """List the policies for every platform, with their severity, enforcement level and clouds.

With NAME, show one rule with its reason, remedy, sources and the resource types that it checks.

[bold]Examples[/]

  trainfleet policies --cloud gcp --severity high

  trainfleet policies no-open-control-plane

  trainfleet policies --json

  trainfleet policies --exceptions

  trainfleet policies --markdown > policies.md

  trainfleet policies --check policies.md

  trainfleet policies --export pack
"""


ScannerFindings = Annotated[
    bool,
    typer.Option(
        "--exceptions",
        help="List what Checkov finds on the production stacks and why it stays, instead of the rules.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout instead of the table.")]
Markdown = Annotated[bool, typer.Option("--markdown", help="Print the reference page of all rules.")]
CheckedFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Check that FILE is the current document; exit code 1 if it is not."),
]
ExportFolder = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        help="Write the policy pack as a new folder that needs only pulumi_policy, for `pulumi preview"
        " --policy-pack` and `pulumi policy publish`.",
    ),
]


@policies.command(help=_HELP)
def main(  # noqa: PLR0917 - one per flag
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="Show this rule.")] = "",
    cloud: Annotated[
        str, typer.Option(help="Only rules that apply to this cloud: aws, gcp, azure, kubernetes.")
    ] = "",
    severity: Annotated[
        str, typer.Option(help="Only rules of this severity or higher: low, medium, high, critical.")
    ] = "",
    exceptions: ScannerFindings = False,
    as_json: Json = False,
    as_markdown: Markdown = False,
    check: CheckedFile = None,
    export: ExportFolder = None,
) -> None:
    """See _HELP."""
    from trainfleet.console import print_json
    from trainfleet.policies.engine.document import SEVERITIES, markdown, select_rules
    from trainfleet.policies.engine.document import as_json as document
    from trainfleet.policies.engine.rule import CLOUDS

    _known("--cloud", cloud, tuple(CLOUDS.values()))
    _known("--severity", severity, SEVERITIES)
    if export is not None:
        listing = (cloud, exceptions, as_json)
        _alone("--export", _given(name, severity, as_markdown=as_markdown, check=check, listing=listing))
        _export(export)
    elif exceptions:
        _alone(
            "--exceptions", _given(name, severity, as_markdown=as_markdown, check=check), "--cloud and --json"
        )
        _exceptions(cloud, as_json=as_json)
    elif check is not None:
        _check(check, markdown())
    elif as_markdown:
        typer.echo(markdown(), nl=False)
    elif name:
        rule = _named(name)
        if as_json:
            print_json(document(rule))
        else:
            _show(rule)
    elif as_json:
        print_json([document(rule) for rule in select_rules(cloud, severity)])
    else:
        _print_table(select_rules(cloud, severity))


def _print_table(rules: list[Rule]) -> None:
    from trainfleet.console import out

    console = out()
    if not console.is_terminal:
        console.width = WIDTH
    console.print(_table(rules))
    console.print(f"{len(rules)} rules; `trainfleet policies NAME` shows one")


def _given(
    name: str,
    severity: str,
    *,
    as_markdown: bool,
    check: Path | None,
    listing: tuple[str, bool, bool] = ("", False, False),
) -> list[str]:
    """Return the options that are set, by their names."""
    cloud, exceptions, as_json = listing
    values = {"NAME": name, "--severity": severity, "--markdown": as_markdown, "--check": check}
    values |= {"--cloud": cloud, "--exceptions": exceptions, "--json": as_json}
    return [option for option, value in values.items() if value]


def _alone(option: str, given: list[str], allowed: str = "") -> None:
    """Reject what does not go with an option."""
    from trainfleet.errors import InputError, Problem

    fix = f"{allowed} do" if allowed else "run it alone"
    if problems := [Problem(each, f"does not go with {option}", fix) for each in given]:
        raise InputError("options that exclude each other", problems)


def _export(folder: Path) -> None:
    from trainfleet.policies.engine.export import export

    files = export(folder)
    typer.echo(f"{len(files)} files in {folder}", err=True)
    for line in (
        f"python -m venv {folder}/venv",
        f"{folder}/venv/bin/pip install -r {folder}/requirements.txt",
        f"pulumi preview --policy-pack {folder}",
    ):
        typer.echo(line)


def _exceptions(cloud: str, *, as_json: bool) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from trainfleet.console import out, print_json
    from trainfleet.policies import scanner_exceptions as source

    found = [each for each in source.scanner_exceptions() if not cloud or each.cloud == cloud]
    if as_json:
        print_json({"scanner": source.scanner(), "exceptions": [source.as_json(each) for each in found]})
        return
    console = out()
    if not console.is_terminal:
        console.width = WIDTH
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("Check", no_wrap=True)
    table.add_column("Requires")
    table.add_column("Reason")
    table.add_column("Reviewed", no_wrap=True)
    for each in found:
        reason = f"{each.reason} ({each.rule})" if each.rule else each.reason
        table.add_row(each.check, each.statement, reason, each.date.isoformat())
    console.print(table)
    console.print(f"{len(found)} exceptions to {source.scanner()}; --json also shows the resources")


def _known(option: str, value: str, choices: tuple[str, ...]) -> None:
    from trainfleet.errors import InputError, Problem

    if value and value not in choices:
        raise InputError(
            f"unknown {option.strip('-')}", [Problem(option, f"{value!r} is not known", ", ".join(choices))]
        )


def _named(name: str) -> Rule:
    from trainfleet.errors import InputError, Problem
    from trainfleet.policies.catalogue import RULES
    from trainfleet.policies.engine.exceptions import EVERYWHERE
    from trainfleet.suggestions import did_you_mean

    names = {rule.name: rule for rule in RULES}
    if (policy := name.removesuffix(EVERYWHERE)) not in names:
        raise InputError("unknown policy", [Problem(name, "is not a policy", did_you_mean(name, names))])
    return names[policy]


def _check(file: Path, policy: str) -> None:
    from trainfleet.errors import InputError, Problem, TrainfleetError

    try:
        found = file.read_text()
    except OSError as error:
        raise InputError(
            "cannot read the document", [Problem(str(file), error.strerror or str(error))]
        ) from error
    if found != policy:
        raise TrainfleetError(
            "the document is stale",
            [Problem(str(file), "does not match the rules", f"trainfleet policies --markdown > {file}")],
        )


def _table(rules: list[Rule]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from trainfleet.policies.engine.rule import ENVIRONMENTS

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for title in ("Rule", "Severity", *ENVIRONMENTS, "Clouds"):
        table.add_column(title, no_wrap=True)
    for rule in rules:
        severity = f"[{COLOURS[rule.severity]}]{rule.severity}[/]"
        table.add_row(
            rule.name,
            severity,
            *(rule.level(each) for each in ENVIRONMENTS),
            " ".join(SHORT.get(cloud, cloud) for cloud in rule.clouds()),
        )
    return table


def _show(rule: Rule) -> None:
    from rich.markup import escape

    from trainfleet.console import out
    from trainfleet.policies.catalogue import theme_of
    from trainfleet.policies.engine.document import levels, types_by_cloud, unchecked

    console = out()
    console.print(
        f"[bold]{rule.name}[/] ({theme_of(rule)}, "
        f"[{COLOURS[rule.severity]}]{rule.severity}[/], {levels(rule)})\n"
    )
    rows = [
        ("", rule.statement),
        ("Reason", rule.reason),
        ("Remedy", rule.fix),
        ("Sources", ", ".join(rule.references)),
    ]
    for title, kinds in (("Checked", rule.checks), ("Checked for a missing companion", rule.stack)):
        rows += [(f"{title}, {cloud}", ", ".join(names)) for cloud, names in types_by_cloud(kinds).items()]
    rows += [(f"Not checked, {cloud}", why) for cloud, why in unchecked(rule).items()]
    rows += [(f"Setting {name}", str(schema)) for name, schema in rule.settings.items()]
    for title, text in rows:
        console.print(f"[bold]{escape(title)}:[/] {escape(text)}" if title else escape(text), soft_wrap=True)
