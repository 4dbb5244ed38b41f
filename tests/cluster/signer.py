"""The signer of Ray's certificates on a real cluster: the objects that the layer plans, for a namespace of a test."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.cluster.conftest import Cluster, until
from tests.infra.kubernetes.planned import plan
from trainfleet.infra.kubernetes.names import RAY_CA, RAY_SIGNER, SIGNER_NAMESPACE
from trainfleet.infra.outputs.contract import RayCertificates
from trainfleet.infra.platform import TRAINING_NAMESPACE
from trainfleet.infra.program import ray_certificates
from trainfleet.local_cluster.images import LOCAL

PARTS = ("lab-ray-signer-", "lab-ray-tls", f"lab-namespace-{SIGNER_NAMESPACE}")


def signer_objects(namespace: str) -> list[dict[str, Any]]:
    """What the layer installs for certificates, with `namespace` as the one of training pods."""
    planned = plan(
        {
            "ray": {"image": LOCAL},
            "queue": {"enabled": False},
            "layer": {"priority_classes": False},
        }
    )
    found = [inputs for name, inputs in planned.inputs.items() if name.startswith(PARTS)]
    text = json.dumps([_whole(each) for each in found])
    for key in ("namespace", "value"):
        text = text.replace(f'"{key}": "{TRAINING_NAMESPACE}"', f'"{key}": "{namespace}"')
    return sorted(json.loads(text), key=lambda each: each["kind"] != "Namespace")


def _whole(node: Any) -> Any:
    """A document with whole numbers: the engine's have a fraction."""
    if isinstance(node, dict):
        return {key: _whole(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_whole(each) for each in node]
    return int(node) if isinstance(node, float) and node.is_integer() else node


@contextlib.contextmanager
def signer(cluster: Cluster, namespace: str) -> Iterator[RayCertificates]:
    """The signer, until the end of the block; what a contract says of it."""
    objects = signer_objects(namespace)
    try:
        cluster.apply(*objects)
        until(lambda: published(cluster, namespace), "the CA's certificate", 180)
        yield RayCertificates.model_validate(ray_certificates())
    finally:
        document = {"apiVersion": "v1", "kind": "List", "items": objects}
        cluster.kubectl("delete", "--ignore-not-found", "-f", "-", given=json.dumps(document))


def published(cluster: Cluster, namespace: str) -> str:
    """The CA's certificate in the namespace of training pods."""
    what = ("get", "configmap", RAY_CA, "--ignore-not-found", "-o", r"jsonpath={.data.ca\.crt}")
    return cluster.kubectl("-n", namespace, *what)


def write_ca(cluster: Cluster, folder: Path) -> tuple[Path, Path]:
    """The CA's certificate and key as files, which only an administrator can get."""
    what = ("get", "secret", RAY_CA, "-o", "json")
    data = json.loads(cluster.kubectl("-n", SIGNER_NAMESPACE, *what))["data"]
    paths = folder / "ray-ca.crt", folder / "ray-ca.key"
    for path, name in zip(paths, ("tls.crt", "tls.key"), strict=True):
        path.write_bytes(base64.b64decode(data[name]))
    return paths


def log(cluster: Cluster) -> str:
    """What the signer wrote."""
    return cluster.kubectl("-n", SIGNER_NAMESPACE, "logs", f"deployment/{RAY_SIGNER}", "--tail=-1")
