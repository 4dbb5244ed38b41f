"""Prometheus, Alertmanager, the Prometheus operator and kube-state-metrics, built once from
`monitoring/go.mod`, as images on a cluster's nodes.

The versions are those of the chart that a platform installs (kube-prometheus-stack), except one that the
checksum database of Go lacks; see go.mod.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

from tests.cluster.conftest import Cluster
from trainfleet.local_cluster import images, node, oci
from trainfleet.toolchain import build_lock, cache_folder, find_go, run_go

PINS = Path(__file__).with_name("monitoring")
OPERATOR_MODULE = "github.com/prometheus-operator/prometheus-operator"
PACKAGES = {
    "operator": f"{OPERATOR_MODULE}/cmd/operator",
    "prometheus-config-reloader": f"{OPERATOR_MODULE}/cmd/prometheus-config-reloader",
    "alertmanager": "github.com/prometheus/alertmanager/cmd/alertmanager",
    "prometheus": "github.com/prometheus/prometheus/cmd/prometheus",
    "kube-state-metrics": "k8s.io/kube-state-metrics/v2",
}
TAGS = "remove_all_sd,enable_kubernetes_sd"
"""Prometheus discovers its targets in Kubernetes alone, as a platform configures it."""
DEFINITIONS = "definitions"
"""The folder with the operator's definitions, next to its program, from the same module version."""


def image(program: str) -> str:
    """The reference of a program's image."""
    return f"localhost/{program}:local"


def _nothing(_: str) -> None:
    """Report no progress."""


def built() -> Path:
    """The folder with the programs and the definitions. Built if it does not exist: 5 CPU minutes."""
    digest = hashlib.sha256(TAGS.encode())
    for name in ("go.mod", "go.sum"):
        digest.update((PINS / name).read_bytes())
    folder = cache_folder() / f"monitoring-{digest.hexdigest()[:16]}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with build_lock(folder.with_suffix(".lock"), _nothing, "monitoring"):
        if not folder.is_dir():
            work = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
            try:
                _build(work)
                os.replace(work / "built", folder)
            finally:
                shutil.rmtree(work, ignore_errors=True)
    return folder


def _build(work: Path) -> None:
    go = find_go(_nothing)
    source, into = work / "source", work / "built"
    shutil.copytree(PINS, source)
    into.mkdir()
    command = [str(go), "build", "-trimpath", "-tags", TAGS, "-ldflags", "-s -w", "-o", f"{into}/"]
    run_go([*command, *PACKAGES.values()], source, _nothing, "monitoring")
    asked = [str(go), "list", "-m", "-json", OPERATOR_MODULE]
    environment = os.environ | {"GOFLAGS": "-mod=readonly", "GOWORK": "off"}
    listed = subprocess.run(asked, cwd=source, env=environment, capture_output=True, check=True)
    shutil.copytree(
        Path(json.loads(listed.stdout)["Dir"]) / "example" / "prometheus-operator-crd",
        into / DEFINITIONS,
        copy_function=shutil.copyfile,
    )
    (into / DEFINITIONS).chmod(0o755)


def load_images(cluster: Cluster, folder: Path) -> None:
    """Import an image of each program into the first node, which runs them all."""
    first = cluster.state.control_plane
    pid = node.pid_of(first)
    assert pid is not None
    archive = cluster.state.file("monitoring.tar")
    try:
        with tarfile.open(archive, "w") as tar:
            for name in PACKAGES:
                tar.add(folder / name, f"bin/{name}")
        layer = oci.layer(archive)
        for name in PACKAGES:
            settings = oci.Settings({"PATH": "/bin"}, entrypoint=[f"/bin/{name}"])
            images.load([(first, pid)], image(name), [layer], settings)
            layer = oci.Layer(layer.digest, layer.size)  # the node has it now
    finally:
        archive.unlink(missing_ok=True)
