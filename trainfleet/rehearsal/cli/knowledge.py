"""`trainfleet knowledge`: shows what is known about providers' changes, and updates it for a project."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

knowledge = typer.Typer(
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    no_args_is_help=True,
    help="""What `rehearse` and `diff` know about the providers: which changed properties replace a resource,
under which conditions, and which lists are sets; for every type of the aws, gcp, azure-native and
kubernetes packages, with the source and its version.

[bold]Examples[/]

  trainfleet knowledge show

  trainfleet knowledge show aws:fsx/lustreFileSystem:LustreFileSystem

  trainfleet knowledge update --package aws""",
)
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@knowledge.command()
def show(
    token: Annotated[
        str,
        typer.Argument(
            metavar="TYPE",
            help="A type, as `aws:fsx/lustreFileSystem:LustreFileSystem`; without one, the tables.",
            show_default=False,
        ),
    ] = "",
    as_json: Json = False,
) -> None:
    """Show the tables with source, version and date, or what is known about one type."""
    from trainfleet.console import out, print_json
    from trainfleet.rehearsal.knowledge.report import of_packages, of_type
    from trainfleet.rehearsal.simulation.schema import packages

    if token:
        found: Any = of_type(token)
    else:
        found = of_packages({name: each.version for name, each in packages().items()})
    if as_json:
        print_json(found)
    elif token:
        _print_type(out(), found)
    else:
        _print_tables(out(), found)


@knowledge.command()
def update(
    package: Annotated[
        list[str] | None,
        typer.Option(
            help="Update this package; repeatable. Default: every installed one.", show_default=False
        ),
    ] = None,
    schema: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Read a package schema from a file instead; repeatable.",
            show_default=False,
        ),
    ] = None,
    project: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder of the project that gets the tables.")
    ] = Path(),
) -> None:
    """Write the rules of your own provider plugins to `.trainfleet/knowledge/` of the project.

    Runs `pulumi package get-schema` for the installed version of each package. The tables take precedence
    over those of the installed Trainfleet; commit them, so that everyone reviews with the same rules.
    """
    from trainfleet.console import out
    from trainfleet.errors import InputError, Problem
    from trainfleet.rehearsal.knowledge.update import plugin_schema, schema_file
    from trainfleet.rehearsal.knowledge.update import update as write
    from trainfleet.rehearsal.simulation.schema import packages

    if package and schema:
        raise InputError(
            "--package and --schema exclude each other", [Problem("--schema", "names its package")]
        )
    if not project.is_dir():
        raise InputError("there is no such folder", [Problem("--project", str(project))])
    given = [(schema_file(file), file.name) for file in schema or ()]
    if not schema:
        names = package or sorted(packages())
        given = [(plugin_schema(name), f"pulumi package get-schema {name}") for name in names]
    for each, origin in given:
        table, file = write(each, origin, project)
        out().print(f"{table.package} {table.version}: {len(table.types)} types in {file}", soft_wrap=True)


def _print_tables(console: Console, rows: list[dict[str, Any]]) -> None:
    for row in rows:
        own = " [green](of this project)[/]" if row["from_project"] else ""
        console.print(f"[bold]{row['package']}[/] {row['types']} types{own}", highlight=False)
        console.print(f"  source: {row['source']} {row['version']}, {row['date']}", highlight=False)
        behind = "; run `trainfleet knowledge update`" if row["behind"] else ""
        installed = row["installed"] or "not installed"
        console.print(f"  for SDK {row['sdk']}, installed: {installed}{behind}", highlight=False)


def _print_type(console: Console, known: dict[str, Any]) -> None:
    from rich.markup import escape

    console.print(f"[bold]{known['type']}[/]", highlight=False)
    console.print(f"  source: {escape(known['source'])}", highlight=False, soft_wrap=True)
    for title, key in (
        ("replaces", "replace"),
        ("replaces if", "when"),
        ("may replace", "unclear"),
        ("deleted first", "delete_first"),
        ("sets", "sets"),
        ("any case", "caseless"),
    ):
        value = known[key]
        lines = [f"{path}: {text}" for path, text in value.items()] if isinstance(value, dict) else value
        for line in lines:
            console.print(f"  [cyan]{title:<14}[/]{escape(line)}", highlight=False, soft_wrap=True)
