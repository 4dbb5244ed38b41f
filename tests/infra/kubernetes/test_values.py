"""What the charts and custom resources are given: typed, without a secret, and what the platform asked for."""

from __future__ import annotations

import json
import re
from dataclasses import fields, is_dataclass
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import pytest

from tests.infra.kubernetes.planned import IDENTITIES, LOGS, Planned, plan
from trainfleet.errors import TrainfleetError
from trainfleet.infra.kubernetes import charts, values
from trainfleet.infra.kubernetes.chart_keys import known, refuse_unknown
from trainfleet.infra.kubernetes.manifest_model import plain
from trainfleet.infra.kubernetes.names import PRIORITIES
from trainfleet.infra.kubernetes.values.common import Amounts, Resources, Toleration
from trainfleet.infra.platform import LogStore
from trainfleet.infra.spec.schema import Ray

SECRET_KEY = re.compile(r"(password|passwd|token|api_?key|private_?key|credential)s?$", re.IGNORECASE)


@cache
def whole() -> Planned:
    return plan()


def keys(node: Any) -> list[str]:
    """Every key of a document, at any depth."""
    if isinstance(node, dict):
        return [*node, *(key for member in node.values() for key in keys(member))]
    return [key for item in node for key in keys(item)] if isinstance(node, list) else []


def test_a_document_is_its_fields_in_camel_case_without_those_left_out() -> None:
    assert plain(Toleration(operator="Exists")) == {"operator": "Exists"}
    assert plain({"a-b": [Resources(Amounts("1"), Amounts(memory="2Gi"))]}) == {
        "a-b": [{"requests": {"cpu": "1"}, "limits": {"memory": "2Gi"}}]
    }


def test_a_key_that_is_not_declared_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="efect"):
        Toleration(operator="Exists", efect="NoSchedule")  # type: ignore[call-arg]  # the mistake that is tested


def test_every_chart_gets_a_typed_document_and_no_module_of_values_knows_pulumis_resources() -> None:
    for found in iter_modules(values.__path__):
        module = import_module(f"{values.__name__}.{found.name}")
        declared = [
            member for member in vars(module).values() if isinstance(member, type) and is_dataclass(member)
        ]
        assert declared, found.name
        for one in declared:
            assert one.__dataclass_params__.frozen, one  # type: ignore[attr-defined]  # dataclasses keep it there
            keyed = getattr(one, "KEYS", {})
            assert keyed.keys() <= {each.name for each in fields(one)}, "a key for a field that is not there"


def test_no_value_is_a_secret() -> None:
    for name, inputs in whole().of("Release").items():
        assert not [key for key in keys(inputs["values"]) if SECRET_KEY.search(key)], name


def test_grafana_has_no_account_and_so_no_password() -> None:
    grafana = whole().values("lab-prometheus")["grafana"]
    assert grafana["env"] == {"GF_SECURITY_DISABLE_INITIAL_ADMIN_CREATION": "true"}
    assert grafana["grafana.ini"]["auth.anonymous"] == {"enabled": True, "org_role": "Viewer"}
    assert grafana["sidecar"]["datasources"] == {
        "initDatasources": True,
        "skipReload": True,
    }, "a reload needs an account"


def test_metrics_are_kept_as_long_as_the_spec_says_on_an_encrypted_volume() -> None:
    prometheus = plan({"monitoring": {"retention_days": 40}}).values("lab-prometheus")["prometheus"][
        "prometheusSpec"
    ]
    assert prometheus["retention"] == "40d"
    assert (
        prometheus["storageSpec"]["volumeClaimTemplate"]["spec"]["storageClassName"] == "trainfleet-encrypted"
    )
    without = plan({"layer": {"storage_classes": False}}).values("lab-prometheus")["prometheus"][
        "prometheusSpec"
    ]
    assert "storageSpec" not in without, "a class that is not there is not named"


WITHOUT_PRIORITIES: dict[str, Any] = {"layer": {"priority_classes": False}, "queue": {"enabled": False}}


def test_alerts_go_where_a_secret_of_yours_says() -> None:
    changes = {"monitoring": {"alertmanager_secret": "alerts"}} | WITHOUT_PRIORITIES
    assert plan(changes).values("lab-prometheus")["alertmanager"] == {
        "enabled": True,
        "alertmanagerSpec": {"configSecret": "alerts", "useExistingSecret": True},
    }
    assert plan(WITHOUT_PRIORITIES).values("lab-prometheus")["alertmanager"] == {"enabled": True}


def test_no_run_preempts_what_runs_depend_on() -> None:
    planned = whole()
    monitoring, kueue = planned.values("lab-prometheus"), planned.values("lab-kueue")
    highest = max(PRIORITIES, key=PRIORITIES.__getitem__)
    for pod in (
        monitoring["prometheus"]["prometheusSpec"],
        monitoring["alertmanager"]["alertmanagerSpec"],
        kueue["controllerManager"]["manager"],
        planned.values("lab-kuberay-operator"),
    ):
        assert pod["priorityClassName"] == highest
    without = plan(WITHOUT_PRIORITIES)
    for name in ("lab-prometheus", "lab-kuberay-operator"):
        assert "priorityClassName" not in keys(without.values(name)), "a class that is not there is not named"


def test_dns_is_a_target_only_where_it_serves_metrics_at_the_port_of_coredns() -> None:
    assert "coreDns" not in whole().values("lab-prometheus"), "the chart's default"
    assert plan(dns_metrics=False).values("lab-prometheus")["coreDns"] == {"enabled": False}


def test_the_definitions_of_monitors_come_before_and_apart() -> None:
    assert whole().inputs["lab-monitoring-definitions"]["chart"] == "prometheus-operator-crds"
    assert whole().values("lab-prometheus")["crds"] == {"enabled": False}


def test_logs_go_to_the_platforms_store_under_its_identity() -> None:
    values_ = whole().values("lab-fluent-bit")
    assert values_["serviceAccount"] == {"create": False, "name": "log-shipper"}
    assert (
        values_["config"]["outputs"]
        == "[OUTPUT]\n    Name cloudwatch_logs\n    Match kube.*\n    log_group_name /lab/pods\n    region"
        " us-east-2\n"
    )
    assert whole().inputs["lab-fluent-bit"]["namespace"] == "logging"


@pytest.mark.parametrize(
    "changes", [{"log_store": None}, {"log_store": LogStore(LOGS.output, LOGS.settings, "nobody")}]
)
def test_there_is_no_shipper_without_a_store_and_an_identity_for_it(changes: dict[str, Any]) -> None:
    assert "lab-fluent-bit" not in plan(**changes).types


def test_each_secret_of_the_spec_is_read_from_the_clouds_store_into_the_training_namespace() -> None:
    store = whole().custom("ClusterSecretStore")["cloud"]["spec"]
    assert store["provider"] == {"aws": {"service": "SecretsManager", "region": "us-east-2"}}
    assert store["conditions"] == [{"namespaces": ["training"]}], "no other namespace reads through it"
    secret = whole().custom("ExternalSecret")["hf-token"]
    assert secret["metadata"]["namespace"] == "training"
    assert secret["spec"]["data"] == [{"secretKey": "value", "remoteRef": {"key": "lab/hf-token"}}]
    assert whole().values("lab-external-secrets")["serviceAccount"] == {
        "create": False,
        "name": "external-secrets",
    }


def test_there_is_no_store_where_the_cloud_has_none_or_nobody_may_read_it() -> None:
    assert "lab-external-secrets" not in plan(secret_store={}).types
    nobody = {role: identity for role, identity in IDENTITIES.items() if role != "secrets"}
    assert "lab-external-secrets" not in plan(identities=nobody).types


def test_people_and_controllers_may_launch_and_a_pod_may_end_its_own_cluster() -> None:
    subjects = whole().inputs["lab-launchers"]["subjects"]
    assert [(subject["kind"], subject["name"]) for subject in subjects] == [
        ("Group", "trainfleet:launchers"),
        ("ServiceAccount", "launcher"),
        ("User", "ana@example.com"),
    ]
    assert whole().inputs["lab-launcher-readers"]["subjects"] == subjects
    assert whole().inputs["lab-training-pods"]["subjects"] == [
        {"kind": "ServiceAccount", "name": "trainer", "namespace": "training"}
    ]
    rules = {
        resource: rule["verbs"]
        for rule in whole().inputs["lab-training-pod"]["rules"]
        for resource in rule["resources"]
    }
    assert "secrets" not in rules
    assert rules["pods"] == ["get", "list", "patch", "delete"]


def test_the_right_to_patch_pods_comes_after_the_policy_that_limits_it() -> None:
    policy, binding = whole().inputs["lab-pod-changes"], whole().inputs["lab-pod-changes-binding"]
    assert binding["spec"] == {
        "policyName": policy["metadata"]["name"],
        "validationActions": ["Deny"],
    }
    (condition,) = policy["spec"]["matchConditions"]
    (subject,) = whole().inputs["lab-training-pods"]["subjects"]
    account = f"system:serviceaccount:{subject['namespace']}:{subject['name']}"
    assert condition["expression"] == f"request.userInfo.username == '{account}'"
    made = list(whole().inputs)
    assert made.index("lab-pod-changes-binding") < made.index("lab-training-pod")


def test_skypilots_documented_minimum_is_granted() -> None:
    granted = {
        resource: set(rule["verbs"])
        for rule in whole().inputs["lab-launcher"]["rules"]
        for resource in rule["resources"]
    }
    assert granted["secrets"] == {"create"}, "SkyPilot reads Secrets for `sky debug` only"
    for resource in ("pods", "services"):
        assert {"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"} <= granted[
            resource
        ]
    for resource in ("pods/exec", "pods/portforward"):
        assert {"get", "create"} <= granted[resource]
    assert {"get", "list", "watch"} <= granted["events"]
    everywhere = {
        resource for rule in whole().inputs["lab-launcher-reader"]["rules"] for resource in rule["resources"]
    }
    assert {"nodes", "runtimeclasses", "storageclasses"} <= everywhere
    text = json.dumps(
        [whole().inputs["lab-launcher"]["rules"], whole().inputs["lab-launcher-reader"]["rules"]]
    )
    assert "*" not in text


def test_only_people_may_request_a_token_of_the_launcher() -> None:
    """A token of the account must not be able to request the next one: it would never end."""
    (rule,) = whole().inputs["lab-launcher-login"]["rules"]
    assert (rule["resources"], rule["verbs"], rule["resourceNames"]) == (
        ["serviceaccounts/token"],
        ["create"],
        ["launcher"],
    )
    subjects = whole().inputs["lab-launcher-logins"]["subjects"]
    assert "trainfleet:launchers" in {subject["name"] for subject in subjects}
    assert not [subject for subject in subjects if subject["kind"] == "ServiceAccount"]


def test_a_token_that_never_ends_is_created_on_request_and_filled_by_the_cluster() -> None:
    assert "lab-launcher-token" not in whole().inputs
    planned = plan({"layer": {"launcher_token": True}})
    secret = planned.inputs["lab-launcher-token"]
    assert not secret.get("data")
    assert not secret.get("stringData")
    assert secret["type"] == "kubernetes.io/service-account-token"
    assert secret["metadata"]["annotations"] == {"kubernetes.io/service-account.name": "launcher"}
    assert whole().inputs["lab-account-launcher"]["automountServiceAccountToken"] is False


def test_the_looked_up_keys_are_of_the_versions_that_are_installed() -> None:
    pins = {chart.name: chart.version for chart in vars(charts).values() if isinstance(chart, charts.Chart)}
    pins["kuberay-operator"] = Ray().operator
    assert {name: entry["version"] for name, entry in known()["charts"].items()} == pins, (
        "look the values up again, then raise it in known.json"
    )


def test_a_value_and_a_field_that_nobody_reads_are_refused_by_name_with_the_nearest() -> None:
    with pytest.raises(
        TrainfleetError, match=r"config\.outptus: is not a valid key \(did you mean `outputs`\?\)"
    ):
        refuse_unknown("fluent-bit", known()["charts"]["fluent-bit"]["values"], {"config": {"outptus": ""}})
    kinds = known()["kinds"]["kueue.x-k8s.io/v1beta2:ClusterQueue"]
    with pytest.raises(TrainfleetError, match=r"resourceGroups\[0\]\.flavors\[1\]\.nmae"):
        refuse_unknown(
            "queue", kinds, {"spec": {"resourceGroups": [{"flavors": [{"name": "a"}, {"nmae": "b"}]}]}}
        )


def test_a_map_of_anything_takes_anything() -> None:
    refuse_unknown(
        "flavour",
        known()["kinds"]["kueue.x-k8s.io/v1beta2:ResourceFlavor"],
        {"spec": {"nodeLabels": {"any/label": "x"}}},
    )


@pytest.mark.parametrize(
    ("module", "kind", "right", "wrong"),
    [
        (
            "trainfleet.infra.kubernetes.values.monitoring",
            "PrometheusSpec",
            "rule_selector_nil_uses_helm_values",
            "rule_selector_nil_use_helm_values",
        ),
        ("trainfleet.infra.kubernetes.values.logs", "FluentBit", "priority_class_name", "priorty_class_name"),
    ],
)
def test_a_declaration_that_is_misspelt_stops_the_program_by_name(
    monkeypatch: pytest.MonkeyPatch, module: str, kind: str, right: str, wrong: str
) -> None:
    """As if the field's name were misspelt where it is declared: every key of such a document goes through
    the same check.
    """
    loaded = import_module(module)
    monkeypatch.setattr(getattr(loaded, kind), "KEYS", {right: wrong}, raising=False)
    with pytest.raises(TrainfleetError, match=wrong):
        plan()
