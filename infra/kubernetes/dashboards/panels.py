"""Panels and dashboards as types, and the JSON that Grafana reads.

A dashboard is identified by its `uid`. Panels are placed on a grid of 24 columns in the given order.
"""

from __future__ import annotations

import json
from typing import Any

from trainfleet.infra.kubernetes.manifest_model import document

COLUMNS = 24
SCHEMA = 39
"""Of Grafana's dashboard model; a newer Grafana provides it forward by itself."""
DATASOURCE = {"type": "prometheus", "uid": "prometheus"}
"""The data source that kube-prometheus-stack gives to Grafana."""


@document
class Query:
    """A PromQL expression, and how its lines are named (`{{label}}`)."""

    expression: str
    legend: str = ""


@document
class Panel:
    """A chart over time, or one figure (`stat`)."""

    title: str
    queries: tuple[Query, ...]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 12
    height: int = 8
    description: str = ""
    maximum: float | None = None


@document
class Dashboard:
    uid: str
    title: str
    panels: tuple[Panel, ...]
    tags: tuple[str, ...] = ("trainfleet",)

    def json(self) -> str:
        """The dashboard as Grafana reads it, the same text every time."""
        return json.dumps(self._document(), separators=(",", ":"))

    def _document(self) -> dict[str, Any]:
        return {
            "uid": self.uid,
            "title": self.title,
            "tags": list(self.tags),
            "schemaVersion": SCHEMA,
            "editable": False,
            "timezone": "utc",
            "refresh": "30s",
            "time": {"from": "now-6h", "to": "now"},
            "panels": _placed(self.panels),
        }


def _placed(panels: tuple[Panel, ...]) -> list[dict[str, Any]]:
    placed: list[dict[str, Any]] = []
    x = y = row = 0
    for number, panel in enumerate(panels, 1):
        if x + panel.width > COLUMNS:
            x, y, row = 0, y + row, 0
        placed.append(_panel(panel, number, {"x": x, "y": y, "w": panel.width, "h": panel.height}))
        x, row = x + panel.width, max(row, panel.height)
    return placed


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    defaults = {"unit": panel.unit, "min": 0, **({"max": panel.maximum} if panel.maximum is not None else {})}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": DATASOURCE,
                "expr": query.expression,
                "legendFormat": query.legend or "__auto",
            }
            for index, query in enumerate(panel.queries)
        ],
    }
