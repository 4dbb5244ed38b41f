"""Dashboards and alerts show what is measured: every metric is known with its source, every panel asks for
something.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.infra.kubernetes.planned import Planned, plan
from trainfleet.infra.kubernetes.dashboards.alerts import GPUS
from trainfleet.infra.kubernetes.dashboards.metrics import METRICS, RAY
from trainfleet.infra.kubernetes.dashboards.panels import COLUMNS, Dashboard, Panel, Query

FUNCTIONS = {
    "sum",
    "avg",
    "max",
    "min",
    "count",
    "rate",
    "round",
    "increase",
    "max_over_time",
    "sum_over_time",
    "vector",
}
WORDS = {"by", "and", "or", "unless", "on", "without"}
NAME = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]*")


@cache
def whole() -> Planned:
    return plan()


def boards(planned: Planned) -> dict[str, dict[str, Any]]:
    found = [
        inputs["data"]
        for name, inputs in planned.of("ConfigMap").items()
        if name.startswith("lab-dashboard-")
    ]
    return {key: json.loads(text) for data in found for key, text in data.items()}


def expressions(planned: Planned) -> Iterator[str]:
    for board in boards(planned).values():
        for panel in board["panels"]:
            yield from (target["expr"] for target in panel["targets"])
    for group in planned.custom("PrometheusRule")["trainfleet"]["spec"]["groups"]:
        yield from (rule["expr"] for rule in group["rules"])


def metrics_in(expression: str) -> set[str]:
    """The names that are asked for: what is left when label matchers, label lists, durations, functions and
    words are gone.
    """
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]", " ", expression)
    bare = re.sub(r"\b(by|on|without)\s*\([^)]*\)", " ", bare)
    return {
        name
        for name in NAME.findall(bare)
        if name not in FUNCTIONS | WORDS and not re.fullmatch(r"e\d+", name)
    }


def test_every_expression_asks_for_known_metrics_only() -> None:
    every = list(expressions(whole()))
    assert len(every) > 35
    for expression in every:
        found = metrics_in(expression)
        assert found, f"asks for nothing: {expression}"
        assert found <= METRICS.keys(), f"{found - METRICS.keys()} in {expression}"
        assert expression.count("(") == expression.count(")")
        assert expression.count("{") == expression.count("}")


def test_every_metric_in_the_list_is_used_by_something() -> None:
    used = {name for expression in expressions(whole()) for name in metrics_in(expression)}
    assert used == METRICS.keys()


def test_ray_exports_the_metrics_that_are_listed_as_rays() -> None:
    ray = find_spec("ray")
    if ray is None or ray.origin is None:
        pytest.skip("Ray is not installed")
    panels = Path(ray.origin).parent / "dashboard" / "modules" / "metrics" / "dashboards"
    exported = set(NAME.findall(" ".join(path.read_text() for path in panels.glob("*_panels.py"))))
    assert {name for name, source in METRICS.items() if source == RAY} <= exported


def test_a_dashboard_is_found_by_grafana_and_its_panels_fit_the_grid() -> None:
    found = boards(whole())
    assert {board["uid"] for board in found.values()} == {
        "trainfleet-gpu",
        "trainfleet-ray",
        "trainfleet-training",
        "trainfleet-cost",
    }
    for key, board in found.items():
        assert key == f"{board['uid']}.json"
        assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
        taken: set[tuple[int, int]] = set()
        for panel in board["panels"]:
            place = panel["gridPos"]
            cells = {
                (x, y)
                for x in range(place["x"], place["x"] + place["w"])
                for y in range(place["y"], place["y"] + place["h"])
            }
            assert place["x"] + place["w"] <= COLUMNS
            assert not cells & taken, f"{panel['title']} overlaps another"
            taken |= cells
            assert panel["targets"], panel["title"]
    labels = [
        inputs["metadata"]["labels"]
        for name, inputs in whole().of("ConfigMap").items()
        if name.startswith("lab-dashboard-")
    ]
    sidecar = whole().values("lab-prometheus")["grafana"]["sidecar"]["dashboards"]
    assert all(label == {sidecar["label"]: sidecar["labelValue"]} for label in labels)


def test_cost_is_nodes_times_the_list_price_of_their_pool() -> None:
    cost = boards(whole())["trainfleet-cost.json"]
    panels = {panel["title"]: [target["expr"] for target in panel["targets"]] for panel in cost["panels"]}
    h100, l4 = panels["Per hour, by pool"]
    assert h100.startswith('(count(kube_node_labels{label_trainfleet_io_pool="h100"}) or vector(0)) * ')
    assert float(h100.rpartition(" ")[2]) > float(l4.rpartition(" ")[2]) > 0
    assert panels["Per hour, now"] == [f"({h100}) + ({l4})"]
    allowed = whole().values("lab-prometheus")["kube-state-metrics"]["metricLabelsAllowlist"]
    assert allowed == ["nodes=[trainfleet.io/pool]"], "else the label is not shown"


def test_a_platform_without_gpus_has_no_dashboard_of_them_and_no_queue_no_panel() -> None:
    bare = plan({"gpu_pools": []})
    assert {board["uid"] for board in boards(bare).values()} == {"trainfleet-ray", "trainfleet-training"}
    assert not [
        name
        for expression in expressions(bare)
        for name in metrics_in(expression)
        if name.startswith("kueue_")
    ]


def test_every_alert_says_how_bad_it_is_what_is_wrong_and_what_to_do() -> None:
    rules = [
        rule
        for group in whole().custom("PrometheusRule")["trainfleet"]["spec"]["groups"]
        for rule in group["rules"]
    ]
    names = [rule["alert"] for rule in rules]
    assert {"GpuXidError", "NodeNotReady", "RayHeadDown", "TrainingStalled"} <= set(names)
    assert len(names) == len(set(names))
    for rule in rules:
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert re.fullmatch(r"\d+[mh]", rule["for"])
        assert len(rule["annotations"]["summary"]) > 20
        assert len(rule["annotations"]["description"]) > 40


def alerts(planned: Planned) -> dict[str, str]:
    """The expression of each alert."""
    groups = planned.custom("PrometheusRule")["trainfleet"]["spec"]["groups"]
    return {rule["alert"]: rule["expr"] for group in groups for rule in group["rules"]}


def test_runs_that_ask_for_more_than_the_quota_count_as_waiting() -> None:
    # Kueue 0.17, pkg/metrics: these are `inadmissible`; `active` are those that it tries to admit.
    assert "sum(kueue_pending_workloads) > 0" in alerts(whole())["QueueNotMoving"]


def test_three_restarts_are_not_more_than_three() -> None:
    # `increase` extrapolates to the edges of the window, so that three restarts are a little more than 3.
    assert re.fullmatch(r"round\(increase\(.*\[30m\]\)\) > 3", alerts(whole())["RayPodRestarts"])


def test_a_pod_that_has_just_started_is_not_stalled() -> None:
    # Over a window that is longer than the pod's life, a maximum is that of its first minutes.
    (rule,) = [rule for rule in GPUS if rule.alert == "TrainingStalled"]
    assert re.search(r"max_over_time\(.*\[5m\]\)", rule.expr)
    assert rule.for_ == "30m"


def test_a_signer_without_pods_is_reported_where_there_is_one() -> None:
    deployment = whole().inputs["lab-ray-signer-deployment"]["metadata"]
    expression = alerts(whole())["RaySignerDown"]
    assert f'namespace="{deployment["namespace"]}", deployment="{deployment["name"]}"' in expression
    assert "RaySignerDown" not in alerts(plan({"ray": {"tls": False}}))


def test_an_alert_on_xid_errors_leaves_out_those_of_programs() -> None:
    (rule,) = [
        rule
        for group in whole().custom("PrometheusRule")["trainfleet"]["spec"]["groups"]
        for rule in group["rules"]
        if rule["alert"] == "GpuXidError"
    ]
    assert "DCGM_FI_DEV_XID_ERRORS != 0" in rule["expr"]
    assert "!= 13" in rule["expr"]
    assert "!= 79" not in rule["expr"], "a GPU that has fallen off the bus"


def test_ray_pods_are_scraped_with_the_labels_that_the_panels_use() -> None:
    monitors = whole().custom("PodMonitor")
    assert monitors.keys() == {"ray-head", "ray-worker"}
    for name, monitor in monitors.items():
        assert monitor["spec"]["selector"]["matchLabels"] == {"ray.io/node-type": name.removeprefix("ray-")}
        for endpoint in monitor["spec"]["podMetricsEndpoints"]:
            assert {each["targetLabel"] for each in endpoint["relabelings"]} == {
                "ray_io_cluster",
                "ray_io_node_type",
            }


def test_a_row_that_is_full_begins_a_new_one() -> None:
    board = Dashboard(
        "x", "X", tuple(Panel(str(number), (Query("up"),), width=10, height=number) for number in (3, 5, 2))
    )
    assert [panel["gridPos"] for panel in json.loads(board.json())["panels"]] == [
        {"x": 0, "y": 0, "w": 10, "h": 3},
        {"x": 10, "y": 0, "w": 10, "h": 5},
        {"x": 0, "y": 5, "w": 10, "h": 2},
    ]
