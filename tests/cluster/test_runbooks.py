"""Every runbook is rehearsed: its alert fires in a real Prometheus and Alertmanager, the commands of its page
are run, and the alert is over.

The rules and monitors are those that the layer plans (monitoring_stack.py). Pages: GpuMemoryFailing.md,
GpuXidError.md, NodeHasProblem.md, NodeNotReady.md, QueueNotMoving.md, RayHeadDown.md, RayPodRestarts.md,
RaySignerDown.md, TrainingStalled.md.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import Cluster, trainfleet, until, with_kubectl
from tests.cluster.exporters import GpuMetrics, install_queue_metrics, set_queue
from tests.cluster.faults import pod as pod_of
from tests.cluster.launches import LONG, Launch, Place, launched, placed
from tests.cluster.monitoring_stack import FASTER, install_definitions, install_monitoring
from tests.cluster.pods import pod
from tests.cluster.rehearsal import Rehearsal
from tests.cluster.signer import signer
from trainfleet.infra.kubernetes.names import RAY_SIGNER, SIGNER_NAMESPACE
from trainfleet.infra.platform import TRAINING_NAMESPACE

pytestmark = [pytest.mark.cluster, pytest.mark.deep, pytest.mark.timeout(1800)]
NAME = "runbooks"
RUN = "on-call"
HALF_AN_HOUR = 1800


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two nodes with the training image."""
    if given := os.environ.get("TRAINFLEET_TEST_CLUSTER"):
        yield with_kubectl(Cluster(given, trainfleet))
        return
    trainfleet("cluster", "down", "--name", NAME)
    done = trainfleet("cluster", "up", "--name", NAME, "--nodes", "2", timeout=2700)
    assert done.returncode == 0, done.stderr
    yield with_kubectl(Cluster(NAME, trainfleet))
    assert trainfleet("cluster", "down", "--name", NAME).returncode == 0


@pytest.fixture(scope="module")
def second(cluster: Cluster) -> str:
    """The name of the second node, on which faults are injected."""
    return cluster.state.nodes[1].name


@pytest.fixture(scope="module")
def gpus(cluster: Cluster, second: str) -> GpuMetrics:
    """The metrics of the GPUs that the second node does not have."""
    install_definitions(cluster)
    found = GpuMetrics(cluster, second)
    found.install()
    return found


@pytest.fixture(scope="module")
def queue(cluster: Cluster, gpus: GpuMetrics) -> None:
    """A queue whose runs ask for more than its quota, from the first test on: the alert takes three minutes."""
    install_queue_metrics(cluster)
    set_queue(cluster, active=0, inadmissible=2, admitted=0)


@pytest.fixture(scope="module", autouse=True)
def on_call(
    cluster: Cluster, gpus: GpuMetrics, queue: None, tmp_path_factory: pytest.TempPathFactory
) -> Rehearsal:
    """Monitoring of both and of the cluster, and somebody who reads the runbooks."""
    install_monitoring(cluster)
    found = Rehearsal(cluster, tmp_path_factory.mktemp("on-call"))
    for metric in ("DCGM_FI_DEV_XID_ERRORS", "kueue_pending_workloads"):
        until(partial(found.alerts.rows, metric), f"{metric} is scraped", 60)
    return found


@pytest.fixture
def bystander(cluster: Cluster, second: str) -> Callable[[], bool]:
    """A pod on the second node that a drain has to move. Returns a function that waits until it has."""
    template = pod("bystander", "exec /busybox sleep 100000")
    template["spec"] |= {
        "restartPolicy": "Always",
        "volumes": [{"name": "scratch", "emptyDir": {}}],
        "affinity": {
            "nodeAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "weight": 100,
                        "preference": {
                            "matchExpressions": [
                                {"key": "kubernetes.io/hostname", "operator": "In", "values": [second]}
                            ]
                        },
                    }
                ]
            }
        },
    }
    body = {"metadata": template["metadata"], "spec": template["spec"]}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "bystander", "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": "bystander"}}, "template": body},
    }
    cluster.kubectl("uncordon", second)
    cluster.kubectl("delete", "deployment", "bystander", "--ignore-not-found", "--cascade=foreground")
    cluster.apply(deployment)
    asked = ("get", "pods", "-l", "app=bystander", "--field-selector=status.phase=Running", "-o")

    def where() -> str:
        return cluster.kubectl(*asked, "jsonpath={.items[*].spec.nodeName}")

    until(lambda: where() == second, "the pod runs on the second node", 60)
    first = cluster.state.control_plane.name
    return lambda: until(lambda: where() == first, "the drain has moved the pod", 60)


def set_condition(cluster: Cluster, node: str, kind: str, status: str) -> None:
    """Set a condition of a node through the API, as the node problem detector does."""
    condition = {"type": kind, "status": status, "reason": "DockerHung", "message": "set by a test"}
    patch = json.dumps({"status": {"conditions": [condition]}})
    cluster.kubectl("patch", "node", node, "--subresource=status", "--type=strategic", "-p", patch)


def test_gpu_xid_error(
    on_call: Rehearsal, gpus: GpuMetrics, second: str, bystander: Callable[[], bool]
) -> None:
    gpus.set(1, "DCGM_FI_DEV_XID_ERRORS", 79)
    alert = on_call.fires("GpuXidError")
    assert (alert["labels"]["gpu"], alert["labels"]["Hostname"]) == ("1", second)
    assert alert["annotations"]["summary"] == f"GPU 1 of {second} reports Xid 79"
    on_call.follow("Look", shows={"get pods": "dcgm-exporter-stand-in"})
    on_call.follow("Act")
    bystander()
    gpus.reset()
    on_call.is_over()


def test_an_xid_of_a_program_does_not_fire(on_call: Rehearsal, gpus: GpuMetrics) -> None:
    gpus.set(0, "DCGM_FI_DEV_XID_ERRORS", 31)
    until(lambda: on_call.alerts.rows("DCGM_FI_DEV_XID_ERRORS == 31"), "the number is scraped", 30)
    until(
        lambda: on_call.alerts.rows("count_over_time((DCGM_FI_DEV_XID_ERRORS == 31)[10s:1s]) > 5"), "it lasts"
    )
    assert on_call.alerts.firing("GpuXidError") == []
    gpus.set(0, "DCGM_FI_DEV_XID_ERRORS", 0)


def test_gpu_memory_failing(on_call: Rehearsal, gpus: GpuMetrics, bystander: Callable[[], bool]) -> None:
    gpus.set(0, "DCGM_FI_DEV_ROW_REMAP_FAILURE", 1)
    on_call.fires("GpuMemoryFailing")
    on_call.follow("Look")

    def delete_machine() -> None:
        bystander()
        on_call.stop_node()

    on_call.follow("Act", before={"kubectl delete node": delete_machine})
    on_call.is_over()
    on_call.start_node()
    gpus.reset()


def test_node_has_problem(on_call: Rehearsal, second: str, bystander: Callable[[], bool]) -> None:
    set_condition(on_call.cluster, second, "KernelDeadlock", "True")
    alert = on_call.fires("NodeHasProblem")
    assert alert["labels"]["condition"] == "KernelDeadlock"
    on_call.follow("Look", shows={"describe node": r"KernelDeadlock +True .*set by a test"})

    def repaired() -> None:
        bystander()
        set_condition(on_call.cluster, second, "KernelDeadlock", "False")

    on_call.follow("Act", before={"kubectl uncordon": repaired})
    on_call.is_over(shows={"describe node": r"KernelDeadlock +False "})


def test_node_not_ready(on_call: Rehearsal, second: str) -> None:
    on_call.stop_node()
    alert = on_call.fires("NodeNotReady")
    assert alert["labels"]["node"] == second
    on_call.follow("Look", shows={"get nodes": f"{second} +NotReady", "get events": "NodeNotReady"})
    on_call.follow("Act")
    until(lambda: not on_call.alerts.firing("NodeNotReady"), "a deleted node fires nothing", 60)
    on_call.start_node()
    on_call.is_over(shows={"get node ": f"{second} +Ready"})


def test_ray_signer_down(on_call: Rehearsal, cluster: Cluster) -> None:
    cluster.kubectl("create", "namespace", TRAINING_NAMESPACE, check=False)  # may exist
    in_its = ("-n", SIGNER_NAMESPACE)
    with signer(cluster, TRAINING_NAMESPACE):
        cluster.kubectl(*in_its, "rollout", "status", f"deployment/{RAY_SIGNER}")
        binding = json.loads(cluster.kubectl(*in_its, "get", "rolebinding", RAY_SIGNER, "-o", "json"))
        cluster.kubectl(*in_its, "delete", "rolebinding", RAY_SIGNER)
        cluster.kubectl(*in_its, "delete", "pods", "--all", "--wait=false")
        on_call.fires("RaySignerDown")
        on_call.follow(
            "Look", shows={"get deployments": f"{RAY_SIGNER} +0/", " logs ": "waiting: .*forbidden"}
        )
        kept = {key: binding["metadata"][key] for key in ("name", "namespace")}
        cluster.apply({**binding, "metadata": kept})
        on_call.follow("Act", shows={"rollout status": "successfully rolled out"})
        on_call.is_over(shows={"get deployment ": f"{RAY_SIGNER} +[12]/"})


def test_queue_not_moving(on_call: Rehearsal, cluster: Cluster, queue: None) -> None:
    on_call.fires("QueueNotMoving")
    on_call.follow("Look")
    set_queue(cluster, active=0, inadmissible=1, admitted=1)
    on_call.is_over()


@pytest.fixture(scope="module")
def training(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """The namespace `training`, which the monitors select, with a store."""
    with placed(cluster, TRAINING_NAMESPACE, tmp_path_factory.mktemp("training")) as found:
        yield found


@pytest.fixture(scope="module")
def run(training: Place, on_call: Rehearsal) -> Iterator[Launch]:
    """A run that has saved checkpoints. Its metrics are scraped."""
    on_call.shell.environment |= training.store.environment
    with launched(training, RUN, *LONG, "checkpoint.every=10") as found:
        found.reach(15)
        up = f'up{{ray_io_node_type="head", namespace="{TRAINING_NAMESPACE}"}} == 1'
        until(lambda: on_call.alerts.rows(up), "the head is scraped", 60)
        yield found


def test_ray_head_down(on_call: Rehearsal, training: Place, run: Launch) -> None:
    before = run.step()
    head = pod_of(training, "head")
    (cluster_name,) = {name.rpartition("/")[2] for name in training.names("raycluster")}
    # Every process of the head stops, as if it hung.
    training.kubectl("exec", head, "-c", "ray-head", "--", "bash", "-c", "kill -STOP -1", check=False)
    alert = on_call.fires("RayHeadDown")
    assert alert["labels"]["ray_io_cluster"] == cluster_name
    assert on_call.values["RUN"] == RUN
    on_call.follow("Look", shows={"get pods": "-head-"})
    on_call.follow("Act", without=("trainfleet runs stop",))  # it does not fail again
    run.reach(before + 10, 400)
    on_call.is_over()


def test_ray_pod_restarts(on_call: Rehearsal, training: Place, run: Launch) -> None:
    worker = pod_of(training, "worker").rpartition("/")[2]
    count = f'kube_pod_container_status_restarts_total{{namespace="{TRAINING_NAMESPACE}", pod="{worker}"}}'

    def counted(number: int) -> bool:
        return [int(row["value"][1]) for row in on_call.alerts.rows(count)] == [number]

    for number in range(1, 5):
        end_container(training, worker, number)
        until(partial(counted, number), f"{number} restarts are counted", 60)
        if number == 3:
            assert on_call.alerts.firing("RayPodRestarts") == [], "more than three"
    alert = on_call.fires("RayPodRestarts")
    assert alert["labels"]["pod"] == worker
    on_call.follow("Look", shows={"get pod ": "ray-worker: Error"})
    on_call.follow("Act")  # stops the run
    on_call.is_over(without=("kubectl -n training get pods",))


def end_container(place: Place, name: str, restarts: int) -> None:
    """Send SIGKILL to every process of the container, until it has been started `restarts` times again."""

    def state() -> dict[str, Any]:
        found = json.loads(place.kubectl("get", "pod", name, "-o", "json"))["status"]["containerStatuses"][0]
        return dict(found)

    until(lambda: "running" in state()["state"], "the container runs", 120)
    container = state()["containerID"].rpartition("/")[2]
    for group in Path("/proc").glob("[0-9]*/cgroup"):
        with contextlib.suppress(OSError):
            if container in group.read_text():
                os.kill(int(group.parent.name), signal.SIGKILL)
    until(lambda: state()["restartCount"] >= restarts, f"{restarts} restarts", 120)


def test_training_stalled(on_call: Rehearsal, gpus: GpuMetrics, training: Place) -> None:
    with launched(training, "idle", *LONG) as run:
        run.reach(10)
        worker = pod_of(training, "worker").rpartition("/")[2]
        gpus.hold(0, worker)
        since = time.monotonic()
        alert = on_call.fires("TrainingStalled")
        assert time.monotonic() - since > HALF_AN_HOUR / FASTER
        assert alert["labels"]["exported_pod"] == worker
        assert on_call.values["RUN"] == "idle"
        on_call.follow("Look", shows={"runs list": "idle", "get pods": worker, "runs logs": "step"})
        # It can save. The next command would find no run.
        on_call.follow("Act", without=("trainfleet runs stop RUN --context CONTEXT --now",))
        until(lambda: not training.names("pod", "trainfleet.io/run=idle"), "the run's pods are gone", 180)
        gpus.hold(0, "")
        on_call.is_over()
