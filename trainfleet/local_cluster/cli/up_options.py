"""The options of `trainfleet cluster up` for its nodes, real and simulated."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Image = Annotated[
    bool,
    typer.Option("--image/--no-image", help="Build the training image `localhost/trainfleet:local` too."),
]
NodesLike = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="OUTPUTS.json",
        help="Simulate a node of each node group in stack outputs (labels, taints, GPUs); repeatable.",
    ),
]
FakeNode = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME:GPUS[:KEY=VALUE,...]",
        help="Simulate one node with this number of GPUs and these labels; repeatable.",
    ),
]
Nodes = Annotated[
    int | None,
    typer.Option(
        "--nodes",
        min=1,
        help="The number of real nodes; more than before adds nodes.",
        show_default="1, or what the cluster has",
    ),
]
Devices = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[NODE:]RESOURCE=N[,...]",
        help="Offer stand-ins for devices, such as nvidia.com/gpu, on all nodes or one; repeatable.",
    ),
]
NetworkPolicies = Annotated[
    bool | None,
    typer.Option(
        "--network-policies/--no-network-policies",
        help="Enforce network policies.",
        show_default="yes, or what the cluster does",
    ),
]
Queue = Annotated[
    bool,
    typer.Option("--queue", help="Run Kueue too, which a stack's queue needs; it stays until `down`."),
]
NodeLabel = Annotated[
    list[str] | None,
    typer.Option(metavar="[NODE:]KEY=VALUE", help="Label all nodes or one; repeatable."),
]
NodeTaint = Annotated[
    list[str] | None,
    typer.Option(metavar="[NODE:]KEY[=VALUE]:EFFECT", help="Taint all nodes or one; repeatable."),
]
