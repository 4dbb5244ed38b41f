"""The arguments and options that several commands share, and how their values are read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from trainfleet import completion, yaml_limits
from trainfleet.errors import InputError, Problem
from trainfleet.training.launch.durations import seconds_of

ALIASES = {"--platform": "--stack", "--outputs": "--stack"}
"""Other names of an option, accepted by every command that has the option and not the other name."""
CLUSTER_PANEL = "Cluster"


class AliasedCommand(TyperCommand):
    """A command that accepts ALIASES."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        own = {flag for parameter in self.params for flag in parameter.opts}
        aliases = {old: new for old, new in ALIASES.items() if new in own and old not in own}
        renamed = []
        for each in args:
            flag, equals, value = each.partition("=")
            renamed.append(f"{aliases[flag]}{equals}{value}" if flag in aliases else each)
        return super().parse_args(ctx, renamed)


def minutes(text: str | float) -> float:
    """A time in seconds from `30` (minutes), `90s`, `5m` or `2h`."""
    try:
        return seconds_of(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def key_values(flag: str, texts: Sequence[str]) -> dict[str, Any]:
    """`KEY=VALUE` as plain values; a value is YAML.

    Raises:
        InputError: every text that is not KEY=VALUE.
    """
    import yaml

    values, problems = {}, []
    for each in texts:
        key, equals, text = each.partition("=")
        try:
            values[key.strip()] = yaml_limits.load(text)
        except yaml.YAMLError:
            equals = ""
        if not equals or not key.strip():
            problems.append(Problem(f"{flag} {each}", "is not a setting", "write KEY=VALUE"))
    if problems:
        raise InputError("cannot read the settings", problems)
    return values


def one_of(option: str, value: str, choices: Sequence[str]) -> str:
    """The value, which must be one of the choices.

    Raises:
        InputError: it is not.
    """
    from trainfleet.suggestions import did_you_mean

    if value not in choices:
        problem = Problem(option, f"`{value}` is not valid", did_you_mean(value, choices))
        raise InputError("invalid option value", [problem])
    return value


def prices_of(texts: Sequence[str] | None) -> dict[str, float]:
    """`STACK/POOL=USD` as a table.

    Raises:
        InputError: every text that is not a price.
    """
    prices, problems = {}, []
    for text in texts or []:
        name, _, value = text.rpartition("=")
        try:
            prices[name] = float(value)
        except ValueError:
            prices[name] = -1.0
        if not name or not 0 <= prices[name] < math.inf:
            problems.append(
                Problem(f"--price {text}", "is not a price", "such as --price azure-prod/a100-spot=0.92")
            )
    if problems:
        raise InputError("cannot read a price", problems)
    return prices


RecipeName = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE",
        help="A YAML file, or the name of an included recipe.",
        show_default=False,
        autocompletion=completion.recipes,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...", help="Change the recipe, such as optimizer.lr=3e-4.", show_default=False
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change the recipe: the same as KEY=VALUE."),
]
RunName = Annotated[
    str | None, typer.Option("--run", metavar="NAME", help="The run's name; by default the recipe's.")
]
Storage = Annotated[
    str | None,
    typer.Option(
        "--storage",
        metavar="DIR|URL",
        help="Where runs are stored: a folder, s3://, gs:// or az://; by default the recipe's `storage`.",
    ),
]
Fresh = Annotated[
    bool, typer.Option("--fresh", help="Start over. The previous content is backed up, never deleted.")
]
AllowChange = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-change",
        metavar="KEY",
        help="Let this key of the recipe differ from the one that the run started with.",
    ),
]
JsonAtEnd = Annotated[
    bool, typer.Option("--json", help="Print no progress, and one JSON document at the end.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
StackHelp = (
    "A platform: a file with its outputs, its URL in a bucket, or the name of its Pulumi stack"
    " (also --platform, --outputs)."
)
Stack = Annotated[
    str | None,
    typer.Option(
        "--stack",
        metavar="OUTPUTS.json|STACK",
        help=StackHelp,
        rich_help_panel=CLUSTER_PANEL,
        autocompletion=completion.stacks,
    ),
]
Stacks = Annotated[
    list[str] | None,
    typer.Option(
        "--stack",
        metavar="OUTPUTS.json|STACK",
        help=f"{StackHelp} May be repeated.",
        autocompletion=completion.stacks,
    ),
]
Context = Annotated[
    str | None,
    typer.Option(
        "--context",
        metavar="NAME",
        help="A context of your kubeconfig; by default the current one.",
        rich_help_panel=CLUSTER_PANEL,
    ),
]
Namespace = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        metavar="NS",
        help="By default the stack's, else the context's, else `training`.",
        rich_help_panel=CLUSTER_PANEL,
    ),
]
Run = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="The run's name.", show_default=False, autocompletion=completion.run_names
    ),
]
Source = Annotated[
    str,
    typer.Argument(
        metavar="RUN|CHECKPOINT",
        help="The folder or URL of a run, or of one checkpoint.",
        show_default=False,
        autocompletion=completion.run_folders,
    ),
]
ModelSource = Annotated[
    str,
    typer.Argument(
        metavar="RUN|CHECKPOINT|PUBLISHED",
        help="The folder or URL of a run, of one checkpoint, or of a published model.",
        show_default=False,
        autocompletion=completion.run_folders,
    ),
]
Which = Annotated[
    str,
    typer.Option("--which", metavar="WHICH", help="Which checkpoint of a run: best, newest or step-N."),
]
InferencePrecision = Annotated[
    Literal["fp32", "bf16"] | None,
    typer.Option(
        "--precision",
        help="Type of the weights and of what is computed with them; by default fp32 weights, computed with "
        "as in the training. bf16 halves the memory.",
        show_default=False,
    ),
]
Workers = Annotated[
    int,
    typer.Option(
        "--workers", metavar="N", min=1, max=512, help="Processes on this machine that share the samples."
    ),
]
Prices = Annotated[
    list[str] | None,
    typer.Option("--price", metavar="STACK/POOL=USD", help="What a node of that pool costs per hour."),
]
