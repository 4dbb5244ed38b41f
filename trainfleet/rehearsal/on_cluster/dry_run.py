"""Every Kubernetes object of a stack through the API server's dry run: admission and validation answer, and
nothing is kept.

`documents_of` applies a stack to simulated clouds, so that ids and addresses are there; `dry_run` asks a
cluster about them. Easy to get wrong: an
object is only judged in a namespace that exists, a pod only beside its account, a custom resource only under
its definition; so those three are
made for real, and removed at the end.
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
from trainfleet.rehearsal.on_cluster.applier import Maker
from trainfleet.rehearsal.on_cluster.cluster_target import Target
from trainfleet.rehearsal.on_cluster.definitions import brought, definitions_of
from trainfleet.rehearsal.on_cluster.objects import pods, shown, to_object
from trainfleet.rehearsal.simulation.kubernetes import is_object
from trainfleet.rehearsal.simulation.pulumi_values import plain
from trainfleet.rehearsal.simulation.state import RefusedError

if TYPE_CHECKING:
    from rich.table import Table

FIRST = ("Namespace", "CustomResourceDefinition", "ServiceAccount", "PriorityClass")
"""What others need to be judged: made for real, in this order."""


@dataclass
class Judged:
    """What the API server said of one stack's objects."""

    stack: str
    objects: int = 0
    refused: list[tuple[str, str]] = field(default_factory=list)
    """Objects, and why."""
    not_judged: list[str] = field(default_factory=list)
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
    from trainfleet.rehearsal.steps.session import APPLY, Wishes, staged

    with staged(read_project(project_root(), stack), find_engine(), Wishes()) as r:
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


def dry_run(target: Target, stacks: Iterable[Objects]) -> Iterator[Judged]:
    """Ask a cluster about each stack in turn; when the iteration ends, the cluster is as before.

    Raises:
        TrainfleetError: the cluster cannot be reached, or what was made for the questions cannot be removed.
    """
    with sharing(), connected(target) as api:
        maker = Maker(api)
        try:
            for stack in stacks:
                yield _judged(maker, stack)
        finally:
            with uninterrupted():
                maker.close()
                left = maker.clear()
            if left:
                raise TrainfleetError(
                    "the cluster is not as before", [Problem(target.context, text) for text in left]
                )


def _judged(maker: Maker, stack: Objects) -> Judged:
    began = time.monotonic()
    judged = Judged(stack.stack, len(stack.documents))
    maker.api.warnings.clear()
    kinds = dict.fromkeys(f"{document['apiVersion']}:{document['kind']}" for document in stack.documents)
    for definition in (
        *(brought(kind) for kind in kinds),
        *(each for chart in stack.charts for each in definitions_of(chart)),
    ):
        if definition is not None:
            _make(maker, definition, judged, keep=True)
    rest = [document for document in stack.documents if document["kind"] not in FIRST]
    for kind in FIRST:
        for document in stack.documents:
            if document["kind"] == kind:
                _make(maker, document, judged)
    for document in rest:
        try:
            maker.api.apply(document, dry_run=True)
        except UnknownKindError:
            judged.not_judged.append(f"{shown(document)} ({document['apiVersion']})")
        except ApiError as error:
            judged.refused.append((shown(document), error.message))
    judged.refused += pods_refused(maker.api, rest)
    judged.warnings = sorted({text for texts in maker.api.warnings.values() for text in texts})
    judged.seconds = time.monotonic() - began
    return judged


def _make(maker: Maker, document: Document, judged: Judged, *, keep: bool = False) -> None:
    """Make what others need; with `keep` one that is there already will do."""
    if keep and maker.api.get(maker.api.path_of(document)) is not None:
        return
    try:
        maker.make(document)
    except RefusedError as error:
        judged.refused.append((shown(document), str(error)))


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


def table(context: str, stacks: Sequence[Judged]) -> Table:
    """A row per stack, for people."""
    from rich.table import Table

    made = Table(title=f"Dry run of Kubernetes' objects on {context}", title_justify="left")
    for heading in ("Stack", "Objects", "Refused", "Not judged", "Warnings", "Seconds"):
        made.add_column(heading, justify="left" if heading == "Stack" else "right")
    for each in stacks:
        refused = f"[bold red]{len(each.refused)}[/]" if each.refused else "0"
        made.add_row(
            each.stack,
            str(each.objects),
            refused,
            str(len(each.not_judged)),
            str(len(each.warnings)),
            f"{each.seconds:.1f}",
        )
    return made


def as_json(judged: Judged) -> dict[str, Any]:
    """One stack's row, for scripts."""
    return {
        "stack": judged.stack,
        "objects": judged.objects,
        "refused": [{"object": name, "why": why} for name, why in judged.refused],
        "not_judged": judged.not_judged,
        "warnings": judged.warnings,
        "seconds": round(judged.seconds, 2),
    }
