"""A recipe on a real cluster: the same losses as on this machine, through lost processes, pods and heads, and nothing left behind.

The namespace enforces Pod Security's `restricted`, the store has TLS, and the keys come by a Secret.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rehearsal.cluster.images import LOCAL
from tests.cluster.conftest import Cluster, until
from tests.cluster.stores import Store, gateway
from tools.stores.servers import KEY, SECRET

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3000)]
NAMESPACE = "training"
RESTRICTED = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}


@dataclass(frozen=True)
class Place:
    """The cluster, the store, and how to launch there."""

    cluster: Cluster
    store: Store
    folder: Path

    @property
    def env(self) -> dict[str, str]:
        return {**self.store.environment, "KUBECONFIG": str(self.cluster.state.kubeconfig)}

    @property
    def where(self) -> list[str]:
        return ["--context", self.cluster.state.context, "--namespace", NAMESPACE]

    def arguments(self, run: str, *more: str) -> list[str]:
        options = [*self.where, "--image", LOCAL, "--from-secret", "s3-keys", "--storage", f"{self.store.url}/runs", "--run", run]
        # Half a CPU each: the node has as many as this machine, perhaps two.
        return ["launch", "lm-tiny", "--on", "kuberay", *options, "scaling.cpus_per_worker=0.5", f"workload.data.source={self.store.url}/text", *more]

    def launch(self, run: str, *more: str) -> subprocess.CompletedProcess[str]:
        return self.call(*self.arguments(run, *more))

    def call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        program = str(Path(sys.executable).with_name("trainfleet"))
        environment = os.environ | {"NO_COLOR": "1", "COLUMNS": "160"} | self.env
        return subprocess.run([program, *arguments], cwd=self.folder, env=environment, capture_output=True, text=True, timeout=1500, check=False)

    def start(self, run: str, *more: str) -> subprocess.Popen[str]:
        program = str(Path(sys.executable).with_name("trainfleet"))
        environment = os.environ | {"NO_COLOR": "1", "COLUMNS": "160", "PYTHONUNBUFFERED": "1"} | self.env
        command = [program, *self.arguments(run, *more)]
        log = (self.folder / f"{run}.out").open("w")
        return subprocess.Popen(command, cwd=self.folder, env=environment, stdout=log, stderr=subprocess.STDOUT, text=True)

    def said(self, run: str) -> str:
        return (self.folder / f"{run}.out").read_text()

    def kubectl(self, *arguments: str, check: bool = True) -> str:
        return self.cluster.kubectl("-n", NAMESPACE, *arguments, check=check)

    def names(self, kind: str, selector: str = "") -> list[str]:
        return self.kubectl("get", kind, "-o", "name", *(["-l", selector] if selector else [])).split()


@pytest.fixture(scope="module")
def place(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """The cluster, a namespace, a store with data in it, and its keys as a Secret."""
    folder = tmp_path_factory.mktemp("launches")
    (folder / "store").mkdir()
    host = str(cluster.state.outside)
    with gateway(host, folder / "store") as store:
        _fill(store.folder)
        cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": RESTRICTED}})
        keys = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s3-keys", "namespace": NAMESPACE}, "stringData": keys}
        cluster.apply(secret)
        yield Place(cluster, store, folder)


def _fill(bucket: Path) -> None:
    """Text that is the same for this machine and the pods."""
    text = bucket / "runs" / "text"
    text.mkdir(parents=True)
    for source in sorted(Path(os.__file__).parent.glob("*.py")):
        (text / source.name).write_bytes(source.read_bytes())


def clean(place: Place) -> None:
    until(lambda: not place.names("rayjob") and not place.names("raycluster"), "the run's objects are gone", 120)


def losses(document: dict[str, Any]) -> list[Any]:
    return [round(loss, 6) for _, loss in document["losses"]]


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_run_on_the_cluster_has_the_losses_of_one_on_this_machine(strategy: str, place: Place) -> None:
    there = place.launch(f"{strategy}-there", f"strategy={strategy}", "--json")
    assert there.returncode == 0, there.stderr
    here = place.call(
        *("launch", "lm-tiny", "--on", "local", "--run", f"{strategy}-here", "--storage", str(place.folder / "here"), "--json"),
        *(f"workload.data.source={place.store.url}/text", f"strategy={strategy}"),
    )
    assert here.returncode == 0, here.stderr
    one, other = json.loads(there.stdout), json.loads(here.stdout)
    assert one["step"] == other["step"] == 40
    assert losses(one) == losses(other)
    assert one["metrics"]["test/loss"] == pytest.approx(other["metrics"]["test/loss"], abs=1e-6)
    assert Path(one["report"]).is_file()
    clean(place)


def _step(place: Place, run: str) -> int:
    """The last step that the launch has told of."""
    told = [line for line in place.said(run).splitlines() if line.startswith("step ")]
    return int(told[-1].split()[1].partition("/")[0]) if told else 0


def _kill_process(place: Place) -> None:
    pod = place.names("pod", "ray.io/node-type=worker")[0]
    place.kubectl("exec", pod, "-c", "ray-worker", "--", "pkill", "-9", "-f", "ray::.*RayTrainWorker")


def _delete_worker(place: Place) -> None:
    place.kubectl("delete", place.names("pod", "ray.io/node-type=worker")[0], "--wait=false")


def _delete_head(place: Place) -> None:
    place.kubectl("delete", place.names("pod", "ray.io/node-type=head")[0], "--wait=false")


LONG = ("steps=4000", "log.every=5", "checkpoint.every=20", "validation.every=4000")


@pytest.mark.parametrize("loss", [_kill_process, _delete_worker, _delete_head], ids=["process", "pod", "head"])
def test_a_run_goes_on_by_itself_when_a_part_of_it_is_lost(loss: Callable[[Place], None], place: Place, record_property: Callable[..., None]) -> None:
    run = f"lost-{loss.__name__.strip('_').replace('_', '-')}"
    launch = place.start(run, *LONG)
    try:
        until(lambda: launch.poll() is not None or _step(place, run) >= 60, "the run is under way", 600)
        assert launch.poll() is None, place.said(run)
        before, lost = _step(place, run), time.monotonic()
        loss(place)
        # It goes back to a checkpoint and must pass the step at which it was struck.
        until(lambda: launch.poll() is not None or _resumed(place, run), "the run has resumed", 600)
        until(lambda: launch.poll() is not None or _step(place, run) > before, "the run has come further", 600)
        assert launch.poll() is None, place.said(run)
        record_property("seconds", round(time.monotonic() - lost, 1))
        launch.send_signal(signal.SIGINT)
        assert launch.wait(300) == 130, place.said(run)
        assert "which is saved" in place.said(run)
    finally:
        _end(launch)
    clean(place)


def _resumed(place: Place, run: str) -> bool:
    return "resumed:" in place.said(run)


def _end(launch: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        launch.kill()
    launch.wait()


def test_a_stopped_run_has_saved_and_goes_on(place: Place) -> None:
    launch = place.start("stopped", *LONG)
    try:
        until(lambda: launch.poll() is not None or _step(place, "stopped") >= 30, "the run is under way", 600)
        launch.send_signal(signal.SIGINT)
        assert launch.wait(300) == 130, place.said("stopped")
    finally:
        _end(launch)
    reached = _step(place, "stopped")
    again = place.launch("stopped", *LONG, f"steps={reached + 20}", "--allow-change", "steps", "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["resumed_from"] >= reached
    clean(place)


def test_a_run_that_was_left_alone_is_listed_read_and_come_back_to(place: Place) -> None:
    left = place.launch("alone", "steps=400", "--detach", "--json")
    assert left.returncode == 0, left.stderr
    assert json.loads(left.stdout)["status"] == "detached"
    listed = json.loads(place.call("runs", "list", *place.where, "--json").stdout)["runs"]
    assert [run["run"] for run in listed] == ["alone"]
    twice = place.launch("alone", "steps=400")
    assert (twice.returncode, "going on already" in twice.stderr) == (2, True)
    back = place.call("runs", "attach", "alone", *place.where, "--json")
    assert back.returncode == 0, back.stderr
    assert json.loads(back.stdout)["step"] == 400
    assert place.call("runs", "logs", "alone", *place.where).returncode == 2
    clean(place)


def test_an_image_that_is_not_there_is_told_and_taken_down(place: Place) -> None:
    done = place.launch("no-image", "--image", "localhost/nobody/has:this")
    assert done.returncode == 2
    assert "localhost/nobody/has:this cannot be pulled" in done.stderr
    clean(place)


def test_a_quota_that_leaves_no_room_is_told_and_ends_by_its_time(place: Place) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none", "namespace": NAMESPACE}, "spec": {"hard": {"pods": "0"}}}
    place.cluster.apply(quota)
    try:
        done = place.launch("no-room", "--within", "0.5")
    finally:
        place.kubectl("delete", "resourcequota", "none")
    assert done.returncode == 1
    assert "quota `none` allows 0 pods" in done.stdout
    assert "did not get its machines in time" in done.stderr
    clean(place)


def test_a_gpu_that_no_node_has_is_told_and_ends_by_its_time(place: Place) -> None:
    done = place.launch("no-gpu", "scaling.use_gpu=true", "--within", "1")
    assert done.returncode == 1
    assert "too little GPUs (nvidia.com/gpu) free" in done.stdout + done.stderr
    clean(place)


def test_the_dashboard_wants_the_token_and_no_secret_is_told(place: Place) -> None:
    launch = place.start("watched", *LONG)
    try:
        until(lambda: launch.poll() is not None or _step(place, "watched") >= 10, "the run is under way", 600)
        assert launch.poll() is None, place.said("watched")
        program = str(Path(sys.executable).with_name("trainfleet"))
        command = [program, "dashboard", "watched", *place.where, "--port", "0", "--token", "--json"]
        board = subprocess.Popen(command, env=os.environ | place.env, stdout=subprocess.PIPE, text=True)
        try:
            assert board.stdout is not None
            document = json.loads("".join(iter(board.stdout.readline, "}\n")) + "}")
            with pytest.raises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(f"{document['address']}/api/jobs/", timeout=30)
            assert caught.value.code in (401, 403)
            asked = urllib.request.Request(f"{document['address']}/api/jobs/", headers={"Authorization": f"Bearer {document['token']}"})
            assert b"submission_id" in urllib.request.urlopen(asked, timeout=30).read()
        finally:
            board.terminate()
            board.wait()
        said = place.kubectl("logs", "-l", "batch.kubernetes.io/job-name=tf-watched", "--tail=-1")
        objects = place.kubectl("get", "rayjob,raycluster,configmap,pod,event", "-o", "yaml")
        for planted in (SECRET, document["token"]):
            assert planted not in said
            assert planted not in objects
        launch.send_signal(signal.SIGINT)
        assert launch.wait(300) == 130
    finally:
        _end(launch)
    clean(place)
