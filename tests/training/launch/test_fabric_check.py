"""`trainfleet fabric check`: its pods have a training's fabric, it reads both logs, and deletes everything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.training.launch import nccl_logs
from tests.training.launch.fake_api import NAMESPACE, PODS, FakeApi
from tests.training.launch.kuberay_follower import cluster_of
from tests.training.launch.kuberay_launches import EFA
from tests.training.launch.kuberay_launches import outputs as kuberay_outputs
from tests.training.launch.saved_platforms import outputs
from tests.training.launch.test_fabric_settings import FABRICS, on_kuberay, pool_of, settings_of
from tests.training.launch.test_node_groups import group
from trainfleet.console import run as run_command
from trainfleet.errors import InputError, TrainfleetError
from trainfleet.rehearsal.simulation.kubernetes.metadata import metadata_mistakes
from trainfleet.rehearsal.simulation.kubernetes.model import _check_template
from trainfleet.training.cli.fabric import fabric
from trainfleet.training.launch.kuberay import fabric_check
from trainfleet.training.launch.kuberay.fabric_check import FabricReport, check_fabric, evaluate
from trainfleet.training.launch.kuberay.fabric_pods import Backend, FabricCheck, check_objects, resolve
from trainfleet.training.launch.remote.pod_settings import lost_node_tolerations
from trainfleet.training.runtime.all_reduce import Timing, line

NCCL, GLOO = Backend("nccl"), Backend("gloo")
SERVICES = f"{NAMESPACE}/services"
RESULT = line([Timing(8 << 20, 0.001, 16), Timing(1 << 30, 0.005, 16)])
BUS = (1 << 30) / 0.005 / 1e9 * 30 / 16


def check_of(stack: str, pool: str, backend: Backend = NCCL, **more: Any) -> FabricCheck:
    return resolve(outputs(stack), pool, backend, image="me/trainfleet:1", **more)


def log_of(host: str, network: str, processes: int = 8) -> list[str]:
    """A node's log, one line for each process, in the form of the public logs."""
    return [f"{host}:{pid}:{pid + 100} [{pid}] NCCL INFO Using network {network}" for pid in range(processes)]


def changed(pool: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A pool of a platform, whose NCCL has a network to use."""
    return {**pool, "environment": {"NCCL_NET": "Libfabric"}, **changes}


def report_of(check: FabricCheck, networks: tuple[str, str], **more: Any) -> FabricReport:
    """The report of two pods that completed, by the network of each."""
    logs = {name: log_of(name, network) for name, network in zip(check.pods, networks, strict=True)}
    logs[check.pods[0]].append(RESULT)
    ended = {name: {"status": {"phase": "Succeeded"}} for name in check.pods}
    return evaluate(check, ended, logs, **more)


@pytest.mark.parametrize(("stack", "name"), FABRICS)
def test_the_pods_have_the_fabric_placement_and_resources_of_a_training(stack: str, name: str) -> None:
    pool = pool_of(stack, name)
    check = check_of(stack, name)
    for pod in check_objects(check)[1:]:
        container = pod["spec"]["containers"][0]
        found = settings_of(container, pod["metadata"]["annotations"], pool)
        assert found == on_kuberay(stack, pool, 16)
        assert found["environment"] == pool.environment
        assert container["resources"]["limits"]["nvidia.com/gpu"] == str(pool.per_node)
        assert pod["spec"]["nodeSelector"] == pool.node_selector
        assert pod["spec"]["tolerations"] == [*lost_node_tolerations(), *pool.tolerations]
        assert {"name": "NCCL_DEBUG", "value": "INFO"} in container["env"]


@pytest.mark.parametrize("backend", [NCCL, GLOO])
def test_the_pods_are_valid_and_pass_pod_security_restricted(backend: Backend) -> None:
    service, *pods = check_objects(check_of("aws-prod", "h100", backend))
    assert service["spec"]["clusterIP"] == "None"
    for pod in pods:
        assert [str(each) for each in metadata_mistakes("Pod", pod["metadata"])] == []
        template = {"metadata": pod["metadata"], "spec": pod["spec"]}
        assert [str(each) for each in _check_template("pod", template)] == []
        assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
        assert pod["spec"]["subdomain"] == service["metadata"]["name"]
        security = pod["spec"]["containers"][0]["securityContext"]
        assert security == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
        assert all("emptyDir" in volume for volume in pod["spec"]["volumes"])


def test_kueue_admits_both_pods_together() -> None:
    for pod in check_objects(check_of("aws-prod", "h100"))[1:]:
        labels, annotations = pod["metadata"]["labels"], pod["metadata"]["annotations"]
        assert labels["kueue.x-k8s.io/queue-name"] == "training"
        assert labels["kueue.x-k8s.io/pod-group-name"] == labels["trainfleet.io/fabric-check"]
        assert annotations["kueue.x-k8s.io/pod-group-total-count"] == "2"


def test_gloo_requests_no_gpu_and_no_fabric() -> None:
    check = check_of("aws-prod", "l4", GLOO)
    assert check.processes == 2
    for pod in check_objects(check)[1:]:
        assert "limits" not in pod["spec"]["containers"][0]["resources"]


@pytest.mark.parametrize("one_group_label", ["", "trainfleet.io/capacity"])
@pytest.mark.parametrize("capacities", [("reserved", "on-demand"), ()])
def test_a_pool_with_several_capacities_can_be_checked(
    capacities: tuple[str, ...], one_group_label: str
) -> None:
    groups = [group(capacity) for capacity in capacities]
    pool = changed(EFA, groups=groups, one_group_label=one_group_label)
    check = resolve(kuberay_outputs(pools=[pool]), "h100", NCCL)
    for pod in check_objects(check)[1:]:
        affinity = pod["spec"]["affinity"]
        assert ("nodeAffinity" in affinity) == bool(capacities)
        required = affinity.get("podAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution", [])
        assert [each["topologyKey"] for each in required] == ([one_group_label] if one_group_label else [])
        spreads = pod["spec"].get("topologySpreadConstraints", [])
        assert bool(spreads) != bool(capacities)
        for term in (*required, *spreads):
            # The scheduler admits the first pod only if it selects itself.
            assert term["labelSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()


def test_the_pods_have_the_pod_templates_of_stack_and_pool_without_sidecars() -> None:
    trainer = {"name": "trainer", "env": [{"name": "SITE", "value": "1"}]}
    login, sidecar = {"name": "registry-login"}, {"name": "watcher", "image": "w:1"}
    everywhere = {"workers": {"spec": {"imagePullSecrets": [login], "containers": [sidecar, trainer]}}}
    of_pool = {"metadata": {"annotations": {"example.com/team": "vision"}}}
    pool = changed(EFA, pod_template=of_pool)
    platform = kuberay_outputs(pools=[pool], pod_template=everywhere)
    for pod in check_objects(resolve(platform, "h100", NCCL))[1:]:
        assert pod["spec"]["imagePullSecrets"] == [login]
        (container,) = pod["spec"]["containers"]
        assert container["name"] == "all-reduce"
        assert trainer["env"][0] in container["env"]
        assert pod["metadata"]["annotations"]["example.com/team"] == "vision"
        assert pod["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] == "trainfleet-normal"


@pytest.mark.parametrize(
    ("stack", "pool", "message"),
    [
        ("aws-prod", "l4", "pool l4 has no fabric .* there is nothing to check"),
        ("gcp-prod", "h100", "gpudirect-tcpx of pool h100 needs a daemon"),
        ("aws-prod", "h1000", "this platform has no pool `h1000`"),
    ],
)
def test_a_pool_that_cannot_be_checked_is_rejected(stack: str, pool: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_of(stack, pool)


def test_a_pool_of_one_node_is_rejected() -> None:
    platform = outputs("aws-prod")
    small = [pool.model_copy(update={"max_nodes": 1}) for pool in platform.pools]
    with pytest.raises(InputError, match="pool h100 grows to 1 node, and the check needs 2"):
        resolve(platform.model_copy(update={"pools": small}), "h100", NCCL, image="i")


@pytest.mark.parametrize(
    ("stack", "pool", "network"),
    [("aws-prod", "h100", "Libfabric"), ("azure-prod", "h100", "IB"), ("gcp-prod", "h200", "gIB")],
)
def test_a_pool_whose_fabric_was_used_passes(stack: str, pool: str, network: str) -> None:
    report = report_of(check_of(stack, pool), (network, network))
    assert report.problems == ()
    assert report.networks == (network,)
    assert report.bus_bandwidth == pytest.approx(BUS)


def test_sockets_in_one_of_two_pods_fail_the_check() -> None:
    report = report_of(check_of("azure-prod", "h100"), ("IB", "Socket"))
    (problem,) = report.problems
    assert (problem.where, problem.what) == ("pool h100", "NCCL used Socket instead of IB")


def test_a_pod_without_a_log_fails_the_check() -> None:
    check = check_of("azure-prod", "h100")
    ended = {name: {"status": {"phase": "Succeeded"}} for name in check.pods}
    report = evaluate(check, ended, {check.pods[0]: [*log_of("a", "IB"), RESULT]})
    assert "8 of 16 processes name no network" in report.problems[0].what


def test_a_pod_that_failed_is_named_with_nccls_reason() -> None:
    check = check_of("gcp-prod", "h200")
    ended = {name: {"status": {"phase": "Failed"}} for name in check.pods}
    logs = dict.fromkeys(check.pods, nccl_logs.GIB_MISSING.splitlines())
    problems = evaluate(check, ended, logs).problems
    assert "network gIB not found" in problems[0].what
    assert [each.where for each in problems[1:]] == [f"pod {name}" for name in check.pods]


def test_a_bandwidth_below_the_limit_fails_the_check() -> None:
    check = check_of("azure-prod", "h100")
    assert report_of(check, ("IB", "IB"), min_bus_bandwidth=BUS - 1).problems == ()
    (problem,) = report_of(check, ("IB", "IB"), min_bus_bandwidth=BUS + 1).problems
    assert "less than" in problem.what


def _end(api: FakeApi, logs: tuple[list[str], list[str]], phase: str = "Succeeded") -> None:
    """The kubelet: pods end as soon as they exist, with these logs."""
    for path, document in api.objects.items():
        if path.startswith(f"{PODS}/"):
            document["status"] = {"phase": phase}
            name = path.rpartition("/")[2]
            lines = logs[int(name[-1])]
            api.logs[name] = "".join(f"2026-01-01T00:00:00Z {each}\n" for each in lines)


def _left(api: FakeApi) -> list[str]:
    return [path for path in api.objects if path.startswith((f"{PODS}/", f"{SERVICES}/"))]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fabric_check, "POLL_S", 0.01)
    monkeypatch.setattr(fabric_check, "IMAGE_TIMEOUT_S", 0.05)
    monkeypatch.setattr(fabric_check, "CLEAN_UP_S", 0.0)


def test_a_check_reads_both_logs_and_deletes_its_objects(api: FakeApi) -> None:
    check = check_of("azure-prod", "h100")
    api.on_request = lambda api: _end(api, ([*log_of("a", "IB"), RESULT], log_of("b", "Socket")))
    report = check_fabric(cluster_of(api), check, None, lambda text: None)
    assert report.networks == ("IB", "Socket")
    assert ("POST", SERVICES) in api.asked
    assert _left(api) == []


def test_pods_without_nodes_time_out_and_are_deleted(api: FakeApi) -> None:
    notes: list[str] = []
    check = check_of("azure-prod", "h100", within_s=0.05)
    with pytest.raises(TrainfleetError, match="did not get their nodes within"):
        check_fabric(cluster_of(api), check, None, notes.append)
    assert _left(api) == []
    assert notes == ["creating the pods"]


def test_an_interrupted_check_deletes_its_objects(api: FakeApi) -> None:
    def interrupt(text: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        check_fabric(cluster_of(api), check_of("azure-prod", "h100"), None, interrupt)
    assert ("POST", PODS) in api.asked
    assert _left(api) == []


def test_rejected_pods_leave_no_service(api: FakeApi) -> None:
    api.refusals["POST", PODS] = (403, 'pods "x" is forbidden: violates PodSecurity "restricted:latest"')
    with pytest.raises(InputError, match="violates PodSecurity"):
        check_fabric(cluster_of(api), check_of("azure-prod", "h100"), None, lambda text: None)
    assert _left(api) == []


def test_an_image_that_cannot_be_pulled_ends_the_check(api: FakeApi) -> None:
    def refuse(api: FakeApi) -> None:
        state = {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}
        for path in _left(api):
            status = {"phase": "Pending", "containerStatuses": [{"image": "me/trainfleet:1", "state": state}]}
            api.objects[path]["status"] = status

    api.on_request = refuse
    with pytest.raises(InputError, match="image me/trainfleet:1 cannot be pulled"):
        check_fabric(cluster_of(api), check_of("azure-prod", "h100"), None, lambda text: None)
    assert _left(api) == []


def test_a_lost_pod_ends_the_check(api: FakeApi) -> None:
    def lose(api: FakeApi) -> None:
        if ("POST", PODS) in api.asked and api.asked[-1][0] == "GET":
            for path in [each for each in _left(api) if each.endswith("-1")]:
                del api.objects[path]

    api.on_request = lose
    with pytest.raises(TrainfleetError, match="the check lost a pod"):
        check_fabric(cluster_of(api), check_of("azure-prod", "h100"), None, lambda text: None)
    assert _left(api) == []


def test_objects_that_cannot_be_deleted_are_named(api: FakeApi) -> None:
    notes: list[str] = []
    check = check_of("azure-prod", "h100", within_s=0.01)
    api.refusals["DELETE", f"{SERVICES}/{check.name}"] = (403, "no")
    with pytest.raises(TrainfleetError, match="did not get their nodes"):
        check_fabric(cluster_of(api), check, None, notes.append)
    assert notes[-1] == f"delete what is left: kubectl -n training delete service/{check.name}"


@pytest.mark.parametrize(("network", "code"), [("IB", 0), ("Socket", 1)])
def test_the_command_reports_and_its_exit_code_is_the_result(
    api: FakeApi, tmp_path: Path, capsys: pytest.CaptureFixture[str], network: str, code: int
) -> None:
    platform = outputs("azure-prod", kube_context="fake", namespace="training")
    (file := tmp_path / "outputs.json").write_text(platform.model_dump_json())
    api.on_request = lambda api: _end(api, ([*log_of("a", network), RESULT], log_of("b", network)))
    arguments = ["check", "--stack", str(file), "--pool", "h100", "--image", "i", "--json"]
    assert run_command(lambda: fabric(arguments, standalone_mode=False)) == code
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert document["passed"] is (code == 0)
    assert document["networks"] == [network]
    assert document["sizes"][1]["bytes"] == 1 << 30
    assert ("NCCL used Socket instead of IB" in printed.err) is (code == 1)
