"""Reliability: recovery from failed zones, failed nodes and human error."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from trainfleet.policies.engine.accessors import (
    at,
    at_least,
    is_true,
    listed,
    missing_companion,
    not_false,
    not_one_of,
    not_true,
    number,
    numbered,
    one_of,
    protected,
    stores_only_logs,
    true,
)
from trainfleet.policies.engine.rule import FROM_STAGING, IN_PRODUCTION, UNKNOWN, Resource, Rule, Violation
from trainfleet.policies.maintenance import MAINTENANCE, NODES_PATCHED, NODES_REPAIRED
from trainfleet.policies.resource_types import (
    AKS,
    AWS_SECRET,
    AZURE_DIAGNOSTICS,
    AZURE_LUSTRE,
    AZURE_STORAGE,
    BLOB_SERVICE,
    ECR,
    EKS,
    FILESTORE,
    FSX,
    GCP_IMAGES,
    GCP_LOGS,
    GCP_LUSTRE,
    GCP_SERVICE,
    GCS,
    GKE,
    LOG_GROUP,
    RELEASE,
    S3,
    S3_LOGGING,
    S3_VERSIONING,
    VAULT,
    WORKSPACE,
)

ZONE = re.compile(r"^[a-z]+-[a-z]+\d+-[a-z]$")
DAY = 86400
SCANNING_API = "containerscanning.googleapis.com"
LEAST_DAYS = 365
"""Retention of logs in production (CKV_AWS_338)."""


def versioned(resource: Resource) -> Iterable[Violation]:
    if at(resource.props, "versioningConfiguration.status") != "Enabled":
        yield Violation("versioningConfiguration.status is not `Enabled`")


def gcs_recoverable(resource: Resource) -> Iterable[Violation]:
    """Require versioning or soft delete. A bucket with a hierarchical namespace supports only soft delete."""
    if is_true(at(resource.props, "versioning.enabled")):
        return
    seconds = number(at(resource.props, "softDeletePolicy.retentionDurationSeconds"))
    if seconds is None or seconds < 7 * DAY:
        yield Violation(
            "versioning.enabled is not true and "
            "softDeletePolicy.retentionDurationSeconds is missing or less than a week"
        )


def azure_recoverable(resource: Resource) -> Iterable[Violation]:
    """Require soft delete, of blobs for at least a week unless versions keep them: an account with a
    hierarchical namespace does not support versioning.
    """
    for part in ("deleteRetentionPolicy", "containerDeleteRetentionPolicy"):
        days = number(at(resource.props, f"{part}.days")) or 0
        versions = part == "deleteRetentionPolicy" and is_true(at(resource.props, "isVersioningEnabled"))
        least, period = (1, "a day") if versions else (7, "seven days")
        if not is_true(at(resource.props, f"{part}.enabled")) or days < least:
            yield Violation(f"{part} is not enabled for {period} or more")


def eks_zones(resource: Resource) -> Iterable[Violation]:
    subnets = at(resource.props, "vpcConfig.subnetIds")
    if subnets is not UNKNOWN and len(listed(subnets)) < 2:
        yield Violation(f"vpcConfig.subnetIds names {len(listed(subnets))} subnets, expected two or more")


def gke_zones(resource: Resource) -> Iterable[Violation]:
    location = str(resource.props.get("location") or "")
    if not location or ZONE.match(location):
        yield Violation(f"location is `{location}`, not a region: the control plane has one replica")


def aks_zones(resource: Resource) -> Iterable[Violation]:
    for where, pool in numbered("agentPoolProfiles", resource.props.get("agentPoolProfiles")):
        if str(pool.get("mode") or "System") == "System" and len(listed(pool.get("availabilityZones"))) < 2:
            yield Violation(f"{where}.availabilityZones names fewer than two zones")


def not_scanned(resources: Sequence[Resource]) -> Iterable[Violation]:
    """Artifact Registry scans images only while the Container Scanning API is on, which is off by default."""
    enabled = {at(one.props, "service") for one in resources if one.kind == GCP_SERVICE}
    if not enabled & {SCANNING_API, UNKNOWN}:
        for one in resources:
            if one.kind == GCP_IMAGES:
                yield Violation(f"the stack does not enable {SCANNING_API}", one.urn, one.name)


def gcs_without_log(resources: Sequence[Resource]) -> Iterable[Violation]:
    """Report buckets without an access log, except those that store the logs of others."""
    places = {
        name
        for one in resources
        if one.kind == GCS and isinstance(name := at(one.props, "logging.logBucket"), str)
    }
    homes = {urn for one in resources if one.kind == GCS for urn in one.depends.get("logging", ())}
    for bucket in resources:
        if (
            bucket.kind == GCS
            and bucket.props.get("logging") is None
            and bucket.urn not in homes
            and bucket.props.get("name") not in places
        ):
            yield Violation("the bucket has no access log", bucket.urn, bucket.name)


def no_blobs(account: Resource, resources: Sequence[Resource]) -> bool:
    """Whether an account has no user objects: only file shares, or logs that the cloud writes."""
    return account.props.get("kind") == "FileStorage" or stores_only_logs(account, resources)


RECOVERABLE = Rule(
    name="recoverable-objects",
    statement="An overwritten or deleted object can be restored for at least a week.",
    reason="One wrong `rm`, or one job with the wrong run name, deletes months of checkpoints.",
    fix="set storage.versioning: true and storage.retention_days",
    references=("CKV_AWS_21", "AWS-0090", "CKV_GCP_78", "GCP-0078", "CKV2_AZURE_38", "AZU-0056"),
    severity="high",
    levels=FROM_STAGING,
    checks={S3_VERSIONING: versioned, GCS: gcs_recoverable, BLOB_SERVICE: azure_recoverable},
    stack={
        **dict.fromkeys(
            S3, missing_companion(S3, (S3_VERSIONING,), "bucket", "the bucket has no versioning")
        ),
        AZURE_STORAGE: missing_companion(
            (AZURE_STORAGE,),
            (BLOB_SERVICE,),
            "accountName",
            "the account has no settings for blobs, so a deleted blob is lost",
            exempt=no_blobs,
        ),
    },
)
NOT_EMPTIED = Rule(
    name="data-survives-destroy",
    statement="In production, no bucket or repository is deleted together with its contents.",
    reason="`pulumi destroy` in the wrong terminal must fail at the first bucket that is not empty.",
    fix="set environment: prod, which disables forced deletion",
    references=("Pulumi: protect and retain", "AWS S3: force_destroy"),
    severity="high",
    levels=IN_PRODUCTION,
    checks={
        **dict.fromkeys(S3, not_true("forceDestroy")),
        ECR: not_true("forceDelete"),
        GCS: not_true("forceDestroy"),
        AZURE_STORAGE: protected,
    },
)
PROTECTED = Rule(
    name="protected-from-deletion",
    statement=(
        "In production, the cloud or the engine refuses to delete the cluster and the shared filesystem."
    ),
    reason="A replacement that nobody noticed in the preview deletes the cluster under a running training.",
    fix="set environment: prod, which enables deletion protection, or Pulumi's `protect` where there is none",
    references=("EKS: deletion protection", "GKE: deletion protection", "CKV_GCP_108", "Pulumi: protect"),
    severity="medium",
    levels=IN_PRODUCTION,
    checks={
        EKS: true("deletionProtection"),
        GKE: not_false("deletionProtection"),
        AKS: protected,
        FILESTORE: true("deletionProtectionEnabled"),
        FSX: protected,
        GCP_LUSTRE: protected,
        AZURE_LUSTRE: protected,
    },
)
MANY_ZONES = Rule(
    name="control-plane-in-zones",
    statement="The control plane and the nodes that run it span at least two zones.",
    reason="Zones fail; with a single zone, no pod starts and no node is replaced until it recovers.",
    fix="set network.zones to 2 or more; use a region, not a zone, as location (GKE)",
    references=("EKS best practices: control plane", "GKE: regional clusters", "AKS: availability zones"),
    severity="medium",
    levels=FROM_STAGING,
    checks={EKS: eks_zones, GKE: gke_zones, AKS: aks_zones},
)
PAID_CONTROL_PLANE = Rule(
    name="control-plane-with-agreement",
    statement="The control plane has a service level agreement.",
    reason="The free tier is throttled beyond ten nodes and has no uptime guarantee.",
    fix="set sku.tier to Standard or Premium",
    references=("CKV_AZURE_170", "AKS: pricing tiers"),
    severity="low",
    levels=FROM_STAGING,
    checks={AKS: one_of("sku.tier", ("Standard", "Premium"))},
)
SECRETS_RECOVERABLE = Rule(
    name="recoverable-secrets",
    statement="In production, a deleted secret can be restored for at least two weeks.",
    reason="A missing secret blocks every new pod until someone finds the value again.",
    fix="set recoveryWindowInDays (AWS), versionDestroyTtl (GCP) or soft delete (Azure) to 14 days or more",
    references=("Secrets Manager: delete a secret", "Secret Manager: delayed destruction", "CKV_AZURE_42"),
    severity="medium",
    levels=IN_PRODUCTION,
    checks={
        AWS_SECRET: at_least("recoveryWindowInDays", 14, absent=30),
        "gcp:secretmanager/secret:Secret": at_least("versionDestroyTtl", 14 * DAY),
        VAULT: at_least("properties.softDeleteRetentionInDays", 14, absent=90),
    },
)
LOGS_KEPT = Rule(
    name="logs-kept-a-year",
    statement="In production, logs are kept for at least a year.",
    reason="An intrusion is often found only after months, and the logs show when it began.",
    fix="set kubernetes.log_retention_days: 365",
    references=("CKV_AWS_338", "CIS GCP 2.3", "Azure Monitor: data retention"),
    severity="low",
    levels=IN_PRODUCTION,
    checks={
        LOG_GROUP: at_least("retentionInDays", LEAST_DAYS),
        GCP_LOGS: at_least("retentionDays", LEAST_DAYS, absent=30),
        WORKSPACE: at_least("retentionInDays", LEAST_DAYS, absent=30),
    },
)
ACCESS_LOGGED = Rule(
    name="access-to-data-logged",
    statement="Reads and deletions of objects are logged.",
    reason="After a leak, this log is the only record of what was taken.",
    fix="enable access logs on the bucket; in Azure, add a diagnostic setting for the account's blobs",
    references=("CKV_AWS_18", "AWS-0089", "CKV_GCP_62", "GCP-0077", "CKV2_AZURE_21"),
    severity="medium",
    levels=FROM_STAGING,
    stack={
        **dict.fromkeys(
            S3,
            missing_companion(
                S3, (S3_LOGGING,), "bucket", "the bucket has no access log", exempt=stores_only_logs
            ),
        ),
        GCS: gcs_without_log,
        AZURE_STORAGE: missing_companion(
            (AZURE_STORAGE,),
            AZURE_DIAGNOSTICS,
            "resourceUri",
            "the account has no diagnostic setting for its blobs",
            exempt=no_blobs,
        ),
    },
)
IMMUTABLE_IMAGES = Rule(
    name="immutable-images",
    statement="A tag of a training image always refers to the same image.",
    reason="A run is reproduced by its image tag; if the tag moves, it is a different run.",
    fix="set imageTagMutability IMMUTABLE (ECR) or dockerConfig.immutableTags (Artifact Registry)",
    references=("CKV_AWS_51", "AWS-0031", "Artifact Registry: immutable tags"),
    severity="low",
    checks={
        ECR: one_of("imageTagMutability", ("IMMUTABLE", "IMMUTABLE_WITH_EXCLUSION")),
        GCP_IMAGES: true("dockerConfig.immutableTags"),
    },
)
IMAGES_SCANNED = Rule(
    name="images-scanned",
    statement="Training images are scanned for known vulnerabilities.",
    reason=(
        "A training image contains hundreds of packages, and new vulnerabilities are published every week."
    ),
    fix=(
        "enable scan on push (ECR); enable containerscanning.googleapis.com and leave scanning on (Artifact "
        "Registry)"
    ),
    references=("CKV_AWS_163", "AWS-0030", "Artifact Analysis: automatic scanning"),
    severity="low",
    checks={
        ECR: true("imageScanningConfiguration.scanOnPush"),
        GCP_IMAGES: not_one_of("vulnerabilityScanningConfig.enablementConfig", ("DISABLED",)),
    },
    stack={GCP_IMAGES: not_scanned},
)
ATOMIC_RELEASES = Rule(
    name="whole-releases",
    statement="A Helm release is installed atomically.",
    reason="A half-installed release blocks the next one, and must be cleaned up by hand.",
    fix="set atomic: true and a timeout",
    references=("Helm: install --atomic", "Pulumi: Helm Release"),
    severity="low",
    checks={RELEASE: true("atomic")},
)
RULES = (
    RECOVERABLE,
    NOT_EMPTIED,
    PROTECTED,
    NODES_REPAIRED,
    NODES_PATCHED,
    MAINTENANCE,
    MANY_ZONES,
    PAID_CONTROL_PLANE,
    SECRETS_RECOVERABLE,
    LOGS_KEPT,
    ACCESS_LOGGED,
    IMMUTABLE_IMAGES,
    IMAGES_SCANNED,
    ATOMIC_RELEASES,
)
