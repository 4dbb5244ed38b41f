"""Launches with `--on kuberay` in a `restricted` namespace: an S3 gateway with TLS, its keys in a Secret.

Each test module has its own namespace and store. The node has only the CPUs of this machine, so each run
requests fractions of one, and must be gone before the next starts.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cluster.conftest import Cluster, until
from trainfleet.local_cluster.images import LOCAL
from trainfleet.local_cluster.store import Store, gateway
from trainfleet.local_cluster.stores.servers import KEY, SECRET

PROGRAM = str(Path(sys.executable).with_name("trainfleet"))
RESTRICTED = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
SMALL = ("scaling.cpus_per_worker=0.25",)
PARTS = 16
"""Files of the text: enough for each split to get two."""
LONG = ("steps=20000", "log.every=5", "checkpoint.every=50", "validation.every=20000")
"""A run that does not end before it is stopped."""


@dataclass(frozen=True)
class Place:
    """The cluster, the store, and how to launch on them."""

    cluster: Cluster
    store: Store
    folder: Path
    namespace: str

    @property
    def env(self) -> dict[str, str]:
        given = os.environ | {
            "NO_COLOR": "1",
            "COLUMNS": "160",
            "PYTHONUNBUFFERED": "1",
            "KUBECONFIG": str(self.cluster.state.kubeconfig),
        }
        return given | self.store.environment

    @property
    def where(self) -> list[str]:
        return ["--context", self.cluster.state.context, "--namespace", self.namespace]

    @property
    def data(self) -> str:
        return f"workload.data.source={self.store.url}/text"

    def reached(self) -> list[str]:
        """The options for the cluster, the image and the store's keys."""
        return [*self.where, "--image", LOCAL, "--from-secret", "s3-keys"]

    def arguments(
        self, run: str, *more: str, recipe: str = "lm-tiny", stack: Path | None = None
    ) -> list[str]:
        there = self.reached() if stack is None else ["--stack", str(stack), "--from-secret", "s3-keys"]
        return [
            "launch",
            recipe,
            "--on",
            "kuberay",
            *there,
            "--storage",
            f"{self.store.url}/runs",
            "--run",
            run,
            *SMALL,
            self.data,
            *more,
        ]

    def launch(self, run: str, *more: str, recipe: str = "lm-tiny") -> subprocess.CompletedProcess[str]:
        return self.call(*self.arguments(run, *more, recipe=recipe))

    def call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [PROGRAM, *arguments],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=1500,
            check=False,
        )

    def start(self, run: str, *more: str, stack: Path | None = None) -> Launch:
        return self.begin(run, *self.arguments(run, *more, stack=stack))

    def begin(self, name: str, *arguments: str) -> Launch:
        """Start a command in the background. Its output is written to `NAME.out`."""
        with (self.folder / f"{name}.out").open("w") as log:
            process = subprocess.Popen(
                [PROGRAM, *arguments],
                cwd=self.folder,
                env=self.env,
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
            )
        return Launch(process, self.folder / f"{name}.out")

    def kubectl(self, *arguments: str, check: bool = True) -> str:
        return self.cluster.kubectl("-n", self.namespace, *arguments, check=check)

    def names(self, kind: str, selector: str = "") -> list[str]:
        return self.kubectl("get", kind, "-o", "name", *(["-l", selector] if selector else [])).split()

    def clean(self) -> None:
        """Wait until the runs have left no objects in the namespace."""
        kinds = "rayjob,raycluster,rayservice,job,pod"
        until(lambda: not self.names(kinds), f"no objects of runs in {self.namespace}", 180)


@dataclass(frozen=True)
class Launch:
    """A `trainfleet launch` in the background."""

    process: subprocess.Popen[str]
    log: Path

    @property
    def output(self) -> str:
        return self.log.read_text()

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def step(self) -> int:
        """The latest step in its output."""
        lines = [line for line in self.output.splitlines() if line.startswith("step ")]
        return int(lines[-1].split()[1].partition("/")[0]) if lines else 0

    def reach(self, step: int, limit: float = 900) -> None:
        """Wait until the run has reached a step."""
        until(lambda: self.ended or self.step() >= step, f"step {step}", limit)
        assert not self.ended, self.output

    def interrupt(self) -> int:
        """Send Ctrl-C and return the exit code."""
        self.process.send_signal(2)
        return self.process.wait(300)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()


SUSPENDED_S = 600
"""How long a launcher is suspended."""


@contextlib.contextmanager
def suspended(process: subprocess.Popen[str]) -> Iterator[None]:
    """Stop a launcher with all its processes inside the block, as the lid of a laptop does."""
    tree = [psutil.Process(process.pid)]
    tree += tree[0].children(recursive=True)
    for each in tree:
        each.suspend()
    try:
        yield
    finally:
        for each in tree:
            each.resume()


@contextlib.contextmanager
def launched(place: Place, run: str, *more: str, stack: Path | None = None) -> Iterator[Launch]:
    """Launch a run for the duration of the block, then delete it."""
    launch = place.start(run, *more, stack=stack)
    try:
        yield launch
    finally:
        launch.kill()
        place.kubectl("delete", "rayjob", f"tf-{run}", "--ignore-not-found", "--wait=false")


@contextlib.contextmanager
def placed(cluster: Cluster, namespace: str, folder: Path) -> Iterator[Place]:
    """A namespace, a store with data, and its keys in a Secret, until the end of the block."""
    (folder / "store").mkdir()
    host = str(cluster.state.host_address)
    with gateway(host, folder / "store", (KEY, SECRET)) as store:
        fill(store.folder)
        cluster.apply(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": RESTRICTED}}
        )
        keys = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "s3-keys", "namespace": namespace},
            "stringData": keys,
        }
        cluster.apply(secret)
        yield Place(cluster, store, folder, namespace)
        cluster.kubectl("delete", "namespace", namespace, "--wait=false")


@pytest.fixture(scope="module")
def place(
    cluster: Cluster, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    """A place in a namespace named after the module."""
    namespace = request.module.__name__.rpartition("test_")[2].replace("_", "-")
    with placed(cluster, namespace, tmp_path_factory.mktemp("launches")) as found:
        yield found


def fill(bucket: Path) -> None:
    """Write a text that is the same for this machine and the pods. In few files, because each rank reads all."""
    text = bucket / "runs" / "text"
    text.mkdir(parents=True)
    for number, source in enumerate(sorted(Path(os.__file__).parent.glob("*.py"))):
        with (text / f"part-{number % PARTS:02}.py").open("ab") as file:
            file.write(source.read_bytes() + b"\n")


def losses(document: dict[str, Any]) -> list[Any]:
    """The training losses of a launch, to six digits."""
    return [round(loss, 6) for _, loss in document["losses"]]


def document(text: str) -> dict[str, Any]:
    """The document that `--json` printed."""
    found: dict[str, Any] = json.loads(text)
    return found
