"""Checks dashboards of CloudWatch and Cloud Monitoring.

Sources: the CloudWatch API reference, "Dashboard body structure and syntax"; the Monitoring API reference,
Dashboard.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trainfleet.rehearsal.simulation.json_documents.findings import Finding, dicts, number, unknown_keys
from trainfleet.rehearsal.simulation.pulumi_values import UNKNOWN
from trainfleet.suggestions import did_you_mean

_WIDGETS = ("metric", "text", "log", "alarm", "explorer", "custom")
_VIEWS = ("timeSeries", "singleValue", "gauge", "bar", "pie", "table")


def cloudwatch_dashboard(value: Any) -> Iterator[Finding]:
    """Check a CloudWatch dashboard: its widgets, and what each of them shows."""
    if not isinstance(value, dict):
        yield "", "is not a JSON object", "a dashboard is {'widgets': [...]}"
        return
    yield from unknown_keys("", value, ("widgets", "start", "end", "periodOverride", "variables"))
    if value.get("periodOverride") not in (None, "auto", "inherit", UNKNOWN):
        yield "periodOverride", f"{value['periodOverride']!r} is not one of the values", "auto or inherit"
    for index, widget in enumerate(dicts(value.get("widgets"))):
        yield from _widget(f"widgets[{index}]", widget)


def _widget(where: str, widget: dict[str, Any]) -> Iterator[Finding]:
    yield from unknown_keys(where, widget, ("type", "x", "y", "width", "height", "properties"))
    kind, properties = widget.get("type"), widget.get("properties")
    if kind not in (*_WIDGETS, UNKNOWN):
        yield (
            f"{where}.type",
            f"{kind!r} is not a widget type" if kind else "missing",
            did_you_mean(str(kind), _WIDGETS),
        )
    for name, low, high in (("width", 1, 24), ("height", 1, 1000), ("x", 0, 23), ("y", 0, 1_000_000)):
        yield from number(f"{where}.{name}", widget.get(name), low, high)
    if properties is None:
        yield f"{where}.properties", "missing", ""
    if not isinstance(properties, dict) or kind != "metric":
        return
    view = properties.get("view")
    if view not in (None, UNKNOWN, *_VIEWS):
        yield (
            f"{where}.properties.view",
            f"{view!r} is not one of the values",
            did_you_mean(str(view), _VIEWS),
        )
    if not any(name in properties for name in ("metrics", "annotations")):
        yield (
            f"{where}.properties.metrics",
            "missing",
            "a metric widget shows metrics, or an alarm in annotations",
        )
    period = properties.get("period")
    if isinstance(period, int) and period not in (1, 5, 10, 20, 30) and (period < 1 or period % 60):
        yield (
            f"{where}.properties.period",
            f"{period} is not a period",
            "it must be 1, 5, 10, 20, 30 or a multiple of 60",
        )


_LAYOUTS = ("gridLayout", "mosaicLayout", "rowLayout", "columnLayout")


def google_dashboard(value: Any) -> Iterator[Finding]:
    """Check a Cloud Monitoring dashboard: one layout, and the keys of its tiles."""
    if not isinstance(value, dict):
        yield "", "is not a JSON object", "a dashboard is {'displayName': ..., 'mosaicLayout': {...}}"
        return
    yield from unknown_keys(
        "", value, ("name", "displayName", "etag", "dashboardFilters", "annotations", "labels", *_LAYOUTS)
    )
    if not value.get("displayName"):
        yield "displayName", "missing", "a dashboard has a name"
    given = [name for name in _LAYOUTS if name in value]
    if len(given) > 1:
        yield given[1], f"conflicts with `{given[0]}`", "a dashboard has one layout"
    mosaic = value.get("mosaicLayout")
    if isinstance(mosaic, dict):
        yield from unknown_keys("mosaicLayout", mosaic, ("columns", "tiles"))
        yield from number("mosaicLayout.columns", mosaic.get("columns"), 1, 48)
        for index, tile in enumerate(dicts(mosaic.get("tiles"))):
            yield from unknown_keys(
                f"mosaicLayout.tiles[{index}]", tile, ("xPos", "yPos", "width", "height", "widget")
            )
