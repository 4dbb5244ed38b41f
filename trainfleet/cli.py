"""The command line: one table of commands, each defined by the package it belongs to and imported only when
called.

`trainfleet --help` must stay under 0.4 s: nothing but Typer is imported until a command is chosen.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from trainfleet.console import EXIT_CODES, run
from trainfleet.suggestions import did_you_mean

if TYPE_CHECKING:
    from typer import _click as click


class Command(NamedTuple):
    """Where a command lives (`module:attribute`, a `typer.Typer`) and the line that `--help` shows for it."""

    source: str
    help: str


COMMANDS: dict[str, Command] = {
    "spec": Command("trainfleet.infra.cli.spec:spec", "Check a platform spec, or write its JSON Schema."),
    "machines": Command(
        "trainfleet.infra.cli.machines:machines", "Browse the catalogue of GPU machines and their prices."
    ),
    "rehearse": Command(
        "trainfleet.rehearsal.cli.rehearse:rehearse",
        "Try a stack on the real engine over simulated clouds, without an account.",
    ),
    "diff": Command(
        "trainfleet.rehearsal.cli.diff:diff",
        "Say what a change would make, replace, lose and cost, without an account.",
    ),
    "kubeconfig": Command(
        "trainfleet.infra.cli.kubeconfig:kubeconfig",
        "Write a kubeconfig with the launcher's token, for SkyPilot's controllers.",
    ),
    "data": Command(
        "trainfleet.training.cli.data:data",
        "Prepare a recipe's data, say what it is, and put it where other machines read it.",
    ),
    "train": Command("trainfleet.training.cli.runs:train", "Train a recipe on this machine."),
    "launch": Command(
        "trainfleet.training.cli.runs:launch", "Start a recipe somewhere: local, torchrun, kuberay, sky."
    ),
    "plan": Command(
        "trainfleet.training.cli.sky:plan",
        "Say where a recipe could run, what it would cost there, and why not elsewhere.",
    ),
    "sky": Command(
        "trainfleet.training.cli.sky:sky",
        "Let SkyPilot use the platforms' clusters: write its configuration, prove it.",
    ),
    "runs": Command(
        "trainfleet.training.cli.cluster:runs",
        "List, read, stop the runs that a Kubernetes cluster holds, or come back to one.",
    ),
    "dashboard": Command(
        "trainfleet.training.cli.cluster:dashboard",
        "Show Ray's dashboard of a run in a cluster on a port of this machine.",
    ),
    "tune": Command("trainfleet.training.cli.tune:tune", "Search a recipe's best values by Ray Tune."),
    "evaluate": Command(
        "trainfleet.training.cli.after:evaluate", "Measure a checkpoint on a split, over several processes."
    ),
    "publish": Command(
        "trainfleet.training.cli.after:publish",
        "Write out a checkpoint that passes its gates: weights, model card, provenance.",
    ),
    "predict": Command("trainfleet.training.cli.use:predict", "Answer files of rows by a trained model."),
    "serve": Command("trainfleet.training.cli.use:serve", "Serve a trained model over HTTP by Ray Serve."),
    "report": Command("trainfleet.training.cli.runs:report", "Write a run's HTML report."),
    "cluster": Command(
        "trainfleet.local_cluster.cli.cluster:cluster",
        "A real one-node Kubernetes on this machine, up and down.",
    ),
    "policies": Command(
        "trainfleet.policies.cli.policies:policies",
        "What must hold on every platform: the rules, their reasons and remedies.",
    ),
    "doctor": Command(
        "trainfleet.doctor:doctor",
        "Show what is installed, and which commands cannot work without what is missing.",
    ),
}


class LazyCommands(TyperGroup):
    """A group that lists its commands from the table and imports one only when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        return TyperCommand(cmd_name, help=COMMANDS[cmd_name].help) if cmd_name in COMMANDS else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            ctx.fail(f"No such command `{args[0]}`: {did_you_mean(args[0], COMMANDS)}")
        name, command, rest = super().resolve_command(ctx, args)
        if name is None or command is None:
            return name, command, rest
        module, _, attribute = COMMANDS[name].source.partition(":")
        loaded = typer.main.get_command(getattr(importlib.import_module(module), attribute))
        loaded.name = name
        return name, loaded, rest


app = typer.Typer(
    cls=LazyCommands,
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help=f"Declare GPU training platforms, rehearse them, and train on them.\n\n{EXIT_CODES}",
)


def _version(show: bool) -> None:
    if show:
        from trainfleet import __version__

        typer.echo(f"trainfleet {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version."
    ),
) -> None: ...


def main() -> None:
    """The `trainfleet` entry point."""
    sys.exit(run(lambda: app(standalone_mode=True)))
