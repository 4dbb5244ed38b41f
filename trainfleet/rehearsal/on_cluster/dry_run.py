"""Sends a stack's Kubernetes objects through the API server's dry run, which validates and stores nothing.

`objects_of` applies a stack to simulated clouds, so that IDs and addresses are known. `dry_run` sends the
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
from trainfleet.rehearsal.simulation.kubernetes.model import is_object
from trainfleet.rehearsal.simulation.pulumi_values import plain
from trainfleet.rehearsal.simulation.state import RefusedError

if TYPE_CHECKING:
    from rich.table import Table

FIRST = ("Namespace", "CustomResourceDefinition", "ServiceAccount", "PriorityClass")
"""Kinds that the validation of other objects depends on: really created, in this order."""


@dataclass
class DryRunResult:
    """The dry-run result of one stack."""

    stack: str
    objects: int = 0
    refused: list[tuple[str, str]] = field(default_factory=list)
    """Objects and the reason for the rejection."""
    unchecked: list[str] = field(default_factory=list)
    """Objects whose kind has no available definition."""
    warnings: list[str] = field(default_factory=list)
    seconds: float = 0.0


@dataclass(frozen=True)
class Objects:
    """A stack's objects and the charts that it installs."""

    stack: str
    documents: list[Document]
    charts: list[str]


def objects_of(stack: str) -> Objects:
    """Apply a stack of this project to simulated clouds and return its Kubernetes objects.

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
    """Check each stack on a cluster; everything that was created is deleted at the end of the iteration.

    Raises:
        TrainfleetError: the cluster cannot be reached, or a created object cannot be deleted.
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
                    "the cluster was not restored", [Problem(target.context, text) for text in left]
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
    """Create an object that others depend on; with `keep`, accept an existing one as it is."""
    if keep and applier.api.get(applier.api.path_of(document)) is not None:
        return
    try:
        applier.make(document)
    except RefusedError as error:
        result.refused.append((shown(document), str(error)))


def pods_refused(api: Api, documents: Sequence[Document]) -> list[tuple[str, str]]:
    """Return the workloads whose pods admission rejects (Pod Security, quota, account), and the reason.

    Pods are checked separately because admission only warns about the workloads themselves.
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
    """Return a table with a row per stack."""
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
    """Return one stack's row for `--json`."""
    return {
        "stack": result.stack,
        "objects": result.objects,
        "refused": [{"object": name, "why": why} for name, why in result.refused],
        "not_judged": result.unchecked,
        "warnings": result.warnings,
        "seconds": round(result.seconds, 2),
    }
