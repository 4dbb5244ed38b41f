"""The layer on the real engine: its resources, their order, and the differences between clouds."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from trainfleet.infra.kubernetes import charts
from trainfleet.local_cluster import store
from trainfleet.training.launch.remote.pod_settings import USER_ID

if TYPE_CHECKING:
    from tests.infra.kubernetes.conftest import Layer

RELEASE = "helm.sh/v3:Release"
POLICY = "networking.k8s.io/v1:NetworkPolicy"
NAMESPACE = "core/v1:Namespace"


def level(layer: Layer, namespace: str, mode: str = "enforce") -> str:
    found = {
        inputs["metadata"]["name"]: inputs["metadata"]["labels"] for inputs in layer.of(NAMESPACE).values()
    }
    return str(found[namespace][f"pod-security.kubernetes.io/{mode}"])


def test_the_layer_comes_up_changes_nothing_the_second_time_and_leaves_nothing(aws: Layer) -> None:
    assert aws.applied.ok, aws.applied.output
    assert aws.again.ok, aws.again.output
    assert aws.again.ops() == {}
    assert aws.destroyed.ok, aws.destroyed.output
    assert aws.left == []


def test_nodes_outlive_everything_that_runs_on_them(aws: Layer) -> None:
    assert aws.removed[-1] == "nodes"
    assert len(aws.removed) == len(set(aws.removed)) > 30


def test_an_operator_goes_before_its_definitions_and_a_namespace_after_all_it_holds(aws: Layer) -> None:
    order = aws.removed.index
    definitions = [name for name in aws.removed if name.startswith("prod-crd-")]
    assert len(definitions) == 4
    assert all(order("prod-kuberay-operator") < order(name) for name in definitions)
    for name in aws.removed:
        if name.startswith(
            ("prod-network-training-", "prod-account-training", "prod-shared-claim", "prod-quota-training")
        ):
            assert order(name) < order("prod-namespace-training"), name
    for name in aws.removed:
        if name.startswith("prod-ray-signer-") and "training" not in name and "reviewer" not in name:
            assert order(name) < order("prod-namespace-ray-certificates"), name
    for name in ("prod-ray-signer-deployment", "prod-kuberay-operator", "prod-prometheus"):
        assert order(name) < order("prod-priority-high"), name
    assert order("prod-cluster-autoscaler") < order("prod-account-autoscaler")
    assert order("prod-shared-claim") < order("prod-shared-volume")


def test_every_namespace_is_closed_unless_something_opens_it(aws: Layer) -> None:
    namespaces = {inputs["metadata"]["name"] for inputs in aws.of(NAMESPACE).values()}
    layer = {"training", "kuberay-system", "gpu-system", "node-system", "kueue-system", "monitoring"}
    assert namespaces == {*layer, "external-secrets", "logging", "ray-certificates"}
    closed = {
        inputs["metadata"]["namespace"]
        for inputs in aws.of(POLICY).values()
        if inputs["spec"]["policyTypes"] == ["Ingress", "Egress"]
        and not {"ingress", "egress"} & inputs["spec"].keys()
    }
    assert closed == namespaces


def test_no_policy_lets_a_pod_reach_the_metadata_service(aws: Layer) -> None:
    rules = [rule for inputs in aws.of(POLICY).values() for rule in inputs["spec"].get("egress", ())]
    blocks = [peer["ipBlock"] for rule in rules for peer in rule.get("to", ()) if "ipBlock" in peer]
    assert {"cidr": "169.254.170.23/32"} in blocks, "the pod identity agent"
    for block in blocks:
        assert block["cidr"] != "0.0.0.0/0" or block["except"] == ["169.254.0.0/16"]
    anywhere = {port["port"] for rule in rules if "to" not in rule for port in rule["ports"]}
    assert anywhere == {9100, 10250}, "node exporter and kubelet, which no range names under Cilium"


def test_trainings_are_not_privileged_even_with_a_fabric(aws: Layer) -> None:
    assert "prod-efa-device-plugin" in aws.inputs
    assert level(aws, "training") == "baseline", "or every launcher would be root on every node"
    assert level(aws, "training", "warn") == "restricted"
    assert level(aws, "gpu-system") == "privileged"
    assert level(aws, "kuberay-system") == "restricted"


def test_a_smaller_platform_is_stricter_and_reaches_named_ranges_only(plan: Callable[..., Layer]) -> None:
    without = plan("aws-dev", **{"trainfleet:cidrs": ["10.50.0.0/16"]})
    rules = without.of(POLICY)["dev-network-training-outbound"]["spec"]["egress"]
    assert [peer["ipBlock"]["cidr"] for rule in rules for peer in rule["to"]] == [
        "10.50.0.0/16",
        "169.254.170.23/32",
    ]
    assert level(without, "training") == "baseline"
    assert "dev-efa-device-plugin" not in without.inputs
    assert "dev-nvidia-device-plugin" in without.inputs


def test_a_platform_without_gpus_or_cloud_gets_no_plugin_autoscaler_or_storage_class(
    plan: Callable[..., Layer],
) -> None:
    layer = plan("local")
    releases = {"kuberay-operator", "monitoring-definitions", "prometheus", "node-problem-detector"}
    assert set(layer.of(RELEASE)) == {f"local-{name}" for name in releases}
    assert layer.of("storage.k8s.io/v1:StorageClass") == {}
    assert set(layer.of("core/v1:ServiceAccount")) == {
        *(f"local-account-{role}" for role in ("training", "launcher")),
        "local-ray-signer-account",
    }
    assert {inputs["metadata"]["name"] for inputs in layer.of(NAMESPACE).values()} == {
        "training",
        "kuberay-system",
        "node-system",
        "monitoring",
        "ray-certificates",
    }


def test_releases_are_pinned_atomic_and_without_the_crds_folder(aws: Layer) -> None:
    releases = aws.of(RELEASE)
    pins = {chart.name: chart for chart in vars(charts).values() if isinstance(chart, charts.Chart)}
    pins["kuberay-operator"] = charts.kuberay_operator("1.6.0")
    assert {inputs["name"] for inputs in releases.values()} == set(pins) - {
        "cert-manager",
        "node-problem-detector",
    }
    for inputs in releases.values():
        pin = pins[inputs["name"]]
        assert inputs["version"] == pin.version
        repository = inputs.get("repositoryOpts", {}).get("repo")
        assert (inputs["chart"], repository) == (
            (pin.repository, None) if pin.repository.startswith("oci://") else (pin.name, pin.repository)
        )
        assert inputs["atomic"] is inputs["cleanupOnFail"] is inputs["skipCrds"] is True
        assert inputs["timeout"] == charts.TIMEOUT_SECONDS


def test_device_plugins_run_on_the_machines_that_need_them(aws: Layer) -> None:
    values = {name: inputs["values"] for name, inputs in aws.of(RELEASE).items()}
    efa = values["prod-efa-device-plugin"]
    assert efa["supportedInstanceLabels"]["values"] == sorted(efa["supportedInstanceLabels"]["values"])
    assert all(kind.startswith("p5") for kind in efa["supportedInstanceLabels"]["values"])
    for name in ("prod-efa-device-plugin", "prod-nvidia-device-plugin"):
        assert values[name]["tolerations"] == [{"operator": "Exists"}], (
            "a node with one more taint needs its plugin too"
        )


def test_the_autoscaler_finds_its_groups_by_the_clusters_name_under_its_own_account(aws: Layer) -> None:
    release = aws.inputs["prod-cluster-autoscaler"]
    account = aws.inputs["prod-account-autoscaler"]
    assert release["namespace"] == account["metadata"]["namespace"] == "kube-system"
    assert release["values"]["rbac"]["serviceAccount"] == {
        "create": False,
        "name": account["metadata"]["name"],
    }
    assert release["values"]["autoDiscovery"]["clusterName"] == "nodes"
    assert release["values"]["image"]["tag"].startswith("v1.35.")
    assert account["automountServiceAccountToken"] is True


def test_training_pods_carry_their_identity_and_no_token_of_the_cluster(aws: Layer) -> None:
    account = aws.inputs["prod-account-training"]
    assert account["automountServiceAccountToken"] is False
    assert account["metadata"] == {
        "name": "trainer",
        "namespace": "training",
        "annotations": {"example.com/role": "role"},
        "labels": {"identity": "on"},
    }


def test_launchers_may_run_work_in_one_namespace_and_only_look_elsewhere(aws: Layer) -> None:
    reader = aws.inputs["prod-launcher-reader"]
    assert {verb for rule in reader["rules"] for verb in rule["verbs"]} == {"get", "list", "watch"}
    for role in aws.of("rbac.authorization.k8s.io/v1:Role").values():
        assert role["metadata"]["namespace"] == "training" or role["metadata"]["name"] == "ray-signer"
        assert "*" not in json.dumps(role["rules"])
    subjects = aws.inputs["prod-launchers"]["subjects"]
    assert [(subject["kind"], subject["name"]) for subject in subjects] == [
        ("Group", "trainfleet:launchers"),
        ("ServiceAccount", "launcher"),
    ]


def test_volumes_are_encrypted_bound_late_and_shared_by_name(aws: Layer) -> None:
    (storage_class,) = aws.of("storage.k8s.io/v1:StorageClass").values()
    assert storage_class["volumeBindingMode"] == "WaitForFirstConsumer"
    assert storage_class["parameters"]["encrypted"] == "true"
    volume, claim = aws.inputs["prod-shared-volume"]["spec"], aws.inputs["prod-shared-claim"]
    assert volume["claimRef"] == {"namespace": "training", "name": "shared"}
    assert (claim["metadata"]["name"], claim["spec"]["storageClassName"]) == ("shared", "")
    assert claim["spec"]["volumeName"] == aws.inputs["prod-shared-volume"]["metadata"]["name"]
    assert volume["persistentVolumeReclaimPolicy"] == "Retain"


def test_folders_of_the_shared_volume_belong_to_the_user_of_trainings(aws: Layer) -> None:
    """Its root belongs to root, and `fsGroup` has no effect on a volume that many nodes mount."""
    pod = aws.inputs["prod-shared-folders"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    script = container["command"][-1]
    for step in (f"chown {USER_ID}:{USER_ID} ", "mkdir -p ", "chmod 775 "):
        assert f"{step}/shared/datasets /shared/runs /shared/scratch" in script
    (volume,) = pod["volumes"]
    assert volume["persistentVolumeClaim"]["claimName"] == aws.inputs["prod-shared-claim"]["metadata"]["name"]
    assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]


def test_no_workload_can_open_a_load_balancer(aws: Layer) -> None:
    (quota,) = aws.of("core/v1:ResourceQuota").values()
    assert quota["spec"]["hard"] == {"services.loadbalancers": "0", "services.nodeports": "0"}


def test_definitions_are_kept_in_production(plan: Callable[..., Layer]) -> None:
    layer = plan("aws-prod")
    states: dict[str, Any] = {step.name: step.new or {} for step in layer.preview.steps}
    kept = {name for name, state in states.items() if state.get("retainOnDelete")}
    assert kept == {f"prod-crd-{kind}" for kind in ("rayclusters", "rayjobs", "rayservices", "raycronjobs")}


def test_the_namespace_of_a_local_store_has_the_levels_of_a_training_namespace(aws: Layer) -> None:
    """A launch on the local cluster meets the same admission as on a platform."""
    assert {mode: level(aws, "training", mode) for mode in store.LEVELS} == store.LEVELS
