"""Charts in two versions, a program that installs one, and a helm that is built from its pins."""

from __future__ import annotations

import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from trainfleet.toolchain import cache_folder, find_go, run_go

HELM = "v3.21.4"
PINS = Path(__file__).with_name("helm")
PROGRAM = """import pulumi
import pulumi_kubernetes as k8s

cluster = k8s.Provider("cluster", kubeconfig="{{}}", cluster_identifier="c")
k8s.helm.v3.Release(
    "queue",
    name="queue",
    namespace="jobs",
    {source}
    values={{"replicas": {replicas}, "password": pulumi.Output.secret("planted-81c3")}},
    opts=pulumi.ResourceOptions(provider=cluster),
)
"""

CHART = """apiVersion: v2
name: queue
version: {version}
"""
DEFINITION = """apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {{name: {plural}.example.com}}
spec:
  group: example.com
  scope: Namespaced
  names: {{plural: {plural}, kind: {kind}}}
  versions:
{versions}
"""
VERSION = """  - name: {name}
    served: true
    storage: {storage}
    schema: {{openAPIV3Schema: {{type: object}}}}
"""
STATEFUL_SET = """apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: {{{{ .Release.Name }}}}-db
  labels: {{helm.sh/chart: "{{{{ .Chart.Name }}}}-{{{{ .Chart.Version }}}}"}}
spec:
  serviceName: db
  replicas: {{{{ .Values.replicas }}}}
  selector: {{matchLabels: {{app: {app}}}}}
  template:
    metadata: {{labels: {{app: {app}}}}}
    spec:
      containers:
      - {{name: db, image: "example.com/db:{image}", env: [{{name: PASSWORD, value: "{{{{ .Values.password }}}}"}}]}}
"""
RANDOM = """apiVersion: v1
kind: Secret
metadata:
  name: token
  labels: {helm.sh/chart: "{{ .Chart.Name }}-{{ .Chart.Version }}"}
data: {token: "{{ randAlphaNum 20 | b64enc }}"}
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: settings
  annotations: {checksum: "{{ genSignedCert "a" nil nil 1 (genCA "b" 1) | toString | sha256sum }}"}
data: {replicas: "{{ .Values.replicas }}"}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: "run-{{ randAlpha 6 | lower }}"}
"""
ROLES = """apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: queue-reader}
rules: [{apiGroups: [""], resources: [secrets], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: queue-reader}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: queue-reader}
subjects: [{kind: ServiceAccount, name: queue, namespace: "{{ .Release.Namespace }}"}]
"""


def definition(plural: str, *versions: str) -> str:
    """A CustomResourceDefinition with these versions, the last one stored."""
    parts = [VERSION.format(name=name, storage=str(name == versions[-1]).lower()) for name in versions]
    return DEFINITION.format(plural=plural, kind=plural[:-1].title(), versions="".join(parts).rstrip())


def first() -> dict[str, str]:
    """The files of version 1.0.0: two definitions in templates, one in crds/, a StatefulSet, random values."""
    return {
        "Chart.yaml": CHART.format(version="1.0.0"),
        "values.yaml": "replicas: 1\n",
        "crds/one.yaml": definition("flavors", "v1"),
        "templates/definitions.yaml": definition("queues", "v1")
        + "---\n"
        + definition("loads", "v1beta1", "v1"),
        "templates/db.yaml": STATEFUL_SET.format(app="db", image="1.0"),
        "templates/random.yaml": RANDOM,
    }


def second() -> dict[str, str]:
    """Version 2.0.0: a definition and a version of another are gone, another selector and image, new roles."""
    return first() | {
        "Chart.yaml": CHART.format(version="2.0.0"),
        "crds/one.yaml": definition("flavors", "v1", "v2"),
        "templates/definitions.yaml": definition("loads", "v1"),
        "templates/db.yaml": STATEFUL_SET.format(app="database", image="2.0"),
        "templates/roles.yaml": ROLES,
    }


def write_chart(folder: Path, files: dict[str, str]) -> None:
    """Replace a chart's folder."""
    for file in sorted(folder.rglob("*"), reverse=True) if folder.is_dir() else ():
        file.rmdir() if file.is_dir() else file.unlink()
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def package(folder: Path, files: dict[str, str], version: str) -> None:
    """Write the archive of a chart and its entry of the repository's index."""
    work = folder / f"work-{version}" / "queue"
    write_chart(work, files)
    with tarfile.open(folder / f"queue-{version}.tgz", "w:gz") as archive:
        archive.add(work, "queue")
    entries = "".join(
        f"  - {{apiVersion: v2, name: queue, version: {each}, urls: [queue-{each}.tgz]}}\n"
        for each in sorted(file.stem.removeprefix("queue-") for file in folder.glob("*.tgz"))
    )
    (folder / "index.yaml").write_text(f"apiVersion: v1\nentries:\n  queue:\n{entries}")


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Write nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder on loopback; yields its URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def built_helm() -> Path:
    """The folder with helm, built once into the user's cache (up to three minutes)."""
    target = cache_folder() / f"helm-{HELM}" / "helm"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        command = [str(find_go(lambda _: None)), "build", "-trimpath", "-ldflags", "-s -w"]
        work = target.with_name("helm.new")
        run_go([*command, "-o", str(work), "helm.sh/helm/v3/cmd/helm"], PINS, lambda _: None, "helm")
        work.rename(target)
    return target.parent


def helm_version(folder: Path) -> str:
    """What helm says of itself."""
    command = [str(folder / "helm"), "version", "--template", "{{.Version}}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
