"""Which policies the objects of rendered charts newly violate."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from trainfleet.rehearsal.diff.change import SECRET
from trainfleet.rehearsal.diff.charts import ComparedCharts
from trainfleet.rehearsal.diff.compare import HIDDEN
from trainfleet.rehearsal.diff.helm.chart import Chart
from trainfleet.rehearsal.diff.helm.comparison import object_name, object_urn
from trainfleet.rehearsal.diff.helm.template import Rendered, Rendering
from trainfleet.rehearsal.diff.model import Failing
from trainfleet.rehearsal.diff.policy_changes import UnreadablePackError, run_pack

OF_HELM = "Helm installs it, so `pulumi up` does not check it."


def failing_in_charts(
    charts: ComparedCharts, pack: Path | None, root: Path, settings: Mapping[str, Any]
) -> tuple[tuple[Failing, ...], list[str]]:
    """Return the violations that only the new versions have, and a note if the pack cannot be used.

    Only policies for single resources are used, because a policy for the whole stack would need the other
    resources, too. What Helm installs is advisory: the engine does not see it.

    Args:
        charts: the renderings of both versions.
        pack: the policy pack; None if there is none.
        root: the checkout, from which the pack imports its modules.
        settings: the stack's settings.
    """
    before = {row["urn"]: row for each in charts.renderings for row in _resources(each.old, each.before)}
    after = {row["urn"]: row for each in charts.renderings for row in _resources(each.new, each.after)}
    changed = [row for urn, row in after.items() if before.get(urn) != row]
    if pack is None or not changed:
        return (), []
    try:
        old = run_pack(pack, root, settings, [before[row["urn"]] for row in changed if row["urn"] in before])
        new = run_pack(pack, root, settings, changed)
    except UnreadablePackError as error:
        return (), [f"The objects in charts could not be checked against the policies: {error}."]
    known = {_key(row) for row in old}
    of_helm = {each.new.name for each in charts.renderings if each.new and each.new.is_release}
    found = {_key(row): _failing(row, after, of_helm) for row in new if _key(row) not in known}
    return tuple(each for _, each in sorted(found.items())), []


def _key(row: Mapping[str, Any]) -> tuple[str, str]:
    return str(row["policy"]), str(row["urn"])


def _failing(row: Mapping[str, Any], resources: Mapping[str, Any], of_helm: Collection[str]) -> Failing:
    resource = resources.get(row["urn"], {})
    chart = resource.get("chart", "")
    message, level = str(row["message"]), str(row["level"])
    if chart in of_helm:
        message, level = f"{message}\n{OF_HELM}", "advisory"
    shown = f"{resource.get('kind')} {resource.get('name')} of chart {chart}"
    return Failing(str(row["policy"]), shown, message, level)


def _resources(chart: Chart | None, rendering: Rendering) -> Iterator[dict[str, Any]]:
    """Yield the objects of a chart as the engine gives resources to a policy."""
    for key, each in rendering.objects.items() if chart else ():
        assert chart is not None
        yield {
            "type": each.token,
            "kind": key[1],
            "name": object_name(chart, key),
            "urn": object_urn(chart, key),
            "chart": chart.name,
            "props": {**_without_secrets(each), "metadata": {"namespace": key[2], **each.body["metadata"]}},
        }


def _without_secrets(each: Rendered) -> dict[str, Any]:
    hidden = HIDDEN.get(each.token, ())
    return {
        name: dict.fromkeys(value, SECRET) if name in hidden and isinstance(value, Mapping) else value
        for name, value in each.body.items()
    }
