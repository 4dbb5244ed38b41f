"""GKE's limit on critical pods, on a real API server with the same admission configuration: it admits the agents
of a fabric only where a quota allows their priority class.

GKE answers `insufficient quota to match these scopes` (NVIDIA/gpu-operator#660). Its own configuration is not
public; this one is that of the Kubernetes documentation, "Limit Priority Class consumption by default".
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import until
from tests.infra.kubernetes.test_fabrics import POOLS, planned
from trainfleet.infra.kubernetes.names import GPU_NAMESPACE
from trainfleet.local_cluster import builds, pins
from trainfleet.local_cluster.stores.servers import free_port

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

ADMISSION = {
    "apiVersion": "apiserver.config.k8s.io/v1",
    "kind": "AdmissionConfiguration",
    "plugins": [
        {
            "name": "ResourceQuota",
            "configuration": {
                "apiVersion": "apiserver.config.k8s.io/v1",
                "kind": "ResourceQuotaConfiguration",
                "limitedResources": [
                    {
                        "resource": "pods",
                        "matchScopes": [
                            {
                                "scopeName": "PriorityClass",
                                "operator": "In",
                                "values": ["system-node-critical", "system-cluster-critical"],
                            }
                        ],
                    }
                ],
            },
        }
    ],
}


@dataclass(frozen=True)
class ApiServer:
    """An API server without nodes."""

    url: str
    folder: Path

    def kubectl(self, *arguments: str, document: Any = None) -> subprocess.CompletedProcess[str]:
        """Call it as an administrator."""
        access = ("--server", self.url, "--insecure-skip-tls-verify", "--token", "admin")
        return subprocess.run(
            [str(builds.executable(pins.KUBE)), "kubectl", *access, *arguments],
            input=json.dumps(document) if document else None,
            env={"HOME": str(self.folder)},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """An API server with GKE's limit, its etcd, and the controller that counts quotas."""
    folder = tmp_path_factory.mktemp("api")
    for name, document in {
        "admission.json": ADMISSION,
        "kubeconfig": kubeconfig(url := f"https://127.0.0.1:{(port := free_port())}"),
    }.items():
        (folder / name).write_text(json.dumps(document))
    (folder / "tokens").write_text('admin,admin,admin,"system:masters"\n')
    key = folder / "sa.key"
    subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
    clients, peers = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    kube = str(builds.executable(pins.KUBE))
    etcd = ["etcd", f"--data-dir={folder / 'etcd'}", f"--listen-client-urls={clients}", "--name=one"]
    etcd += [f"--advertise-client-urls={clients}", f"--listen-peer-urls={peers}"]
    etcd += [f"--initial-advertise-peer-urls={peers}", f"--initial-cluster=one={peers}"]
    server = [kube, "kube-apiserver", f"--etcd-servers={clients}", f"--secure-port={port}"]
    server += ["--bind-address=127.0.0.1", f"--cert-dir={folder / 'certificates'}"]
    server += [f"--token-auth-file={folder / 'tokens'}", "--service-cluster-ip-range=10.99.0.0/24"]
    server += [f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}"]
    server += [
        "--allow-privileged=true",
        "--service-account-issuer=https://localhost",
        "--disable-admission-plugins=ServiceAccount",
    ]
    server += ["--authorization-mode=RBAC", f"--admission-control-config-file={folder / 'admission.json'}"]
    manager = [kube, "kube-controller-manager", f"--kubeconfig={folder / 'kubeconfig'}"]
    manager += ["--controllers=resourcequota-controller", "--leader-elect=false", "--secure-port=0"]
    found = ApiServer(url, folder)
    processes: list[subprocess.Popen[bytes]] = []
    try:
        processes.append(start(etcd, folder))
        processes.append(start(server, folder))
        ready = ("get", "priorityclass", "system-node-critical", "--output", "name")
        until(lambda: found.kubectl(*ready).returncode == 0, "the API server")
        processes.append(start(manager, folder))
        yield found
    finally:
        for process in reversed(processes):  # the API server needs etcd until it has ended
            process.terminate()
            process.wait(60)


def kubeconfig(url: str) -> dict[str, Any]:
    cluster = {"server": url, "insecure-skip-tls-verify": True}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "one", "cluster": cluster}],
        "users": [{"name": "admin", "user": {"token": "admin"}}],
        "contexts": [{"name": "one", "context": {"cluster": "one", "user": "admin"}}],
        "current-context": "one",
    }


def start(command: list[str], folder: Path) -> subprocess.Popen[bytes]:
    with (folder / f"{Path(command[0]).name}-{len(list(folder.iterdir()))}.log").open("wb") as log:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder)


@pytest.mark.parametrize("fabric", [name for name, (cloud, *_) in POOLS.items() if cloud == "gcp"])
def test_the_agents_of_a_fabric_are_admitted_only_with_the_quota_of_the_platform(
    api: ApiServer, fabric: str
) -> None:
    layer, namespace = planned(fabric), f"{GPU_NAMESPACE}-{fabric.replace('_', '-')}"
    pods = [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"agent-{number}", "namespace": namespace},
            "spec": inputs["spec"]["template"]["spec"] | {"serviceAccountName": "default"},
        }
        for number, inputs in enumerate(layer.of("DaemonSet").values())
    ]
    assert pods
    assert api.kubectl("create", "namespace", namespace).returncode == 0
    create = ("create", "--dry-run=server", "--filename", "-")
    for pod in pods:
        refused = api.kubectl(*create, document=pod)
        assert refused.returncode != 0
        assert "insufficient quota to match these scopes" in refused.stderr
        assert "system-node-critical" in refused.stderr
    (quota,) = [each for each in layer.of("ResourceQuota").values() if "scopeSelector" in each["spec"]]
    metadata = {"name": quota["metadata"]["name"], "namespace": namespace}
    document = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": metadata, "spec": quota["spec"]}
    assert api.kubectl("create", "--filename", "-", document=document).returncode == 0
    for pod in pods:

        def admitted(pod: dict[str, Any] = pod) -> bool:
            return api.kubectl(*create, document=pod).returncode == 0

        until(admitted, "the quota is counted, and the pod admitted", 60)
