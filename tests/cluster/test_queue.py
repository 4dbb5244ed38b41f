"""Runs in the queue of a stack with Kueue's own controller: admitted, held back, preempted, and never lost."""

from __future__ import annotations

import json
import re
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener

import pytest

from tests.cluster import sky_place
from tests.cluster.conftest import Cluster, cluster_with_queue, trainfleet, until
from tests.cluster.launches import LONG, Place, document, fill, launched, losses
from trainfleet.infra.kubernetes.names import QUEUE, QUEUE_NAMESPACE
from trainfleet.local_cluster.store import gateway, grant_access
from trainfleet.local_cluster.stores.servers import KEY, SECRET

pytestmark = [pytest.mark.cluster, pytest.mark.deep, pytest.mark.timeout(1800)]
NAME = "queue"
POOL = "gpu_pools=[{name: gpus, accelerator: H100, per_node: 2, max_nodes: 1}]"
STORE_PORT = 9000
"""`storage.port` of the stack `local`; its network policies admit no other."""
ONE = ("scaling.workers=1",)
ONE_RUN = "1000m"
"""The CPUs of a head, one worker and its submitter, and less than those of two runs."""


@pytest.fixture(scope="module")
def queue_cluster() -> Iterator[Cluster]:
    with cluster_with_queue(NAME) as here:
        yield here


@pytest.fixture(scope="module")
def place(queue_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """The stack `local` with its queue, applied to the cluster, and a quota of one small run."""
    folder = tmp_path_factory.mktemp("queue")
    (folder / "store").mkdir()
    state = queue_cluster.state
    stack = ("rehearse", "local", "--on-cluster", state.name)
    with gateway(str(state.host_address), folder / "store", (KEY, SECRET), STORE_PORT) as store:
        fill(store.folder)
        grant_access(state, "training", store)
        settings = ("--set", "queue.enabled=true", "--set", POOL)
        done = trainfleet(*stack, "--leave", "--outputs", str(folder / "local.json"), *settings)
        assert done.returncode == 0, done.stdout + done.stderr
        set_quota(queue_cluster, ONE_RUN)
        yield Place(queue_cluster, store, folder, "training")
        assert trainfleet(*stack, "--clean-up").returncode == 0
        queue_cluster.kubectl("delete", "namespace", "training", "--wait=false")


def set_quota(cluster: Cluster, cpus: str) -> None:
    """Limit the CPUs of the queue, which the stack leaves open on an existing cluster."""
    path = "/spec/resourceGroups/0/flavors/{}/resources/0/nominalQuota"
    amounts = {path.format(0): cpus, path.format(1): "0"}
    changes = [{"op": "replace", "path": where, "value": amount} for where, amount in amounts.items()]
    patch = ("patch", "clusterqueue", QUEUE, "--type=json", "--patch", json.dumps(changes))
    # A controller that has just restarted does not answer yet.
    until(lambda: "patched" in cluster.kubectl(*patch, check=False), "the queue's quota", 60)


def in_queue(place: Place, run: str, *more: str) -> Any:
    """A launch from the stack's outputs for the duration of a block."""
    return launched(place, run, *ONE, *more, stack=place.folder / "local.json")


def restart_controller(place: Place) -> None:
    """Kill Kueue's pod, and wait for the next one."""
    kueue = ("-n", QUEUE_NAMESPACE)
    place.cluster.kubectl(*kueue, "delete", "pod", "-l", "control-plane=controller-manager", "--now")
    place.cluster.kubectl(*kueue, "rollout", "status", "deployment", "--timeout=120s")


def admitted(place: Place, run: str) -> bool:
    suspended = place.kubectl("get", "rayjob", f"tf-{run}", "-o", "jsonpath={.spec.suspend}", check=False)
    return suspended in ("", "false") and bool(place.names("rayjob"))


def record(place: Place, run: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((place.folder / "runs" / run / "run.json").read_text())
    return found


def logged(folder: Path, run: str) -> list[float]:
    """The training losses of a launch from a folder, to six digits."""
    rows = (folder / "runs" / run / "metrics.jsonl").read_text().splitlines()
    return [round(row["loss"], 6) for row in map(json.loads, rows) if row["kind"] == "train"]


def here(place: Place, run: str, *more: str) -> list[Any]:
    """The losses of the same recipe on this machine."""
    store = ("--storage", str(place.folder / "here"))
    done = place.call(
        *("launch", "lm-tiny", "--on", "torchrun", "--run", run, "--json", *store, place.data, *ONE, *more)
    )
    assert done.returncode == 0, done.stderr
    return losses(document(done.stdout))


def test_a_run_is_admitted_and_its_losses_are_those_of_a_local_run(place: Place) -> None:
    done = place.call(*place.arguments("first", *ONE, "--json", stack=place.folder / "local.json"))
    assert done.returncode == 0, done.stderr
    assert losses(document(done.stdout)) == here(place, "first-here")
    place.clean()
    until(lambda: not place.names("workload"), "no workloads", 60)


def test_an_unknown_priority_is_a_mistake(place: Place) -> None:
    launch = place.arguments("unknown", "--priority", "urgent", stack=place.folder / "local.json")
    done = place.call(*launch)
    assert done.returncode == 2
    assert "--priority urgent: is not a priority of the platform" in done.stderr


def test_a_run_waits_for_its_turn_and_says_why(place: Place) -> None:
    with in_queue(place, "holder", *LONG) as holder:
        until(lambda: admitted(place, "holder"), "the first run's admission", 60)
        with (
            in_queue(place, "waits") as waits,
            in_queue(place, "large", "scaling.cpus_per_worker=2") as large,
        ):
            until(lambda: "insufficient unused quota for cpu" in waits.output, "why it waits", 60)
            until(lambda: "maximum capacity" in large.output, "why it can never run", 60)
            assert not admitted(place, "waits")
            where = ("--stack", str(place.folder / "local.json"))
            listed = document(place.call("runs", "list", *where, "--json").stdout)["runs"]
            states = {each["run"]: each["state"] for each in listed}
            assert (states["waits"], states["large"]) == ("queued", "queued")
            # Neither a follower that leaves nor a controller that restarts loses its place.
            (place.folder / "elsewhere").mkdir()  # the launcher holds the run's folder here
            elsewhere = replace(place, folder=place.folder / "elsewhere")
            attached = elsewhere.begin("attach", "runs", "attach", "waits", *where)
            until(lambda: "insufficient unused quota" in attached.output, "why it waits, to `attach`", 60)
            attached.interrupt()
            restart_controller(place)
            assert not admitted(place, "waits")
            assert not waits.ended
            stopped = place.call("runs", "stop", "large", *where)
            assert stopped.returncode == 0, stopped.stderr
            assert not holder.ended
            stopped = place.call("runs", "stop", "holder", "--now", *where)
            assert stopped.returncode == 0, stopped.stderr
            assert waits.process.wait(900) == 0, waits.output
    (launch,) = record(place, "waits")["launches"]
    assert 5 < launch["admitted_seconds"] < launch["first_step_seconds"]
    place.clean()


def test_a_preempted_run_resumes_by_itself(place: Place) -> None:
    steps = ("steps=2000", "checkpoint.every=50", "log.every=10", "validation.every=2000")
    with in_queue(place, "low", "--priority", "low", *steps) as low:
        low.reach(20)
        restart_controller(place)
        reached = low.step()
        low.reach(reached + 5)  # nothing happens to a run that trains
        with in_queue(place, "high", "--priority", "high") as high:
            until(lambda: "requeued in `training`: Preempted to accommodate" in low.output, "preemption", 120)
            assert high.process.wait(900) == 0, high.output
        assert low.process.wait(900) == 0, low.output
    assert "was lost" not in low.output
    (launch,) = record(place, "low")["launches"]
    assert launch["requeued_seconds"] > 5
    assert logged(place.folder, "low") == here(place, "low-here", *steps)
    place.clean()


def test_a_long_lived_cluster_is_admitted_as_a_whole(place: Place) -> None:
    with in_queue(place, "kept", "--cluster", "shared") as kept:
        assert kept.process.wait(900) == 0, kept.output
    (workload,) = place.names("workload")
    assert "raycluster-shared" in workload
    place.kubectl("delete", "raycluster", "shared")
    until(lambda: not place.names("workload"), "no workloads", 120)
    place.clean()


def no_capacity(place: Place) -> None:
    """Leave no capacity in the queue for a pod of any run."""
    set_quota(place.cluster, "10m")


def reserved(place: Place) -> list[str]:
    """Whether each Workload has its quota."""
    condition = '{range .items[*]}{.status.conditions[?(@.type=="QuotaReserved")].status}{"\\n"}{end}'
    return place.kubectl("get", "workload", "-o", f"jsonpath={condition}").split()


def test_a_service_starts_no_pod_outside_its_quota(place: Place) -> None:
    where = ("--stack", str(place.folder / "local.json"), "--from-secret", "s3-keys")
    no_capacity(place)
    model = f"{place.store.url}/runs/first"
    served = place.call("serve", model, "--on", "kuberay", *where, "--name", "model")
    try:
        assert served.returncode == 0, served.stderr
        until(lambda: place.names("workload"), "a workload of the service's cluster", 120)
        restart_controller(place)
        assert reserved(place) in ([], ["False"])
        assert not place.names("pod", "ray.io/node-type")
        set_quota(place.cluster, "2000m")
        until(lambda: reserved(place) == ["True"], "its admission", 60)
        # This node has too few free CPUs for its worker next to the stack's own pods, so it does not answer here.
        until(lambda: place.names("pod", "ray.io/node-type=head"), "its head", 60)
    finally:
        place.kubectl("delete", "rayservice", "model", "--ignore-not-found")
        set_quota(place.cluster, ONE_RUN)
    place.clean()
    until(lambda: not place.names("workload"), "no workloads", 120)


def test_the_pods_of_skypilot_start_together_once_there_is_capacity(place: Place, tmp_path: Path) -> None:
    sky_place.require_tools()
    home = sky_place.home_in(tmp_path)
    for file, name in (
        (place.cluster.state.kubeconfig, "access"),
        (place.folder / "local.json", "local.json"),
    ):
        shutil.copy(file, tmp_path / name)
    sky = sky_place.Place(place.cluster, place.store, tmp_path, home)
    no_capacity(place)
    try:
        done = sky.call("sky", "setup", "--stack", "local.json", "--yes")
        assert done.returncode == 0, done.stderr
        with sky.launched("in-queue", "local") as launch:
            until(lambda: launch.ended or "queued in `training`: " in launch.output, "why it waits", 300)
            assert "quota" in launch.output
            restart_controller(place)
            group = ("-l", "kueue.x-k8s.io/pod-group-name", "-o", "jsonpath={.items[*].status.phase}")
            assert place.kubectl("get", "pods", *group).split() == ["Pending"] * 2
            set_quota(place.cluster, "4000m")
            assert launch.process.wait(900) == 0, launch.output
        assert logged(tmp_path, "in-queue") == losses(sky.here("in-queue-here"))
    finally:
        sky_place.end_all(tmp_path)
        set_quota(place.cluster, ONE_RUN)
    place.clean()


def test_the_controllers_metrics_count_the_queue(place: Place) -> None:
    text = metrics(place)
    assert f'kueue_cluster_queue_status{{cluster_queue="{QUEUE}"' in text
    assert f'kueue_pending_workloads{{cluster_queue="{QUEUE}"' in text


def metrics(place: Place) -> str:
    """The controller's metrics, with the token of an account that may read them (docs/local-cluster.md)."""
    kueue, account = ("-n", QUEUE_NAMESPACE), "kueue-controller-manager"
    binding = ("clusterrolebinding", "queue-test-metrics")
    allowed = ("--clusterrole=kueue-metrics-reader", f"--serviceaccount={QUEUE_NAMESPACE}:{account}")
    place.cluster.kubectl("create", *binding, *allowed)
    token = place.cluster.kubectl(*kueue, "create", "token", account).strip()
    command = [
        str(place.cluster.state.file("bin", "kubectl")),
        *kueue,
        "port-forward",
        f"deployment/{account}",
    ]
    with subprocess.Popen([*command, ":8443"], env=place.env, stdout=subprocess.PIPE, text=True) as forward:
        try:
            assert forward.stdout is not None
            port = re.search(r":(\d+) ->", forward.stdout.readline())
            assert port is not None
            asked = Request(
                f"https://127.0.0.1:{port[1]}/metrics", headers={"Authorization": f"Bearer {token}"}
            )
            open_ = build_opener(
                ProxyHandler({}), HTTPSHandler(context=ssl._create_unverified_context())
            ).open
            with open_(asked, timeout=30) as answer:
                return str(answer.read().decode())
        finally:
            forward.terminate()
            place.cluster.kubectl("delete", *binding)
