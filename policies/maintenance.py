"""Rules on node repair, patches and maintenance windows, part of the reliability theme."""

from __future__ import annotations

from collections.abc import Iterable

from trainfleet.policies.engine.accessors import at, document, is_true, missing_companion, present, true
from trainfleet.policies.engine.rule import FROM_STAGING, UNKNOWN, Resource, Rule, Violation
from trainfleet.policies.resource_types import (
    AKS,
    AZURE_LUSTRE,
    CLOUD_CONTROL,
    EKS_NODES,
    FSX,
    GCP_LUSTRE,
    GKE,
    GKE_NODES,
)

HYPERPOD = "AWS::SageMaker::Cluster"


def gke_repair(resource: Resource) -> Iterable[Violation]:
    waits = is_true(at(resource.props, "nodeConfig.flexStart")) or is_true(
        at(resource.props, "queuedProvisioning.enabled")
    )
    if not waits and not is_true(at(resource.props, "management.autoRepair")):
        yield Violation("management.autoRepair is not true")


def hyperpod_repair(resource: Resource) -> Iterable[Violation]:
    if resource.props.get("typeName") != HYPERPOD:
        return
    desired = document(resource.props.get("desiredState"))
    if not isinstance(desired, dict) or desired.get("NodeRecovery") != "Automatic":
        yield Violation("desiredState.NodeRecovery is not `Automatic`")


def gke_patches(resource: Resource) -> Iterable[Violation]:
    if not is_true(at(resource.props, "management.autoUpgrade")):
        yield Violation("management.autoUpgrade is not true")


def aks_patches(resource: Resource) -> Iterable[Violation]:
    for name, refused in (("upgradeChannel", "none"), ("nodeOSUpgradeChannel", "None")):
        channel = at(resource.props, f"autoUpgradeProfile.{name}")
        if channel is None or str(channel) in (refused, "Unmanaged"):
            yield Violation(
                f"autoUpgradeProfile.{name} is {'missing' if channel is None else f'`{channel}`'}"
            )


def eks_patches(resource: Resource) -> Iterable[Violation]:
    """EKS rolls no nodes by itself, so what counts is an image of which patched releases appear."""
    image = resource.props.get("amiType")
    if image is None or image is UNKNOWN:
        return
    if str(image) == "CUSTOM":
        yield Violation("amiType is CUSTOM: EKS releases no patched versions of the image")
    elif str(image).startswith("AL2_"):
        yield Violation(f"amiType is {image}: EKS ended its releases on 2025-11-26")


def window(resource: Resource) -> Iterable[Violation]:
    policy = resource.props.get("maintenancePolicy") or {}
    if not any(
        policy.get(part) is not None
        for part in ("recurringWindow", "dailyMaintenanceWindow", "recurringMaintenanceWindow")
    ):
        yield Violation("maintenancePolicy has no window, so upgrades can interrupt a training run")


NODES_REPAIRED = Rule(
    name="nodes-repaired",
    statement="The cloud detects and replaces broken nodes.",
    reason=(
        "A failed GPU stops the whole job; after the node is replaced, the job resumes from its checkpoint."
    ),
    fix="enable node repair; GKE's flex-start and queued nodes do not support it and are exempt",
    references=(
        "CKV_GCP_9",
        "GCP-0063",
        "CIS GKE 5.5.2",
        "EKS: node auto repair",
        "HyperPod: automatic node recovery",
    ),
    severity="high",
    checks={
        EKS_NODES: true("nodeRepairConfig.enabled"),
        CLOUD_CONTROL: hyperpod_repair,
        GKE_NODES: gke_repair,
    },
)
NODES_PATCHED = Rule(
    name="nodes-get-patches",
    statement="The cloud releases patched images for the nodes; GKE and AKS also install them.",
    reason="A node image is out of date a week after its release, and nobody rebuilds it by hand.",
    fix=(
        "set management.autoUpgrade (GKE), autoUpgradeProfile with both channels (AKS), or an AL2023 or "
        "Bottlerocket image (EKS), where a pool moves to a new release only by a change of the stack"
    ),
    references=(
        "CKV_GCP_10",
        "GCP-0058",
        "CIS GKE 5.5.3",
        "CKV_AZURE_171",
        "EKS: update a managed node group",
        "EKS AMI deprecation: AL2",
    ),
    severity="medium",
    checks={EKS_NODES: eks_patches, GKE_NODES: gke_patches, AKS: aks_patches},
)
MAINTENANCE = Rule(
    name="maintenance-window",
    statement="Upgrades and patches that the cloud starts run only in the platform's maintenance window.",
    reason="An upgrade at noon ends every pod of a training that has run for a week.",
    fix=(
        "set a maintenance window on the cluster and on the shared filesystem; EKS has none, because it "
        "starts no upgrade before a version's support ends"
    ),
    references=(
        "GKE: maintenance windows and exclusions",
        "AKS: planned maintenance",
        "FSx for Lustre: maintenance windows",
        "Managed Lustre: maintenance policies",
    ),
    severity="low",
    levels=FROM_STAGING,
    checks={
        FSX: present("weeklyMaintenanceStartTime", "FSx chooses one"),
        GCP_LUSTRE: present(
            "maintenancePolicy.weeklyMaintenanceWindows", "maintenance can start at any time"
        ),
        AZURE_LUSTRE: present("maintenanceWindow.dayOfWeek"),
        GKE: window,
        "azure-native:containerservice:MaintenanceConfiguration": present("maintenanceWindow.schedule"),
    },
    stack={
        AKS: missing_companion(
            (AKS,),
            ("azure-native:containerservice:MaintenanceConfiguration",),
            "resourceName",
            "the cluster has no maintenance configuration",
        )
    },
)
