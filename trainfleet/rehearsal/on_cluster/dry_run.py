"""Sends every Kubernetes object of a stack through the API server's dry run, which validates and stores nothing.

`documents_of` applies a stack to simulated clouds, so that IDs and addresses are known. `dry_run` sends the
objects to a cluster.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trainfleet.errors import Problem, TrainfleetError
from trainfleet.rehearsal.engine.process_pool import sharing
from trainfleet.rehearsal.engine.sandbox import uninterrupted
from trainfleet.rehearsal.on_cluster.api import Api, ApiError, Document, UnknownKindError, connected
from trainfleet.rehearsal.on_cluster.applier import Applier
from trainfleet.rehearsal.on_cluster.cluster_target import Target
from trainfleet.rehearsal.on_cluster.definitions import definitions_of, provided
from trainfleet.rehearsal.on_cluster.objects import pods, shown, to_object
from trainfleet.rehearsal.simulation.kubernetes import is_object
from trainfleet.rehearsal.simulation.pulumi_values import plain
from trainfleet.rehearsal.simulation.state import RefusedError

if TYPE_CHECKING:
    from rich.table import Table

FIRST = ("Namespace", "CustomResourceDefinition", "ServiceAccount", "PriorityClass")
"""What others need to be checked: made for real, in this order."""


@dataclass
class DryRunResult:
    """What the API server said of one stack's objects."""

    stack: str
    objects: int = 0
    refused: list[tuple[str, str]] = field(default_factory=list)
    """Objects, and why."""
    unchecked: list[str] = field(default_factory=list)
    """Objects of kinds whose definition is nowhere to be had."""
    warnings: list[str] = field(default_factory=list)
    seconds: float = 0.0


@dataclass(frozen=True)
class Objects:
    """A stack's objects, and the charts that it installs."""

    stack: str
    documents: list[Document]
    charts: list[str]


def objects_of(stack: str) -> Objects:
    """Apply a stack of this project to simulated clouds, and return what it makes in Kubernetes.

    Raises:
        TrainfleetError: the apply fails.
    """
    from trainfleet.rehearsal.engine.find import find_engine
    from trainfleet.rehearsal.engine.sandbox import read_project
    from trainfleet.rehearsal.project_lookup import project_root
    from trainfleet.rehearsal.report import Step
    from trainfleet.rehearsal.steps.session import APPLY, RehearsalOptions, rehearsal_session

    with rehearsal_session(read_project(project_root(), stack), find_engine(), RehearsalOptions()) as r:
        step = Step("apply", "apply")
        outcome = r.run(step, *APPLY)
        if not outcome.ok:
            r.failed(step, outcome)
            raise TrainfleetError(f"{stack} cannot be applied", step.problems)
        made = [
            (record.token, record.inputs)
            for record in r.cloud.everything()
            if record.token.startswith("kubernetes:")
        ]
    charts = [
        str(plain(inputs)["chart"]).rsplit("/", 1)[-1]
        for token, inputs in made
        if token.startswith("kubernetes:helm.sh/")
    ]
    return Objects(stack, [to_object(inputs) for token, inputs in made if is_object(token)], charts)


def dry_run(target: Target, stacks: Iterable[Objects]) -> Iterator[DryRunResult]:
    """Ask a cluster about each stack in turn; when the iteration ends, the cluster is as before.

    Raises:
        TrainfleetError: the cluster cannot be reached, or what was made for the questions cannot be removed.
    """
    with sharing(), connected(target) as api:
        applier = Applier(api, shares_namespaces=target.built_in is not None)
        try:
            for stack in stacks:
                yield _check_stack(applier, stack)
        finally:
            with uninterrupted():
                applier.close()
                left = applier.clear()
            if left:
                raise TrainfleetError(
                    "the cluster is not as before", [Problem(target.context, text) for text in left]
                )


def _check_stack(applier: Applier, stack: Objects) -> DryRunResult:
    began = time.monotonic()
    result = DryRunResult(stack.stack, len(stack.documents))
    applier.api.warnings.clear()
    kinds = dict.fromkeys(f"{document['apiVersion']}:{document['kind']}" for document in stack.documents)
    for definition in (
        *(provided(kind) for kind in kinds),
        *(each for chart in stack.charts for each in definitions_of(chart)),
    ):
        if definition is not None:
            _try(applier, definition, result, keep=True)
    rest = [document for document in stack.documents if document["kind"] not in FIRST]
    for kind in FIRST:
        for document in stack.documents:
            if document["kind"] == kind:
                _try(applier, document, result)
    for document in rest:
        try:
            applier.api.apply(document, dry_run=True)
        except UnknownKindError:
            result.unchecked.append(f"{shown(document)} ({document['apiVersion']})")
        except ApiError as error:
            result.refused.append((shown(document), error.message))
    result.refused += pods_refused(applier.api, rest)
    result.warnings = sorted({text for texts in applier.api.warnings.values() for text in texts})
    result.seconds = time.monotonic() - began
    return result


def _try(applier: Applier, document: Document, result: DryRunResult, *, keep: bool = False) -> None:
    """Make what others need; with `keep` one that already exists will do."""
    if keep and applier.api.get(applier.api.path_of(document)) is not None:
        return
    try:
        applier.make(document)
    except RefusedError as error:
        result.refused.append((shown(document), str(error)))


def pods_refused(api: Api, documents: Sequence[Document]) -> list[tuple[str, str]]:
    """The workloads whose pods admission would refuse (Pod Security, quota, account), and why; admission of
    workloads themselves only warns.
    """
    refused = []
    for document in documents:
        for pod in pods(document):
            try:
                api.create(pod, dry_run=True)
            except ApiError as error:
                refused.append((shown(document), error.message))
    return refused


def table(context: str, stacks: Sequence[DryRunResult]) -> Table:
    """A row per stack, for people."""
    from rich.table import Table

    made = Table(title=f"Dry run of Kubernetes' objects on {context}", title_justify="left")
    for heading in ("Stack", "Objects", "Refused", "Not checked", "Warnings", "Seconds"):
        made.add_column(heading, justify="left" if heading == "Stack" else "right")
    for each in stacks:
        refused = f"[bold red]{len(each.refused)}[/]" if each.refused else "0"
        made.add_row(
            each.stack,
            str(each.objects),
            refused,
            str(len(each.unchecked)),
            str(len(each.warnings)),
            f"{each.seconds:.1f}",
        )
    return made


def as_json(result: DryRunResult) -> dict[str, Any]:
    """One stack's row, for scripts."""
    return {
        "stack": result.stack,
        "objects": result.objects,
        "refused": [{"object": name, "why": why} for name, why in result.refused],
        "not_judged": result.unchecked,
        "warnings": result.warnings,
        "seconds": round(result.seconds, 2),
    }
