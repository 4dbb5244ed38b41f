"""The flags of `trainfleet diff`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

FORMATS = ("table", "markdown", "html", "json", "sarif", "junit")

Target = Annotated[
    str,
    typer.Argument(
        metavar="STACK|DIR",
        help="A stack of this project, in the base or in the head; or the folder of any Python Pulumi"
        " project, with --all or --stack if it has several stacks.",
        show_default=False,
    ),
]
Base = Annotated[
    str, typer.Option(metavar="REF", help="Compare with this commit, branch or tag.", show_default=False)
]
Head = Annotated[
    str,
    typer.Option(
        metavar="REF", help="Compare this instead of HEAD; `.` is the working tree.", show_default=False
    ),
]
Worktree = Annotated[
    bool, typer.Option("--worktree", help="Compare the files as they are, including uncommitted changes.")
]
Format = Annotated[str, typer.Option("--format", metavar="|".join(FORMATS), help="The output format.")]
Json = Annotated[bool, typer.Option("--json", help="The same as --format json.")]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write the diff to this file, atomically."),
]
Cached = Annotated[
    bool,
    typer.Option("--cache/--no-cache", help="Cache the applied base, and use a cached one."),
]
State = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Compare with what is deployed instead of with a commit: the file of `pulumi stack export`.",
    ),
]
Every = Annotated[
    bool,
    typer.Option("--all", help="Every stack that the change affects, as one document with a summary first."),
]
StackOfFolder = Annotated[
    str, typer.Option("--stack", metavar="NAME", help="The stack of DIR.", show_default=False)
]
Jobs = Annotated[int, typer.Option(min=0, help="With --all: the most stacks at a time; 0: half of the CPUs.")]
Events = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Show a real preview, from the file of `pulumi preview --event-log` or `--json`; needs no"
        " project.",
    ),
]
PlanFile = Annotated[
    Path | None,
    typer.Option(
        "--plan",
        metavar="FILE",
        help="With --events: the plan that the same preview saved (`--save-plan`). Shows its SHA-256, which"
        " `trainfleet ci apply` verifies.",
    ),
]
AcceptOtherStack = Annotated[
    bool,
    typer.Option(
        "--accept-other-stack",
        help="Accept a --state of another stack or project, as if it were of this one.",
    ),
]
AcceptUnknown = Annotated[
    bool,
    typer.Option(
        "--accept-unknown",
        help="Count an update as an update if no rule tells whether the provider replaces the resource"
        " instead; without it, such an update exits with 3.",
    ),
]
UsageFile = Annotated[
    Path | None,
    typer.Option(
        "--usage",
        metavar="FILE",
        help="Price traffic, logs and stored data as this TOML file assumes (docs/diff.md).",
    ),
]
FailAbove = Annotated[
    float | None,
    typer.Option(metavar="USD", min=0, help="Exit with 4 if what always runs costs more than this a month."),
]
FailAboveMax = Annotated[
    float | None,
    typer.Option(
        metavar="USD", min=0, help="Exit with 4 if all pools at their largest cost more than this a month."
    ),
]
Environments = Annotated[
    str,
    typer.Option(
        metavar="own|same",
        help="Run each side with the provider SDKs that it locks, or both with the installed ones."
        " Default: own if they differ and can be installed.",
        show_default=False,
    ),
]
Charts = Annotated[
    bool,
    typer.Option(
        "--charts",
        help="Let helm download the Helm charts that change, to compare what both versions render. Without"
        " it, only charts in the project and in a cache are rendered.",
    ),
]
