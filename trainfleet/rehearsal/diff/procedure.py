"""How to apply a change: what needs a step of its own before or after `pulumi up`, and what it interrupts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trainfleet.rehearsal.diff.change import Change, Verb

CLUSTERS = (
    "aws:eks/cluster:Cluster",
    "gcp:container/cluster:Cluster",
    "azure-native:containerservice:ManagedCluster",
)
"""The engine closes the Kubernetes provider of a replaced cluster before it deletes what is in the cluster
(docs/reliability.md).
"""
NODES = (
    "aws:eks/nodeGroup:NodeGroup",
    "gcp:container/nodePool:NodePool",
    "azure-native:containerservice:AgentPool",
)
SHOWN = 6
"""Names in a step; the others are counted."""


@dataclass(frozen=True)
class Step:
    """A step of a procedure: when, what to do, and why."""

    when: str
    """`before`, `instead` or `after` the apply, or `during` it: nothing to do, but to expect."""
    what: str
    why: str


def procedure(changes: Iterable[Change]) -> list[Step]:
    """Return the steps besides `pulumi up`, in their order; empty if it is enough by itself."""
    changes = list(changes)
    gone = [change for change in changes if change.verb in (Verb.REPLACE, Verb.DELETE)]
    found: list[Step] = []
    if unsure := [change.name for change in changes if change.may_replace]:
        what = f"preview with the real providers, and read what happens to {_some(unsure)}"
        found.append(Step("before", what, "no rule tells whether they are replaced"))
    if protected := [change.name for change in gone if change.protected]:
        what = f"pulumi state unprotect for {_some(protected)}"
        found.append(Step("before", what, "the apply refuses to delete what is protected"))
    clusters = [change.name for change in gone if change.token in CLUSTERS and change.verb is Verb.REPLACE]
    inside = [change for change in gone if change.token.startswith("kubernetes:")]
    if clusters and inside:
        what = (
            "two commands: pulumi destroy --target 'urn:pulumi:**$kubernetes:**' --target-dependents, then"
            " pulumi up"
        )
        why = f"{_some(clusters)} must be deleted first, and what is in it before that"
        found.append(Step("instead", what, why))
    rolled = [
        change.name
        for change in changes
        if change.token in NODES and change.destructive and change.verb is not Verb.CREATE
    ]
    if rolled:
        what = f"the nodes of {_some(rolled)} are drained"
        found.append(Step("during", what, "their pods stop; trainings resume from their last checkpoint"))
    if kept := [change.name for change in gone if change.kept]:
        what = f"import or delete by hand: {_some(kept)}"
        found.append(Step("after", what, "they stay in the cloud, and no stack manages them any more"))
    return found


def _some(names: Sequence[str]) -> str:
    shown = sorted(names)
    more = f" and {len(shown) - SHOWN} more" if len(shown) > SHOWN else ""
    return ", ".join(shown[:SHOWN]) + more
