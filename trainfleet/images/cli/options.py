"""The options of `trainfleet image`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

TOOL = "Tool"
REGISTRY = "Registry"

Targets = Annotated[
    list[str] | None,
    typer.Option(
        "--target",
        metavar="cpu|cuda|efa|infiniband",
        help="What to build; by default what the machines of the platforms need. May be repeated.",
    ),
]
Requirements = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Add these packages, locked with hashes (uv pip compile --generate-hashes)."
    ),
]
BuildArgs = Annotated[
    list[str] | None,
    typer.Option(
        "--build-arg", metavar="NAME=VALUE", help="Set an ARG of images/Dockerfile. May be repeated."
    ),
]
Checkout = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Build from this checkout; by default the one around this folder."),
]
With = Annotated[
    str,
    typer.Option(
        "--with",
        metavar="buildah|podman|docker",
        help="The program to use; by default the first that is installed.",
        rich_help_panel=TOOL,
    ),
]
Print = Annotated[
    bool, typer.Option("--print", help="Print the tool's commands, and run nothing.", rich_help_panel=TOOL)
]
ToolOptions = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[-- OPTION]...",
        help="Options of the tool's build, such as -- --volume=/etc/ssl/certs:/etc/ssl/certs:ro.",
        show_default=False,
    ),
]
Registries = Annotated[
    list[str] | None,
    typer.Option(
        "--registry",
        metavar="HOST/REPOSITORY",
        help="A repository, in addition to those of the platforms. May be repeated.",
        rich_help_panel=REGISTRY,
    ),
]
CaFile = Annotated[
    Path | None,
    typer.Option(
        "--ca",
        metavar="FILE",
        help="The registry's CA certificate, if this machine does not trust it.",
        rich_help_panel=REGISTRY,
    ),
]
OwnLogin = Annotated[
    bool,
    typer.Option(
        "--own-login",
        help="Use your `docker login` (or buildah's, podman's) instead of the cloud's program.",
        rich_help_panel=REGISTRY,
    ),
]
