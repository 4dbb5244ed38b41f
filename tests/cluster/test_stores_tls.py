"""A run in the cluster on each object store, with TLS and least privilege: data, checkpoints, resume, report.

Each run starts on this machine and finishes in the cluster. So the one launch in the cluster reads the data,
resumes from a checkpoint of another machine, saves, and writes the report.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.cloud_stores import KINDS, OTHER, CloudStore, cloud_store
from tests.cluster.conftest import Cluster, until
from tests.cluster.launches import PROGRAM, RESTRICTED
from trainfleet.local_cluster.images import LOCAL
from trainfleet.local_cluster.stores.servers import BUCKET

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1500)]
NAMESPACE = "stores-tls"
HALF, WHOLE = 20, 40
SECRET_NAME = "store-keys"


@dataclass(frozen=True)
class There:
    """The cluster, one store, and how to launch on both."""

    cluster: Cluster
    store: CloudStore
    folder: Path

    def call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        mine = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("AWS_", "AZURE_", "SSL_CERT"))
        }
        environment = (
            mine
            | {"NO_COLOR": "1", "COLUMNS": "160", "KUBECONFIG": str(self.cluster.state.kubeconfig)}
            | self.store.environment
        )
        return subprocess.run(
            [PROGRAM, *arguments],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=1200,
            check=False,
        )

    def launch(self, *more: str, bucket: str = BUCKET) -> subprocess.CompletedProcess[str]:
        url = self.store.url.replace(BUCKET, bucket)
        settings = [
            "--run",
            f"kept-{self.store.kind}",
            "--storage",
            f"{url}/kept",
            f"workload.data.source={self.store.url}/text",
        ]
        return self.call(
            "launch", "lm-tiny", *settings, "scaling.cpus_per_worker=0.25", "checkpoint.every=10", *more
        )

    def in_cluster(self) -> list[str]:
        keys = ["--from-secret", SECRET_NAME] if self.store.keys else []
        return [
            "--on",
            "kuberay",
            "--context",
            self.cluster.state.context,
            "--namespace",
            NAMESPACE,
            "--image",
            LOCAL,
            *keys,
        ]


@pytest.fixture(scope="module")
def namespace(cluster: Cluster) -> Iterator[str]:
    """A namespace with the Pod Security level `restricted`."""
    cluster.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": RESTRICTED}}
    )
    yield NAMESPACE
    cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


@pytest.fixture(scope="module", params=KINDS)
def there(
    cluster: Cluster, namespace: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[There]:
    """A store of each kind with a text, and a Secret with its keys in a namespace of the cluster."""
    folder = tmp_path_factory.mktemp(f"store-{request.param}")
    text = folder / "text"
    text.mkdir()
    for source in sorted(Path(os.__file__).parent.glob("[a-d]*.py")):
        (text / source.name).write_bytes(source.read_bytes())
    (folder / "server").mkdir()
    with cloud_store(request.param, str(cluster.state.host_address), folder / "server") as store:
        store.fill(text, "text")
        if store.keys:
            cluster.apply(
                {
                    "apiVersion": "v1",
                    "kind": "Secret",
                    "metadata": {"name": SECRET_NAME, "namespace": namespace},
                    "stringData": store.keys,
                }
            )
        yield There(cluster, store, folder)
        cluster.kubectl("-n", namespace, "delete", "secret", SECRET_NAME, "--ignore-not-found")
        kinds = "rayjob,raycluster,job,pod"
        until(
            lambda: not cluster.kubectl("-n", namespace, "get", kinds, "-o", "name").split(),
            "nothing of the run is left",
            180,
        )


@pytest.mark.deep
def test_a_run_resumes_in_the_cluster_from_a_checkpoint_of_another_machine(there: There) -> None:
    begun = there.launch("--on", "torchrun", f"steps={HALF}", "--json")
    assert begun.returncode == 0, begun.stderr
    done = there.launch(*there.in_cluster(), f"steps={WHOLE}", "--allow-change", "steps", "--json")
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    assert (document["resumed_from"], document["step"]) == (HALF, WHOLE)
    assert 0 < document["metrics"]["test/loss"] < 4
    kept = there.store.names(BUCKET)
    assert any(
        name.startswith(f"kept/kept-{there.store.kind}/checkpoints/") and str(WHOLE) in name for name in kept
    ), kept
    assert f"kept/kept-{there.store.kind}/report.html" in kept
    assert Path(document["report"]).is_file()
    for value in there.store.keys.values():
        if len(value) > 8:
            assert value not in Path(document["report"]).read_text() + done.stderr + done.stdout


def test_a_bucket_without_permission_is_refused_and_stays_empty(there: There) -> None:
    if not there.store.keys:
        pytest.skip("the GCS emulator does not check credentials")
    done = there.launch("--on", "torchrun", f"steps={HALF}", "--run", "outside", bucket=OTHER)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert "no permission" in done.stderr
    assert not [
        value
        for value in there.store.keys.values()
        if len(value) > 8 and value[-20:] in done.stderr + done.stdout
    ]
    assert "sig=" not in done.stderr
    assert there.store.names(OTHER) == []
