"""Patches, maintenance windows, deletion, the encryption of storage classes, and EKS pools that only their
machine shows to be GPU pools; broken and compliant.
"""

from __future__ import annotations

import json
from typing import Any

from tests.policies.cases.table import REMOVED, Case
from trainfleet.policies.resource_types import (
    AKS,
    AZURE_LUSTRE,
    AZURE_STORAGE,
    EKS_ADDON,
    EKS_NODES,
    FSX,
    GCP_LUSTRE,
    RELEASE,
    STORAGE_CLASS,
)

EBS = "aws-ebs-csi-driver"
PLAIN = {"name": "fast", "parameters": {"type": "gp3"}}
ENCRYPTED = {"name": "fast", "parameters": {"type": "gp3", "encrypted": "true"}}


def addon(values: dict[str, Any]) -> dict[str, Any]:
    return {"addonName": EBS, "configurationValues": json.dumps(values)}


BARE_GPU_POOL = {
    "amiType": "AL2023_x86_64_STANDARD",
    "instanceTypes": ["p5.48xlarge"],
    "labels": {},
    "taints": [],
    "scalingConfig.minSize": 4,
}
CASES = [
    *(
        Case(rule, EKS_NODES, {**BARE_GPU_POOL, "instanceTypes": [machine]}, says)
        for machine in ("p5.48xlarge", "p6-b200.48xlarge", "g6e.12xlarge", "gr6.4xlarge")
        for rule, says in (
            ("gpu-taint-and-label", "no taint nvidia.com/gpu"),
            ("gpu-driver-by-the-cloud", "has no GPU driver"),
            ("gpu-pools-from-zero", "scalingConfig.minSize is 4"),
        )
    ),
    *(
        Case("nodes-get-patches", kind, {"amiType": image}, says)
        for kind in (EKS_NODES, f"{EKS_NODES}#gpu")
        for image, says in (("CUSTOM", "no patched versions"), ("AL2_x86_64_GPU", "ended its releases"))
    ),
    Case(
        "maintenance-window",
        FSX,
        {"weeklyMaintenanceStartTime": REMOVED},
        "weeklyMaintenanceStartTime is missing: FSx chooses one",
    ),
    Case(
        "maintenance-window", GCP_LUSTRE, {"maintenancePolicy": REMOVED}, "maintenance can start at any time"
    ),
    Case("maintenance-window", AZURE_LUSTRE, {"maintenanceWindow": REMOVED}, "maintenanceWindow.dayOfWeek"),
    *(
        Case("protected-from-deletion", kind, {}, "`protect` is not set", protect=False)
        for kind in (AKS, FSX, GCP_LUSTRE, AZURE_LUSTRE)
    ),
    Case("data-survives-destroy", AZURE_STORAGE, {}, "`protect` is not set", protect=False),
    Case(
        "encrypted-volumes",
        STORAGE_CLASS,
        {"provisioner": "fsx.csi.aws.com", "parameters": {"subnetId": "s"}},
        "parameters.kmsKeyId is missing",
    ),
    Case(
        "encrypted-volumes",
        STORAGE_CLASS,
        {"provisioner": "filestore.csi.storage.gke.io", "parameters": {}},
        "parameters.instance-encryption-kms-key is missing",
    ),
    Case(
        "encrypted-volumes",
        RELEASE,
        {"values": {"storage": [{"provisioner": "ebs.csi.aws.com", "parameters": {"encrypted": "false"}}]}},
        "values.storage[0].parameters.encrypted is not `true`",
    ),
    Case(
        "encrypted-volumes",
        RELEASE,
        {"chart": EBS, "values": {"storageClasses": [ENCRYPTED, PLAIN]}},
        "values.storageClasses[1].parameters.encrypted is not `true`",
    ),
    Case(
        "encrypted-volumes",
        RELEASE,
        {"chart": f"oci://registry.example.com/{EBS}", "values": {"defaultStorageClass": {"enabled": True}}},
        "values.defaultStorageClass.enabled is true",
    ),
    Case(
        "encrypted-volumes",
        EKS_ADDON,
        addon({"defaultStorageClass": {"enabled": True}}),
        "configurationValues.defaultStorageClass.enabled is true",
    ),
    Case(
        "encrypted-volumes",
        EKS_ADDON,
        addon({"storageClasses": [PLAIN]}),
        "configurationValues.storageClasses[0].parameters.encrypted",
    ),
]
COMPLIANT: list[tuple[str, str, dict[str, Any]]] = [
    *(
        (rule, EKS_NODES, {"amiType": "AL2023_x86_64_STANDARD", "instanceTypes": ["m7i.large", "c8gn.large"]})
        for rule in ("gpu-taint-and-label", "gpu-driver-by-the-cloud", "gpu-pools-from-zero")
    ),
    *(
        ("nodes-get-patches", EKS_NODES, {"amiType": image})
        for image in ("AL2023_x86_64_NVIDIA", "BOTTLEROCKET_x86_64", None)
    ),
    ("encrypted-volumes", RELEASE, {"chart": EBS, "values": {"storageClasses": [ENCRYPTED]}}),
    ("encrypted-volumes", RELEASE, {"chart": "other", "values": {"defaultStorageClass": {"enabled": True}}}),
    ("encrypted-volumes", EKS_ADDON, addon({"storageClasses": [ENCRYPTED]})),
    ("encrypted-volumes", EKS_ADDON, {"addonName": "coredns", "configurationValues": "{}"}),
    ("encrypted-volumes", STORAGE_CLASS, {"provisioner": "efs.csi.aws.com"}),
]
