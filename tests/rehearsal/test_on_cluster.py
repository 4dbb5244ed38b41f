"""What a rehearsal on a cluster does before it asks one: objects out of inputs, drift, definitions, flags,
and
whether it may begin.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from trainfleet.errors import InputError, MissingToolError
from trainfleet.infra.kubernetes.chart_keys import known
from trainfleet.rehearsal.cli.rehearse import rehearse
from trainfleet.rehearsal.on_cluster.applier import AppliedObject, managers
from trainfleet.rehearsal.on_cluster.cluster_target import named
from trainfleet.rehearsal.on_cluster.definitions import KINDS, PROVIDED, definitions_of, structural
from trainfleet.rehearsal.on_cluster.inventory import Inventory, leftover
from trainfleet.rehearsal.on_cluster.objects import as_it_is, pods, to_object
from trainfleet.rehearsal.on_cluster.operator import flags, variables
from trainfleet.rehearsal.simulation.pulumi_values import secret


def test_inputs_become_the_object_that_the_api_knows() -> None:
    inputs = {
        "apiVersion": "v1",
        "spec": {"x_kubernetes_list_type": "map", "port": 80.0, "none": None},
        "__defaults": [],
        "data": secret({"a": "b"}),
    }
    assert to_object(inputs) == {
        "apiVersion": "v1",
        "spec": {"x-kubernetes-list-type": "map", "port": 80},
        "data": {"a": "b"},
    }


@pytest.mark.parametrize(
    ("inputs", "live", "now"),
    [
        (
            {"labels": {"a": "b"}},
            {"labels": {"a": "b", "others": "too"}, "status": {}},
            {"labels": {"a": "b"}},
        ),
        ({"labels": {"a": "b", "c": "d"}}, {"labels": {"a": "b"}}, {"labels": {"a": "b"}}),
        ({"labels": {"a": "b"}}, {"labels": {"a": "changed"}}, {"labels": {"a": "changed"}}),
        ({"cpu": "1000m", "memory": "1Gi"}, {"cpu": "1", "memory": "1Gi"}, {"cpu": "1000m", "memory": "1Gi"}),
        ({"ports": [{"port": 1.0}]}, {"ports": [{"port": 1, "protocol": "TCP"}]}, {"ports": [{"port": 1.0}]}),
        (
            {"ports": [{"port": 1.0}]},
            {"ports": [{"port": 1}, {"port": 2}]},
            {"ports": [{"port": 1}, {"port": 2}]},
        ),
        ({"annotations": {}, "stringData": {"a": "b"}}, {}, {"annotations": {}, "stringData": {"a": "b"}}),
        ({"data": secret({"a": "b"})}, {"data": {"a": "other"}}, {"data": secret({"a": "b"})}),
        (
            {"x_kubernetes_list_type": "map"},
            {"x-kubernetes-list-type": "map"},
            {"x_kubernetes_list_type": "map"},
        ),
    ],
    ids=[
        "what others add",
        "what is removed",
        "what is changed",
        "quantities",
        "defaults",
        "longer",
        "empty",
        "secret",
        "spelling",
    ],
)
def test_of_a_live_object_only_what_the_program_asked_for_counts(
    inputs: dict[str, Any], live: dict[str, Any], now: dict[str, Any]
) -> None:
    assert as_it_is(inputs, live) == now


def test_a_workload_is_checked_by_the_pod_that_it_would_make() -> None:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": []}}
    job = {"kind": "Job", "metadata": {"name": "n", "namespace": "training"}, "spec": {"template": template}}
    (pod,) = pods(job)
    assert pod["metadata"] == {"labels": {"a": "b"}, "name": "n-pod", "namespace": "training"}
    assert not list(pods({"kind": "ConfigMap", "metadata": {"name": "n"}}))


def test_each_custom_kind_of_the_layer_has_a_definition() -> None:
    """`Configuration` is a file of Kueue's and no kind of the API."""
    defined = {kind for kinds in KINDS.values() for kind in kinds}
    assert {kind for kind in known()["kinds"] if not kind.startswith("config.")} == defined


@pytest.mark.parametrize("chart", KINDS)
def test_definitions_have_a_type_at_every_place(chart: str) -> None:
    def untyped(node: dict[str, Any], path: str) -> list[str]:
        open_, either = (
            node.get("x-kubernetes-preserve-unknown-fields"),
            node.get("x-kubernetes-int-or-string"),
        )
        found = [] if node.get("type") or open_ or either else [path]
        for name, held in (node.get("properties") or {}).items():
            found += untyped(held, f"{path}.{name}")
        for key in ("items", "additionalProperties"):
            found += untyped(node[key], f"{path}.{key}") if key in node else []
        return found

    for definition in definitions_of(chart):
        assert (
            untyped(
                definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"], definition["metadata"]["name"]
            )
            == []
        )


def test_a_list_whose_keys_have_no_default_left_is_a_plain_list() -> None:
    item = {"properties": {"name": {"type": "string"}}, "type": "object"}
    schema = {
        "type": "array",
        "items": item,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
    }
    assert "x-kubernetes-list-type" not in structural(schema)
    assert structural({**schema, "items": {**item, "required": ["name"]}})["x-kubernetes-list-type"] == "map"


def test_kinds_that_a_cloud_brings_are_defined_too() -> None:
    assert set(PROVIDED) == {"networking.gke.io/v1:Network", "networking.gke.io/v1:GKENetworkParamSet"}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, ["--enable-leader-election=true"]),
        ({"singleNamespaceInstall": True}, ["--watch-namespace=here", "--enable-leader-election=true"]),
        (
            {"watchNamespace": ["a", "b"], "leaderElectionEnabled": False},
            ["--watch-namespace=a,b", "--enable-leader-election=false"],
        ),
    ],
)
def test_the_operator_gets_the_flags_that_the_chart_makes_of_its_values(
    values: dict[str, Any], expected: list[str]
) -> None:
    assert flags(values, "here") == [*expected, "--enable-metrics=true", "--log-stdout-encoder=json"]


def test_the_operator_gets_the_environment_that_the_chart_makes_of_its_values() -> None:
    assert variables({}) == {}
    assert variables({"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "x"}]}) == {
        "A": "1",
        "B": "x",
    }


def test_what_is_new_in_our_namespaces_or_of_our_kinds_or_has_our_name_is_left_over() -> None:
    before = Inventory({"/api/v1/namespaces/theirs": "1"})
    ours = AppliedObject("/api/v1/namespaces/theirs/configmaps/mine", "2", "ConfigMap theirs/mine")
    new = [
        "/api/v1/namespaces/training",
        "/api/v1/namespaces/training/pods/p",
        "/apis/ray.io/v1/namespaces/x/rayjobs/j",
        "/api/v1/namespaces/y",
    ]
    after = Inventory({**before.objects, ours.path: "2", **dict.fromkeys(new, "3")}, (ours,))
    assert leftover(before, after, {"training"}, {"rayjobs.ray.io"}) == sorted([ours.path, *new[:3]])


def test_a_controllers_report_of_state_makes_nobody_an_owner() -> None:
    rows = [
        {"manager": "kubectl", "operation": "Apply"},
        {"manager": "controller", "operation": "Update", "subresource": "status"},
    ]
    assert managers({"metadata": {"managedFields": rows}}) == {"kubectl"}


def refusal(*arguments: str) -> str:
    with pytest.raises(InputError) as raised:
        CliRunner().invoke(rehearse, arguments, catch_exceptions=False)
    return str(raised.value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("local", "--dry-run"), "needs a cluster"),
        (("local", "--clean-up"), "needs a cluster"),
        (("local", "--leave"), "needs a cluster"),
        (("local", "--on-cluster"), "there is no cluster local"),
        (("local", "--on-cluster", "other", "--until", "preview"), "there is no cluster other"),
        (("local", "--on-cluster", "NOT_A_NAME"), "is not 1 to 12 lowercase letters and digits"),
        (("local", "--on-cluster", "--context", "kind-kind"), "conflicts with --on-cluster"),
    ],
)
def test_a_cluster_that_does_not_exist_or_not_meant_is_refused(
    arguments: tuple[str, ...], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert words in refusal(*arguments)


def kubectl(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a kubectl on the path that says what a test wants."""
    tool = folder / "kubectl"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


VIEW = (
    '{"clusters": [{"name": "x", "cluster": {"server": "https://prod:6443"}}], "users": [{"user": {"token":'
    ' "t"}}]}'
)


def test_nothing_is_made_in_a_context_of_ones_own_without_consent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubectl(tmp_path, monkeypatch, f"echo '{VIEW}'")
    with pytest.raises(
        InputError, match=r"would be created and deleted in prod \(https://prod:6443\)"
    ) as raised:
        named("prod", agreed=False)
    assert "--yes" in str(raised.value)
    target = named("prod", agreed=True)
    assert "token" not in target.write_kubeconfig(tmp_path / "kubeconfig").read_text()


def test_a_context_that_does_not_exist_is_reported_in_kubectls_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubectl(
        tmp_path,
        monkeypatch,
        'case "$*" in *get-contexts*) echo kind-kind;; *) echo "error: no context exists" >&2; exit 1;; esac',
    )
    with pytest.raises(InputError, match=r"no context exists \(kind-kind\)"):
        named("prod", agreed=True)


def test_without_kubectl_no_context_can_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingToolError, match="kubectl"):
        named("prod", agreed=True)
