"""What the SkyPilot tests run on: two namespaces that act as two platforms, and a home for SkyPilot.

The launcher accounts of both namespaces have the rights that a stack grants.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from tests.cluster.conftest import Cluster, until
from tests.cluster.launches import Launch, fill
from trainfleet.infra.kubernetes.access import CLUSTER_RULES, LAUNCHER_RULES, POD_RULES, Rule
from trainfleet.local_cluster.images import LOCAL
from trainfleet.local_cluster.store import Store, gateway
from trainfleet.local_cluster.stores.servers import KEY, SECRET
from trainfleet.orphan_reaper import is_daemon
from trainfleet.process import every_process
from trainfleet.training.launch.platform_outputs import external_cluster

NEAR, FAR = "sky-near", "sky-far"
RBAC = "rbac.authorization.k8s.io/v1"
PROGRAM = str(Path(sys.executable).with_name("trainfleet"))
TWO = ("--nodes", "2", "scaling.workers=2", "scaling.cpus_per_worker=0.25")
"""Two pods on one small machine."""


@dataclass(frozen=True)
class Place:
    """The cluster, the store, and a home folder for SkyPilot."""

    cluster: Cluster
    store: Store
    folder: Path
    env: dict[str, str]

    @property
    def environment(self) -> dict[str, str]:
        return (
            os.environ
            | {"NO_COLOR": "1", "COLUMNS": "160", "PYTHONUNBUFFERED": "1"}
            | self.store.environment
            | self.env
        )

    def call(self, *arguments: str, timeout: float = 1500) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [PROGRAM, *arguments],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def arguments(
        self, run: str, *stacks: str, more: tuple[str, ...] = TWO, recipe: str = "lm-tiny"
    ) -> list[str]:
        named = [text for stack in stacks for text in ("--stack", f"{stack}.json")]
        options = ["--from-secret", "s3-keys", "--storage", f"{self.store.url}/runs", "--run", run]
        return ["launch", recipe, "--on", "sky", *named, *options, self.data, *more]

    def launch(
        self, run: str, *stacks: str, more: tuple[str, ...] = TWO, recipe: str = "lm-tiny"
    ) -> subprocess.CompletedProcess[str]:
        return self.call(*self.arguments(run, *stacks, more=(*more, "--json"), recipe=recipe))

    def launched(
        self, run: str, *stacks: str, more: tuple[str, ...] = TWO
    ) -> contextlib.AbstractContextManager[Launch]:
        """Launch in the background for the duration of the block."""
        return self.started(run, *self.arguments(run, *stacks, more=more))

    @contextlib.contextmanager
    def started(self, run: str, *arguments: str) -> Iterator[Launch]:
        """Run a command in the background for the duration of the block. Its output is written to `RUN.out`."""
        with (self.folder / f"{run}.out").open("w") as log:
            process = subprocess.Popen(
                [PROGRAM, *arguments],
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
            )
        launch = Launch(process, self.folder / f"{run}.out")
        try:
            yield launch
        finally:
            launch.kill()

    def here(self, run: str, *more: str, recipe: str = "lm-tiny") -> dict[str, Any]:
        """Run the same recipe on this machine with as many workers."""
        arguments = (
            "launch",
            recipe,
            "--on",
            "local",
            "--run",
            run,
            "--storage",
            str(self.folder / "here"),
            "--json",
            self.data,
        )
        done = self.call(*arguments, "scaling.workers=2", *more)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    @property
    def data(self) -> str:
        return f"workload.data.source={self.store.url}/text"

    def record(self, run: str) -> dict[str, Any]:
        """The launcher's run.json."""
        found: dict[str, Any] = json.loads((self.folder / "runs" / run / "run.json").read_text())
        return found

    def pods(self, *namespaces: str) -> list[str]:
        return [
            pod
            for namespace in namespaces
            for pod in self.cluster.kubectl("-n", namespace, "get", "pods", "-o", "name").split()
        ]

    def kill_server(self) -> int:
        """Send SIGKILL to SkyPilot's API server of this home, and return its process group."""
        found = [each for each in of_home(self.folder) if is_daemon(each.pid)]
        oldest = min(found, key=lambda each: each.create_time())
        group = os.getpgid(oldest.pid)
        oldest.kill()
        oldest.wait(30)
        return group

    def gone(self) -> None:
        until(lambda: not self.pods(NEAR, FAR), "all pods are gone", 180)

    def close(self, namespace: str) -> None:
        """Set a quota of zero pods in a namespace. Existing pods stay."""
        quota = {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "none", "namespace": namespace},
            "spec": {"hard": {"pods": "0"}},
        }
        self.cluster.apply(quota)
        used = ("-n", namespace, "get", "resourcequota", "none", "-o", "jsonpath={.status.hard.pods}")
        until(lambda: self.cluster.kubectl(*used) == "0", "the quota holds", 60)

    def open(self, namespace: str) -> None:
        self.cluster.kubectl("-n", namespace, "delete", "resourcequota", "none", "--ignore-not-found")

    @contextlib.contextmanager
    def closed(self, *namespaces: str) -> Iterator[None]:
        try:
            for namespace in namespaces:
                self.close(namespace)
            yield
        finally:
            for namespace in namespaces:
                self.open(namespace)

    def elsewhere(self) -> Place:
        """The same place from another folder, without the run folders of this one."""
        folder = self.folder / "elsewhere"
        folder.mkdir(exist_ok=True)
        for namespace in (NEAR, FAR):
            shutil.copy(self.folder / f"{namespace}.json", folder)
        return replace(self, folder=folder)

    def with_tokens(self, token: str) -> Place:
        """The same place with another token in every context."""
        document = yaml.safe_load((self.folder / "access").read_text())
        for user in document["users"]:
            user["user"] = {"token": token}
        (self.folder / "stale").write_text(yaml.safe_dump(document))
        return replace(self, env={**self.env, "KUBECONFIG": str(self.folder / "stale")})


def rules(these: tuple[Rule, ...]) -> list[dict[str, Any]]:
    return [
        {"apiGroups": [group], "resources": resources, "verbs": verbs} for group, resources, verbs in these
    ]


def granted(namespace: str) -> list[dict[str, Any]]:
    """The accounts and rights of a platform in its namespace."""

    def made(kind: str, name: str, api: str = "v1", **more: Any) -> dict[str, Any]:
        return {
            "apiVersion": api,
            "kind": kind,
            "metadata": {"name": name, "namespace": namespace, **more.pop("metadata", {})},
            **more,
        }

    def bound(role: str, account: str, kind: str = "Role") -> dict[str, Any]:
        subject = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role}
        return {"subjects": [subject], "roleRef": reference}

    everywhere = f"{namespace}-launcher"
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}},
        made("ServiceAccount", "launcher"),
        made("ServiceAccount", "trainer", automountServiceAccountToken=False),
        made("Secret", "s3-keys", stringData={"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}),
        made("Role", "launcher", RBAC, rules=rules(LAUNCHER_RULES)),
        made("RoleBinding", "launcher", RBAC, **bound("launcher", "launcher")),
        made("Role", "trainer", RBAC, rules=rules(POD_RULES)),
        made("RoleBinding", "trainer", RBAC, **bound("trainer", "trainer")),
        {
            "apiVersion": RBAC,
            "kind": "ClusterRole",
            "metadata": {"name": everywhere},
            "rules": rules(CLUSTER_RULES),
        },
        {
            "apiVersion": RBAC,
            "kind": "ClusterRoleBinding",
            "metadata": {"name": everywhere},
            **bound(everywhere, "launcher", "ClusterRole"),
        },
    ]


def contract(cluster: Cluster, namespace: str, store: Store) -> dict[str, Any]:
    """The outputs of a stack on this namespace, for launchers."""
    access = json.dumps(yaml.safe_load(Path(cluster.state.kubeconfig).read_text()))
    changes = {
        "kubeconfig": access,
        "service_account": "trainer",
        "launcher_account": "launcher",
    }
    return external_cluster(namespace, namespace, LOCAL, store.url).model_copy(update=changes).model_dump()


def require_tools() -> None:
    """Skip the test if a program that SkyPilot calls is missing."""
    if missing := [tool for tool in ("kubectl", "socat", "nc", "rsync", "ssh") if shutil.which(tool) is None]:
        pytest.skip(f"SkyPilot needs {', '.join(missing)}")


def home_in(folder: Path) -> dict[str, str]:
    """The variables of a home for SkyPilot, with an API server and contexts of its own."""
    (folder / "tmp").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    return {
        "HOME": str(folder),
        "TMPDIR": str(folder / "tmp"),  # SkyPilot removes little of what it writes there
        "KUBECONFIG": str(folder / "access"),
        "SKYPILOT_API_SERVER_LOCAL_PORT": port,
        "SKYPILOT_DISABLE_USAGE_COLLECTION": "1",
    }


@pytest.fixture(scope="module")
def place(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    require_tools()
    folder = tmp_path_factory.mktemp("sky")
    (folder / "store").mkdir()
    home = home_in(folder)
    with gateway(str(cluster.state.host_address), folder / "store", (KEY, SECRET)) as store:
        fill(store.folder)
        here = Place(cluster, store, folder, home)
        try:
            # The module before this one may have left them terminating; nothing can be created in them then.
            remove(cluster, "--timeout=240s")
            for namespace in (NEAR, FAR):
                cluster.apply(*granted(namespace))
                (folder / f"{namespace}.json").write_text(json.dumps(contract(cluster, namespace, store)))
            done = here.call(
                "sky", "setup", "--stack", f"{NEAR}.json", "--stack", f"{FAR}.json", "--managed", "--yes"
            )
            assert done.returncode == 0, done.stderr
            yield here
        finally:
            # SkyPilot's server, workers and job controllers outlive the launch that starts them.
            end_all(folder)
            remove(cluster, "--wait=false")


def remove(cluster: Cluster, wait: str) -> None:
    """Delete both platforms. `wait` is kubectl's option of how long it waits for their end."""
    names = [f"{namespace}-launcher" for namespace in (NEAR, FAR)]
    cluster.kubectl("delete", "namespace", NEAR, FAR, "--ignore-not-found", wait)
    cluster.kubectl("delete", "clusterrole,clusterrolebinding", *names, "--ignore-not-found")


def of_home(folder: Path) -> set[psutil.Process]:
    """The processes with this HOME and their descendants: SkyPilot's server, workers and job controllers.

    Descendants are included because SkyPilot's workers overwrite their environment with their name.
    """
    found = set()
    for process in every_process():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("HOME") == str(folder):
                found |= {process, *process.children(recursive=True)}
    return found


def end_all(folder: Path) -> None:
    """Kill them, also those that ignore SIGTERM."""
    ours: set[psutil.Process] = set()

    def ended() -> bool:
        # Find all of them before the first is killed: an orphan cannot be found again.
        ours.update(of_home(folder))
        for process in list(ours):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
                if process.status() != psutil.STATUS_ZOMBIE:
                    continue
            ours.discard(process)
        return not ours

    until(ended, "SkyPilot's processes are gone", 60)
