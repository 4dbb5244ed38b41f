"""Keys that no SDK class knows (custom resources of GKE, the label of a mail channel) are refused by name all
the same.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest

from trainfleet.rehearsal.simulation.provider import CLOUD_MODELS
from trainfleet.rehearsal.simulation.schema import packages

# Every class of the SDK is read, the old ones too, and those warn.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

PARAMETERS = {
    "apiVersion": "networking.gke.io/v1",
    "kind": "GKENetworkParamSet",
    "metadata": {"name": "rdma-0"},
    "spec": {"vpc": "net", "vpcSubnet": "sub", "deviceMode": "RDMA"},
}
NETWORK = {
    "apiVersion": "networking.gke.io/v1",
    "kind": "Network",
    "metadata": {"name": "rdma-0"},
    "spec": {
        "type": "Device",
        "parametersRef": {"group": "networking.gke.io", "kind": "GKENetworkParamSet", "name": "rdma-0"},
    },
}
MAIL = {"displayName": "ml", "type": "email", "labels": {"email_address": "ml@example.com"}}
VOLUME = {
    "apiVersion": "v1",
    "kind": "PersistentVolume",
    "metadata": {"name": "shared"},
    "spec": {
        "accessModes": ["ReadWriteMany"],
        "capacity": {"storage": "9000Gi"},
        "csi": {
            "driver": "lustre.csi.storage.gke.io",
            "volumeHandle": "my-project/us-central1-a/shared",
            "volumeAttributes": {"ip": "10.0.0.3", "filesystem": "shared"},
        },
    },
}
DISKS = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {"name": "encrypted"},
    "provisioner": "pd.csi.storage.gke.io",
    "parameters": {
        "type": "pd-balanced",
        "disk-encryption-kms-key": "projects/p/locations/us-central1/keyRings/r/cryptoKeys/k",
    },
}
WRITTEN = {
    "kubernetes:core/v1:PersistentVolume": VOLUME,
    "kubernetes:storage.k8s.io/v1:StorageClass": DISKS,
    "kubernetes:networking.gke.io/v1:GKENetworkParamSet": PARAMETERS,
    "kubernetes:networking.gke.io/v1:Network": NETWORK,
    "gcp:monitoring/notificationChannel:NotificationChannel": MAIL,
}


def problems_of(token: str, inputs: dict[str, Any]) -> list[str]:
    package = token.split(":", maxsplit=1)[0]
    return [str(mistake) for mistake in CLOUD_MODELS[package].check(packages()[package], token, inputs)]


@pytest.mark.parametrize("token", WRITTEN)
def test_what_the_platform_writes_is_accepted(token: str) -> None:
    assert problems_of(token, WRITTEN[token]) == []


@pytest.mark.parametrize(
    ("token", "path"),
    [
        *(
            ("kubernetes:networking.gke.io/v1:GKENetworkParamSet", ("spec", key))
            for key in PARAMETERS["spec"]
        ),
        ("kubernetes:networking.gke.io/v1:GKENetworkParamSet", ("metadata", "name")),
        ("kubernetes:networking.gke.io/v1:Network", ("spec", "type")),
        ("kubernetes:networking.gke.io/v1:Network", ("spec", "parametersRef")),
        *(
            ("kubernetes:networking.gke.io/v1:Network", ("spec", "parametersRef", key))
            for key in ("group", "kind", "name")
        ),
        ("kubernetes:core/v1:PersistentVolume", ("spec", "csi", "volumeAttributes", "ip")),
        ("kubernetes:core/v1:PersistentVolume", ("spec", "csi", "volumeAttributes", "filesystem")),
        ("kubernetes:storage.k8s.io/v1:StorageClass", ("parameters", "type")),
        ("kubernetes:storage.k8s.io/v1:StorageClass", ("parameters", "disk-encryption-kms-key")),
        ("gcp:monitoring/notificationChannel:NotificationChannel", ("labels", "email_address")),
    ],
)
def test_a_misspelt_key_is_named(token: str, path: tuple[str, ...]) -> None:
    inputs: Any = copy.deepcopy(WRITTEN[token])
    place = inputs
    for step in path[:-1]:
        place = place[step]
    place[f"{path[-1]}q"] = place.pop(path[-1])
    assert any(f"{path[-1]}q" in mistake for mistake in problems_of(token, inputs))
