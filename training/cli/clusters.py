"""`trainfleet launch --clusters`: the same recipe on several clusters at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from trainfleet.training.launch.clusters.summary import Member
    from trainfleet.training.launch.request import Request

Clusters = Annotated[
    str | None,
    typer.Option(
        "--clusters",
        metavar="A.json,B.json|FILE.yaml",
        help="Start one run on each of these platforms at once. A YAML file also names each one's launcher, "
        "changes and options.",
    ),
]


def launch_on_clusters(base: Request, clusters: str, given: Mapping[str, Any], *, show: bool) -> None:
    """Start or resume a run on each cluster, and report how they ended.

    Raises:
        InputError: mistakes in the list or on a cluster; nothing was started.
        TrainfleetError: runs failed; the others have ended by themselves.
    """
    import os

    from trainfleet.console import out, print_json
    from trainfleet.errors import InputError, Problem
    from trainfleet.training.launch import code
    from trainfleet.training.launch.clusters.entries import read_entries, requests
    from trainfleet.training.launch.clusters.group import start
    from trainfleet.training.launch.supervise import resolve

    alone = {"--stack": bool(base.stacks), "--print or --write": show}
    if problems := [
        Problem(flag, "is for one cluster", "leave it out, or use it without --clusters")
        for flag, used in alone.items()
        if used
    ]:
        raise InputError("options that do not go together", problems)
    entries = read_entries(clusters, base.on)
    code.import_first(code.folder_of(base.code, base.recipe, base.overrides))
    recipe, _ = resolve(base, os.environ)
    outcome = start(
        recipe.name,
        requests(base, recipe.name, entries, given),
        [each.name for each in entries],
        as_json=base.json,
    )
    if base.json:
        print_json(outcome.document)
    else:
        for line in [*map(_line, outcome.members), *_files(outcome.document)]:
            out().print(line, soft_wrap=True, markup=False)
    if outcome.error is not None:
        raise outcome.error


def _line(member: Member) -> str:
    """How the run of one cluster ended."""
    from trainfleet.training.runtime.progress import duration

    document = member.document
    parts = [f"{member.name}: {member.status}"]
    if document.get("step") is not None:
        parts.append(f"{document['step']} steps in {duration(document['seconds'])}")
    metrics: dict[str, float] = document.get("metrics", {})
    if "validation/loss" in metrics:
        parts.append(f"validation {metrics['validation/loss']:.4f} loss")
    return ", ".join(
        [*parts, *([member.summary] if member.status == "failed" else []), *document.get("how", [])]
    )


def _files(document: Mapping[str, Any]) -> list[str]:
    return [f"report     {document['report']}"] if document["report"] else []
