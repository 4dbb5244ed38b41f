"""Every fault on a run over three nodes, under DDP and FSDP2: it recovers by itself, with an undisturbed run's losses.

A step takes a third of a second of idle CPUs, as with a GPU. TRAINFLEET_REPEATS: injections of each fault.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.cluster import faults
from tests.cluster.conftest import Cluster, trainfleet, until
from tests.cluster.disk import disk_in_a_file, filled
from tests.cluster.faults import Note, StoreSwitch
from tests.cluster.launches import Launch, Place, place
from tests.cluster.logins import logged_in
from tests.cluster.pauses import Pauses
from tests.cluster.redis import PASSWORD, redis
from tests.cluster.several_nodes import start
from tests.cluster.sky_place import contract, granted
from trainfleet.pod_patches import CONTAINER
from trainfleet.training.launch.remote.ray_job import RAY_VERSION
from trainfleet.training.runs.reader import read_run

pytestmark = [pytest.mark.cluster, pytest.mark.deep, pytest.mark.timeout(5400)]
__all__ = ["place"]
REPEATS = int(os.environ.get("TRAINFLEET_REPEATS", "1"))
DISK, FULL_S = 60 << 30, 30.0
STOPPED_S = 600.0
FURTHER = 25
"""Steps after a fault that did not restart the run, before it counts as passed."""
WORKLOAD = """
import os, time
from typing import Literal
from trainfleet.training.workloads.lm.settings import LmSettings
from trainfleet.training.workloads.lm.workload import LanguageModel

PAUSE_S = 0.15 if "KUBERNETES_SERVICE_HOST" in os.environ else 0.0

class Paced(LanguageModel):
    class Settings(LmSettings):
        name: Literal["paced:Paced"]

    def forward_loss(self, model, batch):
        time.sleep(PAUSE_S)
        return super().forward_loss(model, batch)
"""
RECIPE = """
name: paced
seed: 1
workload: {name: "paced:Paced", model: {layers: 1, width: 32, heads: 2, context: 32}}
optimizer: {lr: 5.0e-3, warmup: 5}
batch: {global_batch: 24, micro_batch: 4}
steps: 50000
validation: {every: 50000, samples: 64}
checkpoint: {every: 20, keep_last: 2}
log: {every: 1, tensorboard: false}
scaling: {workers: 3, cpus_per_worker: 0.25, threads: 1, restarts: 1000}
"""
SPREAD = {
    "topologyKey": "kubernetes.io/hostname",
    "maxSkew": 1,
    "whenUnsatisfiable": "DoNotSchedule",
    "nodeTaintsPolicy": "Honor",
    "labelSelector": {"matchLabels": {"ray.io/node-type": "worker"}},
}


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A disk for the cluster's nodes."""
    with disk_in_a_file(tmp_path_factory.mktemp("disk"), DISK) as mounted:
        yield mounted


@pytest.fixture(scope="module")
def cluster(disk: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three equal nodes with the training image. Replaces the shared cluster."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(disk))
        # A launcher that is killed leaves its temporary files.
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("temporary")))
        here = start()
        try:
            yield here
        finally:
            assert trainfleet("cluster", "down", "--name", here.name).returncode == 0


@dataclass
class Run:
    """A run on three nodes, and how its steps come in."""

    place: Place
    name: str
    strategy: str
    launch: Launch
    store: StoreSwitch
    recipe: Path

    @property
    def resumed(self) -> int:
        return self.launch.output.count("\nresumed:")

    def reach(self, step: int, limit: float = 600) -> None:
        self.launch.reach(step, limit)

    @property
    def stored(self) -> Path:
        """Its files in the store, as of its newest checkpoint."""
        return self.place.store.folder / "runs" / "runs" / self.name

    def losses(self) -> dict[int, float]:
        return faults.losses(self.stored)

    def starts(self) -> int:
        """How often its workers have started, as of its newest checkpoint."""
        return len(read_run(self.stored).get("starts", []))


def write(folder: Path) -> Path:
    folder.mkdir()
    (folder / "paced.py").write_text(WORKLOAD)
    (folder / "paced.yaml").write_text(RECIPE)
    return folder / "paced.yaml"


def template(place: Place, folder: Path) -> Path:
    """The head on the first node, a worker on each node, and a limit of a worker's memory."""
    limits = {"name": CONTAINER, "resources": {"limits": {"memory": "3Gi"}}}
    head = {"nodeSelector": {"kubernetes.io/hostname": place.cluster.state.control_plane.name}}
    workers = {"topologySpreadConstraints": [SPREAD], "containers": [limits]}
    file = folder / "template.json"
    file.write_text(json.dumps({"head": {"spec": head}, "workers": {"spec": workers}}))
    return file


def platform(place: Place) -> Path:
    """The contract of a platform with the accounts and rights of a stack: its submitter replaces lost pods."""
    file = place.folder / "platform.json"
    if not file.exists():
        place.cluster.apply(
            *(each for each in granted(place.namespace) if each["kind"] not in ("Namespace", "Secret"))
        )
        # The context is the user's own, with the login in its kubeconfig.
        own = {"ray_version": RAY_VERSION, "kube_context": place.cluster.state.context}
        outputs = contract(place.cluster, place.namespace, place.store) | own
        file.write_text(json.dumps(outputs))
    return file


@contextlib.contextmanager
def running(place: Place, store: StoreSwitch, name: str, strategy: str, *more: str) -> Iterator[Run]:
    """A run that has passed its first checkpoints."""
    folder = place.folder / name
    recipe = write(folder)
    launch = place.begin(
        name,
        *("launch", str(recipe), "--on", "kuberay", "--code", str(folder)),
        *("--stack", str(platform(place)), "--from-secret", "s3-keys"),
        *("--storage", f"{place.store.url}/runs", "--run", name),
        *("--pod-template", str(template(place, place.folder))),
        *(place.data, f"strategy={strategy}", *more),
    )
    run = Run(place, name, strategy, launch, store, recipe)
    try:
        run.reach(60)
        yield run
    finally:
        if not run.launch.ended:
            run.launch.interrupt()
        run.launch.kill()
        place.call("runs", "stop", name, "--storage", f"{place.store.url}/runs")
        place.kubectl("delete", "rayjob", f"tf-{name}", "--ignore-not-found", "--wait=false")


@pytest.fixture(scope="module")
def store(place: Place) -> Iterator[StoreSwitch]:
    """The store of all runs: its second server must not end with the first run."""
    switch = StoreSwitch(place)
    yield switch
    switch.close()


@pytest.fixture(scope="module", params=["ddp", "fsdp"])
def run(place: Place, store: StoreSwitch, request: pytest.FixtureRequest) -> Iterator[Run]:
    """A run with three workers, neither more nor fewer."""
    with running(place, store, f"over-{request.param}", request.param) as found:
        yield found


@contextlib.contextmanager
def once(fault: Callable[[Place], None], run: Run) -> Iterator[None]:
    """A fault that needs no repair."""
    fault(run.place)
    yield


@contextlib.contextmanager
def rejected(run: Run) -> Iterator[None]:
    """A store that answers 503 for a minute."""
    with run.store.rejecting():
        faults.wait(faults.OUTAGE_S)
    yield


@contextlib.contextmanager
def full_disk(run: Run) -> Iterator[None]:
    """Nodes whose disk is full for half a minute."""
    with filled(Path(os.environ["XDG_STATE_HOME"])):
        faults.wait(FULL_S)
    yield
    until(lambda: run.place.cluster.status()["ready"], "the cluster is ready again", 180)


@contextlib.contextmanager
def no_launcher(run: Run) -> Iterator[None]:
    """A launcher that was killed; another folder's `runs attach` follows the run instead."""
    run.launch.kill()
    elsewhere = replace(run.place, folder=run.place.folder / "elsewhere")
    elsewhere.folder.mkdir(exist_ok=True)
    where = ("--storage", f"{run.place.store.url}/runs", *run.place.where)
    run.launch = elsewhere.begin(f"{run.name}-{time.monotonic_ns()}", "runs", "attach", run.name, *where)
    yield


@dataclass(frozen=True)
class Fault:
    """A fault, and whether workers must restart from a checkpoint."""

    name: str
    inject: Callable[[Run], contextlib.AbstractContextManager[None]]
    restarts: bool | None
    """None: they may."""


def at(
    manager: Callable[[Place], contextlib.AbstractContextManager[None]],
) -> Callable[[Run], contextlib.AbstractContextManager[None]]:
    return lambda run: manager(run.place)


def single(fault: Callable[[Place], None]) -> Callable[[Run], contextlib.AbstractContextManager[None]]:
    return lambda run: once(fault, run)


FAULTS = [
    Fault("worker process killed", single(faults.kill_process), True),
    Fault("worker pod deleted", single(faults.delete_worker), True),
    Fault("head pod deleted", single(faults.delete_head), True),
    Fault("node drained", at(faults.drained_node), True),
    Fault("node cut off for 60 s", at(faults.cut_off_node), None),
    Fault("node stopped", at(faults.stopped_node), True),
    Fault("out of memory", single(faults.use_up_memory), True),
    Fault("API server and etcd killed", single(faults.kill_api_server_and_etcd), False),
    Fault("operator killed", single(faults.kill_operator), False),
    Fault("store answers 503 for 60 s", rejected, None),
    Fault("disk of the nodes full for 30 s", full_disk, None),
    Fault("launcher killed", no_launcher, False),
]


def inject(run: Run, fault: Fault, note: Note) -> None:
    """Inject a fault, and record the longest times without a step until the run trains on."""
    until(lambda: faults.prestarted(run.place), "processes wait for a restart", 240)
    resumed, starts = run.resumed, run.starts()
    with Pauses(lambda: run.launch) as pauses:
        before = pauses.highest
        with fault.inject(run):
            if fault.restarts:
                what = f"{fault.name}: the run has resumed"
                until(lambda: run.launch.ended or run.resumed > resumed, what, 600)
                run.reach(pauses.highest + 1)
        run.reach(max(before, pauses.highest) + FURTHER)
        assert pauses.highest > before
    restarted = run.starts() > starts
    faults.show(
        note,
        f"{run.strategy}: {fault.name}",
        next_step=pauses.stopped,
        new_step=pauses.behind,
        restarted=float(restarted),
    )
    assert fault.restarts is not False or not restarted, run.launch.output


# Rounds, because the kubelet waits longer before each restart of a container that has run for less than 10 minutes.
ROUNDS = [(number, fault) for number in range(REPEATS) for fault in FAULTS]


@pytest.mark.parametrize(
    ("number", "fault"), ROUNDS, ids=[f"{fault.name.replace(' ', '-')}-{number}" for number, fault in ROUNDS]
)
def test_a_run_on_three_nodes_recovers_by_itself(
    number: int, fault: Fault, run: Run, record_property: Note
) -> None:
    record_property("round", number)
    inject(run, fault, record_property)


def test_a_launcher_that_was_stopped_for_ten_minutes_follows_the_run_again(run: Run) -> None:
    before, resumed = run.launch.step(), run.resumed
    run.launch.process.send_signal(signal.SIGSTOP)
    faults.wait(STOPPED_S)
    run.launch.process.send_signal(signal.SIGCONT)
    there = max(run.losses(), default=0)
    assert there > before
    run.reach(there + FURTHER)
    assert run.resumed == resumed, "the run needed no launcher"


def test_the_run_has_the_losses_of_an_undisturbed_run(run: Run, place: Place) -> None:
    done = place.call("runs", "stop", run.name, "--storage", f"{place.store.url}/runs", *place.where)
    assert done.returncode == 0, done.stderr
    found = run.losses()
    last = max(found)
    assert sorted(found) == list(range(1, last + 1)), "a step is missing or was logged twice"
    place.clean()
    alone = place.begin(
        f"alone-{run.strategy}",
        *("launch", str(run.recipe), "--on", "torchrun", "--run", "alone", place.data),
        *("--storage", str(place.folder / f"alone-{run.strategy}"), f"strategy={run.strategy}"),
    )
    try:
        alone.reach(last, 1800)
        assert alone.interrupt() == 130, alone.output
    finally:
        alone.kill()
    undisturbed = faults.losses(place.folder / f"alone-{run.strategy}" / "alone")
    assert found == {step: loss for step, loss in undisturbed.items() if step <= last}


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_an_elastic_run_continues_on_the_nodes_that_remain(
    strategy: str, place: Place, store: StoreSwitch, record_property: Note
) -> None:
    fault = Fault("node stopped, with two workers as the minimum", at(faults.stopped_node), True)
    with running(place, store, f"elastic-{strategy}", strategy, "scaling.min_workers=2") as found:
        for _ in range(REPEATS):
            inject(found, fault, record_property)
            until(lambda: len(place.names("pod", "ray.io/node-type=worker")) == 3, "three workers", 300)
            faults.spread_out(place)
    place.clean()


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_no_step_is_lost_with_the_head_if_redis_keeps_its_state(
    strategy: str, place: Place, store: StoreSwitch, tmp_path: Path, record_property: Note
) -> None:
    fault = Fault("head pod deleted, with GCS fault tolerance", single(faults.delete_head), restarts=False)
    place.cluster.apply(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "redis-password", "namespace": place.namespace},
            "stringData": {"password": PASSWORD},
        }
    )
    with redis(str(place.cluster.state.host_address), tmp_path / "redis") as server:
        options = ("--redis", server.address, "--redis-secret", "redis-password")
        with running(place, store, f"redis-{strategy}", strategy, *options) as found:
            for _ in range(REPEATS):
                inject(found, fault, record_property)
        place.clean()
        assert server.keys() == [], "the keys of a deleted cluster remain"
        steps = sorted(found.losses())
        assert steps == list(range(1, max(steps) + 1)), "a step is missing or was logged twice"


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_run_continues_while_the_login_of_its_launcher_has_ended(
    strategy: str, place: Place, store: StoreSwitch, tmp_path: Path, record_property: Note
) -> None:
    with (
        logged_in(place, tmp_path / "kubeconfig") as login,
        running(login, store, f"login-{strategy}", strategy) as found,
    ):
        what = "login of the launcher ended for 60 s"
        fault = Fault(what, lambda run: login.logged_out(run.launch, faults.OUTAGE_S), restarts=False)
        for _ in range(REPEATS):
            inject(found, fault, record_property)
    place.clean()
