"""SkyPilot on a real cluster, by what a stack grants its launchers: set up, proven, a recipe on two pods, and a place without room.

Two namespaces stand for two platforms, each with the accounts and rights that `infra.kubernetes.access` declares.
SkyPilot has a home and an API server of its own.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.kubernetes.access import CLUSTER_RULES, LAUNCHER_RULES, POD_RULES, Rule
from rehearsal.cluster.images import LOCAL
from tests.cluster.conftest import Cluster, until
from tests.cluster.stores import Store, gateway
from tools.stores.servers import KEY, SECRET
from training.launch.bare import bare_platform

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3000)]
NEAR, FAR = "sky-near", "sky-far"
SMALL = ("scaling.cpus_per_worker=0.25",)
"""Several pods share the processors of a small machine."""
RBAC = "rbac.authorization.k8s.io/v1"


@dataclass(frozen=True)
class Place:
    """The cluster, the store, and a home for SkyPilot."""

    cluster: Cluster
    store: Store
    folder: Path
    env: dict[str, str]

    def call(self, *arguments: str, timeout: float = 2400) -> subprocess.CompletedProcess[str]:
        program = str(Path(sys.executable).with_name("trainfleet"))
        environment = os.environ | {"NO_COLOR": "1", "COLUMNS": "160"} | self.store.environment | self.env
        return subprocess.run([program, *arguments], cwd=self.folder, env=environment, capture_output=True, text=True, timeout=timeout, check=False)

    def launch(self, run: str, *stacks: str, more: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        named = [text for stack in stacks for text in ("--stack", f"{stack}.json")]
        options = ["--from-secret", "s3-keys", "--storage", f"{self.store.url}/runs", "--run", run, "--json"]
        return self.call("launch", "lm-tiny", "--on", "sky", *named, *options, f"workload.data.source={self.store.url}/text", *SMALL, *more)

    def pods(self, namespace: str) -> list[str]:
        return self.cluster.kubectl("-n", namespace, "get", "pods", "-o", "name").split()


def rules(these: tuple[Rule, ...]) -> list[dict[str, Any]]:
    return [{"apiGroups": [group], "resources": resources, "verbs": verbs} for group, resources, verbs in these]


def granted(namespace: str) -> list[dict[str, Any]]:
    """A platform's accounts and rights in its namespace."""

    def made(kind: str, name: str, api: str = "v1", **more: Any) -> dict[str, Any]:
        return {"apiVersion": api, "kind": kind, "metadata": {"name": name, "namespace": namespace, **more.pop("metadata", {})}, **more}

    def bound(role: str, account: str, kind: str = "Role") -> dict[str, Any]:
        subject = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role}
        return {"subjects": [subject], "roleRef": reference}

    token = {"annotations": {"kubernetes.io/service-account.name": "launcher"}}
    everywhere = f"{namespace}-launcher"
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}},
        made("ServiceAccount", "launcher"),
        made("ServiceAccount", "trainer", automountServiceAccountToken=False),
        made("Secret", "launcher-token", type="kubernetes.io/service-account-token", metadata=token),
        made("Secret", "s3-keys", stringData={"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}),
        made("Role", "launcher", RBAC, rules=rules(LAUNCHER_RULES)),
        made("RoleBinding", "launcher", RBAC, **bound("launcher", "launcher")),
        made("Role", "trainer", RBAC, rules=rules(POD_RULES)),
        made("RoleBinding", "trainer", RBAC, **bound("trainer", "trainer")),
        {"apiVersion": RBAC, "kind": "ClusterRole", "metadata": {"name": everywhere}, "rules": rules(CLUSTER_RULES)},
        {"apiVersion": RBAC, "kind": "ClusterRoleBinding", "metadata": {"name": everywhere}, **bound(everywhere, "launcher", "ClusterRole")},
    ]


def contract(cluster: Cluster, namespace: str, store: Store) -> dict[str, Any]:
    """What a stack on this namespace would hand to launchers."""
    access = json.dumps(yaml.safe_load(Path(cluster.state.kubeconfig).read_text()))
    said = {"kubeconfig": access, "service_account": "trainer", "launcher_account": "launcher", "launcher_token_secret": "launcher-token"}
    return bare_platform(namespace, namespace, LOCAL, store.url).model_copy(update=said).model_dump()


@pytest.fixture(scope="module")
def place(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    if missing := [tool for tool in ("kubectl", "socat", "nc", "rsync", "ssh") if shutil.which(tool) is None]:
        pytest.skip(f"SkyPilot needs {', '.join(missing)}")
    folder = tmp_path_factory.mktemp("sky")
    (folder / "store").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    home = {
        "HOME": str(folder),
        "KUBECONFIG": str(folder / "access"),
        "SKYPILOT_API_SERVER_LOCAL_PORT": port,
        "SKYPILOT_DISABLE_USAGE_COLLECTION": "1",
    }
    with gateway(str(cluster.state.outside), folder / "store") as store:
        _fill(store.folder)
        here = Place(cluster, store, folder, home)
        try:
            for namespace in (NEAR, FAR):
                cluster.apply(*granted(namespace))
                (folder / f"{namespace}.json").write_text(json.dumps(contract(cluster, namespace, store)))
            for namespace in (NEAR, FAR):
                token = ("-n", namespace, "get", "secret", "launcher-token", "-o", "jsonpath={.data.token}")
                until(functools.partial(cluster.kubectl, *token), "the cluster writes the launcher's token", 60)
            done = here.call("sky", "setup", "--stack", f"{NEAR}.json", "--stack", f"{FAR}.json", "--yes")
            assert done.returncode == 0, done.stderr
            yield here
        finally:
            program = str(Path(sys.executable).with_name("sky"))
            subprocess.run([program, "api", "stop"], env=os.environ | home, capture_output=True, check=False, timeout=300)
            for namespace in (NEAR, FAR):
                cluster.kubectl("delete", "namespace", namespace, "--wait=false", check=False)


def _fill(bucket: Path) -> None:
    """Text that is the same for this machine and the pods."""
    text = bucket / "runs" / "text"
    text.mkdir(parents=True)
    for number, source in enumerate(sorted(Path(json.__file__).parent.glob("*.py"))):
        (text / f"{number}.py").write_bytes(source.read_bytes())


def losses(document: dict[str, Any]) -> list[Any]:
    return [round(loss, 6) for _, loss in document["losses"]]


def test_the_contexts_log_in_with_the_launcher_s_token_alone_and_are_ready(place: Place) -> None:
    access = yaml.safe_load((place.folder / "access").read_text())
    assert all(list(user["user"]) == ["token"] for user in access["users"])
    done = place.call("sky", "check", "--stack", f"{NEAR}.json", "--stack", f"{FAR}.json", "--quick", "--json")
    assert done.returncode == 0, done.stderr
    assert [each["ready"] for each in json.loads(done.stdout)] == [True, True]


def test_a_recipe_on_two_pods_has_the_losses_that_it_has_here(place: Place) -> None:
    here = place.call(
        "launch", "lm-tiny", "--on", "torchrun", f"workload.data.source={place.store.url}/text", "scaling.workers=2", "--run", "h", "--json"
    )
    assert here.returncode == 0, here.stderr
    there = place.launch("two", NEAR, more=("--nodes", "2", "scaling.workers=2"))
    assert there.returncode == 0, there.stderr
    assert losses(json.loads(there.stdout)) == losses(json.loads(here.stdout))
    until(lambda: not place.pods(NEAR), "its pods are gone", 300)


def test_without_room_in_the_first_place_it_runs_in_the_second(place: Place) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none", "namespace": NEAR}, "spec": {"hard": {"pods": "0"}}}
    place.cluster.apply(quota)
    done = place.launch("moved", NEAR, FAR)
    place.cluster.kubectl("-n", NEAR, "delete", "resourcequota", "none")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] == "finished"


def test_a_token_that_is_no_longer_valid_is_said_before_anything_starts(place: Place) -> None:
    document = yaml.safe_load((place.folder / "access").read_text())
    for user in document["users"]:
        user["user"]["token"] = "header.payload.signature"
    (place.folder / "stale").write_text(yaml.safe_dump(document))
    stale = Place(place.cluster, place.store, place.folder, {**place.env, "KUBECONFIG": str(place.folder / "stale")})
    done = stale.call("sky", "check", "--stack", f"{NEAR}.json", "--quick")
    assert done.returncode == 1
    assert "its token is not valid" in done.stderr
