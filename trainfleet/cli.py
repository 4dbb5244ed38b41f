"""The command line: one table of commands. Each is imported from its package only when it is called.

`trainfleet --help` must answer in under 0.4 s, so nothing but Typer is imported until a command is chosen.
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

PLATFORMS, TRAINING, MODELS, CLUSTERS, SETUP = "Platforms", "Training", "Models", "Clusters", "Setup"


class Command(NamedTuple):
    """Where a command is defined (`module:attribute`, a `typer.Typer`), its line in `--help`, and
    its panel.
    """

    source: str
    help: str
    panel: str


COMMANDS: dict[str, Command] = {
    "init": Command(
        "trainfleet.init.cli.init:init",
        "Create a repository for your platforms: stacks, a policy, a workload, tests and CI.",
        PLATFORMS,
    ),
    "spec": Command(
        "trainfleet.infra.cli.spec:spec", "Check a platform spec, or write its JSON Schema.", PLATFORMS
    ),
    "machines": Command(
        "trainfleet.infra.cli.machines:machines",
        "Browse the catalogue of GPU machines and their prices.",
        PLATFORMS,
    ),
    "preflight": Command(
        "trainfleet.infra.cli.preflight:preflight",
        "Check what must be true of the account before the first apply.",
        PLATFORMS,
    ),
    "rehearse": Command(
        "trainfleet.rehearsal.cli.rehearse:rehearse",
        "Run a stack on the real engine with simulated clouds, without an account.",
        PLATFORMS,
    ),
    "diff": Command(
        "trainfleet.rehearsal.cli.diff:diff",
        "Show what a change creates, replaces, loses and costs, without an account.",
        PLATFORMS,
    ),
    "drift": Command(
        "trainfleet.rehearsal.cli.drift:drift",
        "Show what changed in the cloud outside Pulumi, and what the next up does about it.",
        PLATFORMS,
    ),
    "ci": Command(
        "trainfleet.ci.cli.ci:ci",
        "Apply a reviewed plan, check an approval, and publish a platform's outputs.",
        PLATFORMS,
    ),
    "cost": Command(
        "trainfleet.cost.cli.cost:cost",
        "Show what a stack costs: the estimate, the plan, and the bill by owner, pool and run.",
        PLATFORMS,
    ),
    "knowledge": Command(
        "trainfleet.rehearsal.cli.knowledge:knowledge",
        "Show and update what is known about the providers' changes.",
        PLATFORMS,
    ),
    "policies": Command(
        "trainfleet.policies.cli.policies:policies",
        "List the policies of every platform, with reasons and fixes.",
        PLATFORMS,
    ),
    "data": Command(
        "trainfleet.training.cli.data:data", "Prepare a recipe's data, describe it, and upload it.", TRAINING
    ),
    "train": Command("trainfleet.training.cli.train:train", "Train a recipe on this machine.", TRAINING),
    "launch": Command(
        "trainfleet.training.cli.launch:launch",
        "Start a recipe anywhere: local, torchrun, kuberay, sky, ray-up.",
        TRAINING,
    ),
    "plan": Command(
        "trainfleet.training.cli.plan:plan",
        "Show where a recipe could run, what it would cost, and why not elsewhere.",
        TRAINING,
    ),
    "tune": Command(
        "trainfleet.training.cli.tune:tune",
        "Tune hyperparameters; trials run by any launcher.",
        TRAINING,
    ),
    "notify": Command(
        "trainfleet.training.cli.notify:notify", "Try the addresses of a recipe's notifications.", TRAINING
    ),
    "report": Command(
        "trainfleet.training.cli.report:report", "Write a run's HTML report, or compare runs.", TRAINING
    ),
    "evaluate": Command(
        "trainfleet.training.cli.evaluate:evaluate", "Measure a checkpoint on a split.", MODELS
    ),
    "publish": Command(
        "trainfleet.training.cli.publish:publish",
        "Export a checkpoint that passes its gates: weights, model card, provenance.",
        MODELS,
    ),
    "predict": Command("trainfleet.training.cli.predict:predict", "Run batch inference.", MODELS),
    "serve": Command("trainfleet.training.cli.serve:serve", "Serve a trained model over HTTP.", MODELS),
    "runs": Command(
        "trainfleet.training.cli.runs:runs",
        "List, read, follow and stop the runs of every launcher.",
        CLUSTERS,
    ),
    "dashboard": Command(
        "trainfleet.training.cli.dashboard:dashboard", "The same as `trainfleet runs dashboard`.", CLUSTERS
    ),
    "ui": Command(
        "trainfleet.ui.cli.ui:ui",
        "Show stacks, clusters and runs on a local, read-only web page.",
        CLUSTERS,
    ),
    "fabric": Command(
        "trainfleet.training.cli.fabric:fabric",
        "Check on two nodes that NCCL uses a pool's fabric, and how fast it is.",
        CLUSTERS,
    ),
    "sky": Command(
        "trainfleet.training.cli.sky:sky",
        "Configure and check SkyPilot for the platforms' clusters.",
        CLUSTERS,
    ),
    "kubeconfig": Command(
        "trainfleet.infra.cli.kubeconfig:kubeconfig",
        "Write a kubeconfig with the launcher's token, for SkyPilot's controllers.",
        CLUSTERS,
    ),
    "image": Command(
        "trainfleet.images.cli.image:image",
        "Build the training image, and push it to the platforms' registries.",
        CLUSTERS,
    ),
    "cluster": Command(
        "trainfleet.local_cluster.cli.cluster:cluster",
        "Start and stop a real Kubernetes cluster on this machine.",
        CLUSTERS,
    ),
    "doctor": Command(
        "trainfleet.doctor:doctor",
        "Show what is installed, and which commands cannot work without what is missing.",
        SETUP,
    ),
}


class LazyCommands(TyperGroup):
    """A group that lists its commands from the table and imports one only when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """The names of all commands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """A placeholder with the command's help line."""
        if cmd_name not in COMMANDS:
            return None
        command = COMMANDS[cmd_name]
        return TyperCommand(cmd_name, help=command.help, rich_help_panel=command.panel)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command itself, imported."""
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
