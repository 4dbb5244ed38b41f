"""GPU pools, cost, Kubernetes and reliability, broken."""

from __future__ import annotations

import json
from typing import Any

from tests.policies.cases.table import HYPERPOD, REMOVED, Case, pod_path
from trainfleet.policies.resource_types import (
    ACR,
    AKS,
    AKS_NODES,
    AWS_BUDGET,
    AWS_SECRET,
    AZURE_BUDGETS,
    AZURE_DIAGNOSTICS,
    BLOB_SERVICE,
    CLOUD_CONTROL,
    ECR,
    EKS,
    EKS_NODES,
    FILESTORE,
    GCP_BUDGET,
    GCP_IMAGES,
    GCP_LOGS,
    GCP_SECRET,
    GCS,
    GKE,
    GKE_NODES,
    LAUNCH_TEMPLATE,
    LOG_GROUP,
    NAMESPACE,
    RELEASE,
    ROLES,
    S3,
    S3_LIFECYCLE,
    S3_VERSIONING,
    VAULT,
    WORKLOADS,
    WORKSPACE,
)

EKS_GPU, GKE_GPU, AKS_GPU = f"{EKS_NODES}#gpu", f"{GKE_NODES}#gpu", f"{AKS_NODES}#gpu"
PRESENT, SKYPILOT = "nvidia.com/gpu.present", "skypilot.co/accelerator"
LABELS: dict[str, tuple[str, ...]] = {
    EKS_GPU: ("labels",),
    GKE_GPU: ("nodeConfig", "labels"),
    AKS_GPU: ("nodeLabels",),
}
GPU = [
    Case("gpu-taint-and-label", EKS_GPU, {"taints": []}, "NO_SCHEDULE"),
    Case("gpu-taint-and-label", EKS_GPU, {"taints.0.effect": "NO_EXECUTE"}, "NO_SCHEDULE"),
    Case("gpu-taint-and-label", GKE_GPU, {"nodeConfig.taints": REMOVED}, "nodeConfig.taints"),
    Case(
        "gpu-taint-and-label",
        AKS_GPU,
        {"nodeTaints": ["nvidia.com/gpu=present:PreferNoSchedule"]},
        "nodeTaints",
    ),
    *(
        Case("gpu-taint-and-label", kind, {(*path, PRESENT): REMOVED}, "gpu.present=true is missing")
        for kind, path in LABELS.items()
        if kind != AKS_GPU
    ),
    Case("gpu-taint-and-label", AKS_GPU, {("nodeLabels", PRESENT): "yes"}, "gpu.present=true is missing"),
    *(
        Case("gpu-taint-and-label", kind, {(*LABELS[kind], SKYPILOT): REMOVED}, f"{SKYPILOT} is missing")
        for kind in (EKS_GPU, AKS_GPU)
    ),
    *(
        Case("gpu-taint-and-label", kind, {(*LABELS[kind], SKYPILOT): "H100"}, "not lower case")
        for kind in (EKS_GPU, AKS_GPU)
    ),
    Case(
        "gpu-taint-and-label", GKE_GPU, {("nodeConfig", "labels", SKYPILOT): "h100"}, "on GKE SkyPilot reads"
    ),
    Case("gpu-driver-by-the-cloud", EKS_GPU, {"amiType": "AL2023_x86_64_STANDARD"}, "no GPU driver"),
    Case("gpu-driver-by-the-cloud", EKS_GPU, {"amiType": REMOVED}, "amiType is missing"),
    Case(
        "gpu-driver-by-the-cloud",
        GKE_GPU,
        {
            "nodeConfig.guestAccelerators": [
                {
                    "type": "nvidia-l4",
                    "count": 1,
                    "gpuDriverInstallationConfig": {"gpuDriverVersion": "INSTALLATION_DISABLED"},
                }
            ]
        },
        "gpuDriverVersion",
    ),
    Case(
        "gpu-driver-by-the-cloud",
        GKE_GPU,
        {"nodeConfig.guestAccelerators": REMOVED},
        "guestAccelerators is missing",
    ),
    Case("gpu-driver-by-the-cloud", AKS_GPU, {"gpuProfile.driver": "None"}, "gpuProfile.driver"),
    Case("pools-are-separate", GKE, {"nodePools": [{"name": "h100"}]}, "nodePools"),
    Case("pools-are-separate", GKE, {"removeDefaultNodePool": REMOVED}, "removeDefaultNodePool"),
    Case(
        "pools-are-separate",
        AKS,
        {"agentPoolProfiles.0.vmSize": "Standard_ND96isr_H100_v5"},
        "agentPoolProfiles[0].vmSize",
    ),
    Case(
        "close-nodes-in-one-zone",
        LAUNCH_TEMPLATE,
        {
            "networkInterfaces": [{"interfaceType": "efa"}],
            "placement": REMOVED,
            "capacityReservationSpecification": REMOVED,
            "instanceMarketOptions": REMOVED,
        },
        "placement.groupName",
    ),
    Case(
        "close-nodes-in-one-zone",
        GKE_GPU,
        {"placementPolicy": {"type": "COMPACT"}, "nodeLocations": ["z-a", "z-b"]},
        "2 zones",
    ),
    Case(
        "close-nodes-in-one-zone",
        GKE_GPU,
        {"placementPolicy": {"type": "COMPACT"}, "nodeLocations": REMOVED},
        "0 zones",
    ),
    Case(
        "close-nodes-in-one-zone",
        AKS_GPU,
        {"proximityPlacementGroupID": "g", "availabilityZones": ["1", "2"]},
        "2 zones",
    ),
    Case(
        "one-way-to-buy",
        LAUNCH_TEMPLATE,
        {
            "instanceMarketOptions": {"marketType": "spot"},
            "capacityReservationSpecification": {
                "capacityReservationTarget": {"capacityReservationId": "cr-1"}
            },
        },
        "spot and a reservation",
    ),
    Case(
        "one-way-to-buy",
        GKE_GPU,
        {
            "nodeConfig.spot": True,
            "nodeConfig.reservationAffinity": {
                "consumeReservationType": "SPECIFIC_RESERVATION",
                "key": "k",
                "values": ["r"],
            },
        },
        "nodeConfig.spot",
    ),
    Case("one-way-to-buy", GKE_NODES, {"nodeConfig.spot": True, "nodeConfig.flexStart": True}, "flexStart"),
    Case(
        "one-way-to-buy",
        AKS_GPU,
        {"scaleSetPriority": "Spot", "capacityReservationGroupID": "g"},
        "capacityReservationGroupID",
    ),
    Case(
        "one-way-to-buy",
        AKS_GPU,
        {"scaleSetPriority": "Spot", "scaleSetEvictionPolicy": "Deallocate"},
        "scaleSetEvictionPolicy",
    ),
    Case("gpu-fast-network", GKE_GPU, {"nodeConfig.gvnic": REMOVED}, "gvnic"),
    Case(
        "flex-nodes-end",
        GKE_GPU,
        {"nodeConfig.flexStart": True, "nodeConfig.maxRunDuration": REMOVED, "management.autoRepair": False},
        "maxRunDuration",
    ),
    Case(
        "flex-nodes-end",
        GKE_GPU,
        {
            "queuedProvisioning": {"enabled": True},
            "nodeConfig.maxRunDuration": "3600s",
            "management.autoRepair": True,
        },
        "autoRepair",
    ),
]
COST = [
    Case("pools-have-a-limit", EKS_NODES, {"scalingConfig.maxSize": 100000}, "100000, which exceeds 256"),
    Case("pools-have-a-limit", EKS_NODES, {"scalingConfig.maxSize": REMOVED}, "no maximum size"),
    Case("pools-have-a-limit", GKE_NODES, {"autoscaling": REMOVED}, "no maximum size"),
    Case("pools-have-a-limit", GKE_NODES, {"autoscaling": {"maxNodeCount": 5000}}, "5000"),
    Case("pools-have-a-limit", AKS_NODES, {"maxCount": REMOVED}, "maxCount is missing"),
    Case(
        "pools-have-a-limit",
        AKS_NODES,
        {"enableAutoScaling": False, "count": 900, "minCount": REMOVED, "maxCount": REMOVED},
        "900",
    ),
    Case(
        "gpu-pools-from-zero",
        EKS_GPU,
        {"scalingConfig": {"minSize": 2, "desiredSize": 2, "maxSize": 4}},
        "minSize is 2",
    ),
    Case(
        "gpu-pools-from-zero",
        GKE_GPU,
        {"autoscaling": {"minNodeCount": 1, "maxNodeCount": 2}},
        "minNodeCount is 1",
    ),
    Case(
        "gpu-pools-from-zero",
        GKE_GPU,
        {"autoscaling": {"totalMinNodeCount": 3, "totalMaxNodeCount": 4}},
        "totalMinNodeCount is 3",
    ),
    Case("gpu-pools-from-zero", AKS_GPU, {"minCount": 1, "count": 1}, "minCount is 1"),
    Case("budget-with-alerts", AWS_BUDGET, {"notifications": []}, "no recipient"),
    Case("budget-with-alerts", GCP_BUDGET, {"thresholdRules": []}, "thresholdRules"),
    Case(
        "budget-with-alerts",
        GCP_BUDGET,
        {"allUpdatesRule": {"disableDefaultIamRecipients": True}},
        "no recipient",
    ),
    *(Case("budget-with-alerts", kind, {"notifications": {}}, "no recipient") for kind in AZURE_BUDGETS),
    Case("logs-expire", LOG_GROUP, {"retentionInDays": REMOVED}, "retentionInDays"),
    Case("logs-expire", LOG_GROUP, {"retentionInDays": 0}, "retentionInDays"),
    Case("logs-expire", GCP_LOGS, {"retentionDays": 0}, "retentionDays"),
    Case(
        "old-data-goes",
        S3_LIFECYCLE,
        {"rules": [{"id": "a", "status": "Enabled"}]},
        "abortIncompleteMultipartUpload",
    ),
    Case("old-data-goes", GCS, {"lifecycleRules": REMOVED}, "lifecycleRules"),
    Case("old-data-goes", "azure-native:storage:ManagementPolicy", {"policy.rules": []}, "policy.rules"),
    Case("old-images-go", GCP_IMAGES, {"cleanupPolicies": []}, "cleanupPolicies"),
    Case("old-images-go", ACR, {"policies": REMOVED}, "retentionPolicy"),
    Case("no-extended-support", EKS, {"upgradePolicy": {"supportType": "EXTENDED"}}, "EXTENDED"),
    Case("no-extended-support", GKE, {"releaseChannel.channel": "EXTENDED"}, "EXTENDED"),
    Case("no-extended-support", AKS, {"supportPlan": "AKSLongTermSupport"}, "AKSLongTermSupport"),
]


def _pod(kind: str, key: str, value: Any) -> dict[Any, Any]:
    return {(*pod_path(kind), *(int(part) if part.isdigit() else part for part in key.split("."))): value}


KUBERNETES = [
    *(
        Case("no-privileged-pod", kind, _pod(kind, flag, True), f"{flag} is true")
        for kind in WORKLOADS
        for flag in ("hostNetwork", "hostPID", "hostIPC")
    ),
    *(
        Case(
            "no-privileged-pod",
            kind,
            _pod(kind, "containers.0.securityContext", {"privileged": True}),
            "privileged is true",
        )
        for kind in WORKLOADS
    ),
    Case(
        "no-privileged-pod",
        RELEASE,
        {"values": {"a": [{"securityContext": {"privileged": True}}]}, "chart": "x"},
        "privileged is true",
    ),
    Case("no-privileged-pod", RELEASE, {"values": {"hostNetwork": "true"}, "chart": "x"}, "hostNetwork"),
    Case(
        "no-privileged-pod",
        RELEASE,
        {"chart": "nvidia-device-plugin", "namespace": "training"},
        "nvidia-device-plugin runs privileged pods",
    ),
    *(
        Case(
            "no-host-path",
            kind,
            _pod(kind, "volumes", [{"name": "h", "hostPath": {"path": "/etc"}}]),
            "hostPath is /etc",
        )
        for kind in WORKLOADS
    ),
    *(Case("no-root-in-pods", kind, _pod(kind, "securityContext", {}), "runAsNonRoot") for kind in WORKLOADS),
    *(
        Case(
            "no-root-in-pods",
            kind,
            _pod(kind, "containers.0.securityContext", {}),
            "allowPrivilegeEscalation",
        )
        for kind in WORKLOADS
    ),
    Case("namespace-says-what-pods-may", NAMESPACE, {"metadata.labels": {}}, "enforce"),
    Case(
        "namespace-says-what-pods-may",
        NAMESPACE,
        {
            "metadata.labels": {
                f"pod-security.kubernetes.io/{mode}": "privileged" for mode in ("enforce", "audit", "warn")
            }
        },
        "baseline or stricter",
    ),
    *(
        Case("pinned-versions", kind, _pod(kind, "containers.0.image", image), "not a fixed version")
        for kind in WORKLOADS
        for image in ("a/b", "b:latest")
    ),
    Case("pinned-versions", RELEASE, {"version": REMOVED}, "version is missing"),
    Case("pinned-versions", RELEASE, {"version": ">=1.0"}, "not an exact version"),
    Case("pinned-versions", RELEASE, {"values": {"image": {"tag": "latest"}}}, "values.image.tag is latest"),
    *(
        Case("pods-ask-for-memory", kind, _pod(kind, "containers.0.resources", {}), "requests no memory")
        for kind in WORKLOADS
    ),
    *(
        Case(
            "no-secret-in-the-clear",
            kind,
            _pod(kind, "containers.0.env", [{"name": "HF_TOKEN", "value": "hf_x"}]),
            "HF_TOKEN in plain text",
        )
        for kind in WORKLOADS
    ),
    Case(
        "no-secret-in-the-clear",
        RELEASE,
        {"values": {"grafana": {"adminPassword": "hunter2"}}},
        "adminPassword",
    ),
    Case(
        "no-secret-in-the-clear",
        "kubernetes:core/v1:ConfigMap",
        {"data": {"WANDB_API_KEY": "abc"}},
        "WANDB_API_KEY",
    ),
    *(
        Case(
            "no-escalating-role",
            kind,
            {"rules": [{"apiGroups": [""], "resources": ["users"], "verbs": ["impersonate"]}]},
            "impersonate",
        )
        for kind in ROLES
    ),
    Case(
        "no-escalating-role",
        ROLES[0],
        {"rules": [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "list"]}]},
        "secrets of every namespace",
    ),
    Case("control-plane-logged", EKS, {"enabledClusterLogTypes": ["api"]}, "audit"),
    Case("control-plane-logged", EKS, {"enabledClusterLogTypes": REMOVED}, "audit"),
    Case("control-plane-logged", GKE, {"loggingConfig.enableComponents": ["SYSTEM_COMPONENTS"]}, "APISERVER"),
    *(Case("control-plane-logged", kind, {"logs": []}, "no enabled category") for kind in AZURE_DIAGNOSTICS),
    Case("supported-version", EKS, {"version": "1.29"}, "`1.29`"),
    Case("supported-version", EKS, {"version": REMOVED}, "version is missing"),
    Case("supported-version", GKE, {"releaseChannel": REMOVED}, "releaseChannel"),
    Case("supported-version", GKE, {"minMasterVersion": "1.30.1-gke.1"}, "1.30.1"),
    Case("supported-version", AKS, {"kubernetesVersion": "1.28"}, "`1.28`"),
    Case("supported-version", AKS, {"kubernetesVersion": REMOVED}, "kubernetesVersion is missing"),
]
RELIABILITY = [
    Case("recoverable-objects", S3_VERSIONING, {"versioningConfiguration.status": "Suspended"}, "status"),
    Case(
        "recoverable-objects",
        GCS,
        {"versioning": REMOVED, "softDeletePolicy": {"retentionDurationSeconds": 0}},
        "versioning.enabled",
    ),
    Case("recoverable-objects", BLOB_SERVICE, {"deleteRetentionPolicy": REMOVED}, "deleteRetentionPolicy"),
    Case(
        "recoverable-objects",
        BLOB_SERVICE,
        {"deleteRetentionPolicy.days": 6, "isVersioningEnabled": False},
        "deleteRetentionPolicy is not enabled for seven days or more",
    ),
    Case(
        "recoverable-objects",
        BLOB_SERVICE,
        {"containerDeleteRetentionPolicy.days": 2},
        "containerDeleteRetentionPolicy",
    ),
    *(Case("data-survives-destroy", kind, {"forceDestroy": True}, "forceDestroy") for kind in (*S3, GCS)),
    Case("data-survives-destroy", ECR, {"forceDelete": True}, "forceDelete"),
    Case("protected-from-deletion", EKS, {"deletionProtection": REMOVED}, "deletionProtection"),
    Case("protected-from-deletion", GKE, {"deletionProtection": False}, "deletionProtection"),
    Case(
        "protected-from-deletion",
        FILESTORE,
        {"deletionProtectionEnabled": False},
        "deletionProtectionEnabled",
    ),
    Case("nodes-repaired", EKS_NODES, {"nodeRepairConfig": REMOVED}, "nodeRepairConfig.enabled"),
    Case(
        "nodes-repaired",
        CLOUD_CONTROL,
        {"desiredState": json.dumps({**HYPERPOD, "NodeRecovery": "None"})},
        "NodeRecovery",
    ),
    Case("nodes-repaired", GKE_NODES, {"management.autoRepair": False}, "autoRepair"),
    Case("nodes-get-patches", GKE_NODES, {"management.autoUpgrade": False}, "autoUpgrade"),
    Case(
        "nodes-get-patches",
        AKS,
        {"autoUpgradeProfile.nodeOSUpgradeChannel": "None"},
        "nodeOSUpgradeChannel is `None`",
    ),
    Case("nodes-get-patches", AKS, {"autoUpgradeProfile": REMOVED}, "upgradeChannel is missing"),
    Case("maintenance-window", GKE, {"maintenancePolicy": REMOVED}, "no window"),
    Case(
        "maintenance-window",
        "azure-native:containerservice:MaintenanceConfiguration",
        {"maintenanceWindow": REMOVED},
        "schedule",
    ),
    Case("control-plane-in-zones", EKS, {"vpcConfig.subnetIds": ["subnet-1"]}, "1 subnets"),
    Case("control-plane-in-zones", GKE, {"location": "us-central1-a"}, "`us-central1-a`"),
    Case(
        "control-plane-in-zones",
        AKS,
        {"agentPoolProfiles.0.availabilityZones": ["1"]},
        "fewer than two zones",
    ),
    Case("control-plane-with-agreement", AKS, {"sku": {"name": "Base", "tier": "Free"}}, "Free"),
    Case("recoverable-secrets", AWS_SECRET, {"recoveryWindowInDays": 7}, "recoveryWindowInDays"),
    Case("recoverable-secrets", GCP_SECRET, {"versionDestroyTtl": REMOVED}, "versionDestroyTtl"),
    Case(
        "recoverable-secrets", VAULT, {"properties.softDeleteRetentionInDays": 7}, "softDeleteRetentionInDays"
    ),
    Case("logs-kept-a-year", LOG_GROUP, {"retentionInDays": 30}, "`30`"),
    Case("logs-kept-a-year", GCP_LOGS, {"retentionDays": REMOVED}, "retentionDays"),
    Case("logs-kept-a-year", WORKSPACE, {"retentionInDays": 90}, "`90`"),
    Case("immutable-images", ECR, {"imageTagMutability": "MUTABLE"}, "MUTABLE"),
    Case("immutable-images", GCP_IMAGES, {"dockerConfig": REMOVED}, "immutableTags"),
    Case("images-scanned", ECR, {"imageScanningConfiguration": REMOVED}, "scanOnPush"),
    Case(
        "images-scanned",
        GCP_IMAGES,
        {"vulnerabilityScanningConfig": {"enablementConfig": "DISABLED"}},
        "DISABLED",
    ),
    Case("whole-releases", RELEASE, {"atomic": False}, "atomic"),
]
CASES = [*GPU, *COST, *KUBERNETES, *RELIABILITY]
