"""The options of `trainfleet sky`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainfleet.training.launch.sky.tokens import LEAST_HOURS, MOST_HOURS

TokenFile = Annotated[
    list[str] | None,
    typer.Option(
        "--token-file",
        metavar="STACK=FILE",
        help="A token of that stack's launcher, instead of requesting tokens when they are needed.",
    ),
]
Hours = Annotated[
    float | None,
    typer.Option(
        "--hours",
        help="How long a requested token lasts; a new one is then requested. Default: 8.",
        min=LEAST_HOURS,
        max=MOST_HOURS,
        show_default=False,
    ),
]
Kubeconfig = Annotated[
    Path | None,
    typer.Option(
        "--kubeconfig",
        metavar="FILE",
        help="Where to write the contexts; by default where SkyPilot reads.",
    ),
]
Replace = Annotated[
    bool, typer.Option("--replace", help="Overwrite a context of the same name with another login.")
]
Managed = Annotated[
    bool,
    typer.Option(
        "--managed",
        help="For managed jobs: run their controllers as processes of SkyPilot's server, not as pods.",
    ),
]
Server = Annotated[
    Path | None,
    typer.Option(
        "--server",
        metavar="FOLDER",
        help="For the administrator of a team's SkyPilot server: write its logins and Helm values here.",
    ),
]
Print = Annotated[
    bool,
    typer.Option(
        "--print", help="With --server: print the Helm values, which hold no secret, and write nothing."
    ),
]
Undo = Annotated[bool, typer.Option("--undo", help="Restore the files from before the first setup.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
JsonWithYes = Annotated[
    bool, typer.Option("--json", help="Report what was written as one JSON document; requires --yes.")
]
Quick = Annotated[bool, typer.Option("--quick", help="Only contact each cluster; start no task.")]
