"""What the upgrade of a chart needs besides `pulumi up`."""

from __future__ import annotations

from collections.abc import Iterable

from trainfleet.rehearsal.diff.helm.comparison import IN_CRDS, REFUSED, ChartDiff
from trainfleet.rehearsal.diff.procedure import Step


def chart_steps(charts: Iterable[ChartDiff]) -> list[Step]:
    """Return the steps: objects that Helm cannot change, and definitions that it does not."""
    found = []
    for chart in charts:
        for each in chart.objects:
            kind = each.change.token.rsplit(":", 1)[-1]
            if each.note.startswith(REFUSED):
                what = f"delete {kind} {each.change.name} of {chart.name} (--cascade=orphan keeps its pods)"
                found.append(Step("before", what, each.note))
        if names := [each.change.name for each in chart.objects if each.note == IN_CRDS]:
            what = f"kubectl apply --server-side the definitions of chart {chart.name}: {', '.join(names)}"
            found.append(
                Step("before", what, "they are in crds/, which Helm installs once and never changes")
            )
    return found
