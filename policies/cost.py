"""Cost: limits, idle capacity and budget alerts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trainfleet.policies.engine.accessors import (
    at,
    at_least,
    is_true,
    listed,
    missing_companion,
    not_one_of,
    number,
    numbered,
    one_of,
    present,
)
from trainfleet.policies.engine.rule import ADVICE, FROM_STAGING, Check, Resource, Rule, StackCheck, Violation
from trainfleet.policies.gpu import aks_gpu, eks_gpu, gke_gpu
from trainfleet.policies.resource_types import (
    ACR,
    AKS,
    AKS_NODES,
    AWS_BUDGET,
    AZURE_BUDGETS,
    AZURE_STORAGE,
    ECR,
    EKS,
    EKS_NODES,
    GCP_BUDGET,
    GCP_IMAGES,
    GCP_LOGS,
    GCS,
    GKE,
    GKE_NODES,
    LOG_GROUP,
    S3,
    S3_LIFECYCLE,
)

MOST_NODES = 256
"""Sanity limit for the nodes of one pool. The policy's setting `most_nodes` overrides it."""


def _limit(resource: Resource) -> float:
    return number(resource.settings.get("most_nodes")) or MOST_NODES


def _bounded(*paths: str) -> Check:
    """The pool's maximum size must be set at one of these paths, within the limit."""

    def evaluate(resource: Resource) -> Iterable[Violation]:
        values = [(path, number(at(resource.props, path))) for path in paths]
        known = [(path, most) for path, most in values if most is not None]
        if not known:
            yield Violation(f"{paths[0]} is missing, so the pool has no maximum size")
        for path, most in known:
            if most > _limit(resource):
                yield Violation(f"{path} is {most:g}, which exceeds {_limit(resource):g}")

    return evaluate


def aks_bounded(resource: Resource) -> Iterable[Violation]:
    if is_true(resource.props.get("enableAutoScaling")):
        yield from _bounded("maxCount")(resource)
    else:
        yield from _bounded("count")(resource)


def eks_from_zero(resource: Resource) -> Iterable[Violation]:
    least = number(at(resource.props, "scalingConfig.minSize")) or 0
    if least > 0 and eks_gpu(resource):
        yield Violation(f"scalingConfig.minSize is {least:g}: these GPU nodes are billed even when idle")


def gke_from_zero(resource: Resource) -> Iterable[Violation]:
    if not gke_gpu(resource):
        return
    for path in ("autoscaling.minNodeCount", "autoscaling.totalMinNodeCount", "nodeCount"):
        least = number(at(resource.props, path)) or 0
        if least > 0:
            yield Violation(f"{path} is {least:g}: these GPU nodes are billed even when idle")


def aks_from_zero(resource: Resource) -> Iterable[Violation]:
    if not aks_gpu(resource):
        return
    scaled = is_true(resource.props.get("enableAutoScaling"))
    path = "minCount" if scaled else "count"
    least = number(resource.props.get(path)) or 0
    if least > 0:
        yield Violation(f"{path} is {least:g}: these GPU nodes are billed even when idle")


def aws_alerts(resource: Resource) -> Iterable[Violation]:
    notified = [
        notification
        for _, notification in numbered("notifications", resource.props.get("notifications"))
        if listed(notification.get("subscriberEmailAddresses"))
        or listed(notification.get("subscriberSnsTopicArns"))
    ]
    if not notified:
        yield Violation("notifications has no recipient")


def gcp_alerts(resource: Resource) -> Iterable[Violation]:
    if not listed(resource.props.get("thresholdRules")):
        yield Violation("thresholdRules is empty, so no alert is sent")
    rule = resource.props.get("allUpdatesRule") or {}
    silent = is_true(rule.get("disableDefaultIamRecipients"))
    if silent and not listed(rule.get("monitoringNotificationChannels")) and rule.get("pubsubTopic") is None:
        yield Violation("allUpdatesRule has no recipient")


def azure_alerts(resource: Resource) -> Iterable[Violation]:
    notifications = resource.props.get("notifications") or {}
    on = [each for each in notifications.values() if isinstance(each, dict) and is_true(each.get("enabled"))]
    if not any(
        listed(each.get("contactEmails"))
        or listed(each.get("contactGroups"))
        or listed(each.get("contactRoles"))
        for each in on
    ):
        yield Violation("notifications has no recipient")


def _no_budget(cluster: str, budgets: Sequence[str]) -> StackCheck:
    def evaluate(resources: Sequence[Resource]) -> Iterable[Violation]:
        if not any(resource.kind in budgets for resource in resources):
            for resource in resources:
                if resource.kind == cluster:
                    yield Violation("the platform has no budget", resource.urn, resource.name)

    return evaluate


def unfinished_uploads(resource: Resource) -> Iterable[Violation]:
    rules = [rule for _, rule in numbered("rules", resource.props.get("rules"))]
    if not any(
        rule.get("status") == "Enabled" and rule.get("abortIncompleteMultipartUpload") is not None
        for rule in rules
    ):
        yield Violation("rules has none that aborts unfinished uploads (abortIncompleteMultipartUpload)")


def azure_old_data(resource: Resource) -> Iterable[Violation]:
    if not listed(at(resource.props, "policy.rules")):
        yield Violation("policy.rules is empty")


def acr_untagged(resource: Resource) -> Iterable[Violation]:
    if str(at(resource.props, "policies.retentionPolicy.status") or "").lower() != "enabled":
        yield Violation("policies.retentionPolicy.status is not `enabled`")


POOLS_HAVE_A_LIMIT = Rule(
    name="pools-have-a-limit",
    statement="Every pool has a maximum size, within a sanity limit.",
    reason=(
        "A loop that submits jobs adds nodes up to the maximum, and an 8-GPU node can cost over 1,000 USD a "
        "day."
    ),
    fix="set max_nodes of the pool; for more than 256 nodes, raise the policy's setting `most_nodes`",
    references=(
        "EKS best practices: cost, cluster autoscaler",
        "GKE: cluster autoscaler limits",
        "AKS: cluster autoscaler",
    ),
    severity="high",
    checks={
        EKS_NODES: _bounded("scalingConfig.maxSize"),
        GKE_NODES: _bounded("autoscaling.maxNodeCount", "autoscaling.totalMaxNodeCount", "nodeCount"),
        AKS_NODES: aks_bounded,
    },
    settings={"most_nodes": {"type": "integer", "minimum": 1}},
)
GPU_FROM_ZERO = Rule(
    name="gpu-pools-from-zero",
    statement="A GPU pool has a minimum of zero nodes.",
    reason="Idle GPU nodes are the largest avoidable cost.",
    fix="set min_nodes: 0; keep a node only while someone needs it",
    references=("Cluster Autoscaler: scaling a node group from 0",),
    severity="low",
    levels=ADVICE,
    checks={EKS_NODES: eks_from_zero, GKE_NODES: gke_from_zero, AKS_NODES: aks_from_zero},
)
BUDGET = Rule(
    name="budget-with-alerts",
    statement="A platform has a monthly budget, and someone is alerted before it is spent.",
    reason="The bill arrives a month later; by then a forgotten pool can cost more than the project.",
    fix="set budget.monthly_usd in the spec",
    references=("AWS Well-Architected COST02-BP05", "Google Cloud: budgets and alerts", "Azure: budgets"),
    severity="medium",
    levels={"dev": "advisory", "staging": "advisory"},
    checks={AWS_BUDGET: aws_alerts, GCP_BUDGET: gcp_alerts, **dict.fromkeys(AZURE_BUDGETS, azure_alerts)},
    stack={
        EKS: _no_budget(EKS, (AWS_BUDGET,)),
        GKE: _no_budget(GKE, (GCP_BUDGET,)),
        AKS: _no_budget(AKS, AZURE_BUDGETS),
    },
)
LOGS_EXPIRE = Rule(
    name="logs-expire",
    statement="Every log store has a retention period.",
    reason="Without one, logs are stored and billed forever.",
    fix="set kubernetes.log_retention_days",
    references=("CKV_AWS_66", "Cloud Logging: retention"),
    severity="low",
    levels=FROM_STAGING,
    checks={
        LOG_GROUP: at_least("retentionInDays", 1),
        GCP_LOGS: at_least("retentionDays", 1, absent=30),
    },
)
BUCKET_LIFECYCLE = Rule(
    name="old-data-goes",
    statement="A bucket has lifecycle rules that delete unfinished uploads and overwritten versions.",
    reason="An unfinished upload of a large checkpoint is invisible, and billed every month.",
    fix="add lifecycle rules to the bucket; abort unfinished uploads after a week",
    references=(
        "CKV2_AWS_61",
        "CKV_AWS_300",
        "Cloud Storage: object lifecycle",
        "Azure Storage: lifecycle management",
    ),
    severity="low",
    levels=FROM_STAGING,
    checks={
        S3_LIFECYCLE: unfinished_uploads,
        GCS: present("lifecycleRules"),
        "azure-native:storage:ManagementPolicy": azure_old_data,
    },
    stack={
        **dict.fromkeys(S3, missing_companion(S3, (S3_LIFECYCLE,), "bucket", "the bucket has no lifecycle")),
        AZURE_STORAGE: missing_companion(
            (AZURE_STORAGE,),
            ("azure-native:storage:ManagementPolicy",),
            "accountName",
            "the account has no management policy",
            exempt=lambda account, _: account.props.get("kind") == "FileStorage",
        ),
    },
)
IMAGE_LIFECYCLE = Rule(
    name="old-images-go",
    statement="Untagged image layers are deleted.",
    reason="A training image is ten gigabytes or more, and every build leaves an old one behind.",
    fix=(
        "add a lifecycle policy (ECR), a cleanup policy (Artifact Registry) or a retention policy (ACR, "
        "Premium)"
    ),
    references=("ECR: lifecycle policies", "Artifact Registry: cleanup policies", "CKV_AZURE_167"),
    severity="low",
    levels=FROM_STAGING,
    checks={GCP_IMAGES: present("cleanupPolicies"), ACR: acr_untagged},
    stack={
        ECR: missing_companion(
            (ECR,),
            ("aws:ecr/lifecyclePolicy:LifecyclePolicy",),
            "repository",
            "the repository has no lifecycle",
        )
    },
)
STANDARD_SUPPORT = Rule(
    name="no-extended-support",
    statement="No control plane moves to paid extended support automatically.",
    reason="Extended support costs six times as much per hour, and starts when an upgrade is overdue.",
    fix=(
        "set upgradePolicy.supportType STANDARD (EKS), a channel other than EXTENDED (GKE) or supportPlan "
        "KubernetesOfficial (AKS)"
    ),
    references=("EKS: Kubernetes version lifecycle", "GKE: Extended channel", "AKS: long-term support"),
    severity="low",
    levels=FROM_STAGING,
    checks={
        EKS: one_of("upgradePolicy.supportType", ("STANDARD",)),
        GKE: not_one_of("releaseChannel.channel", ("EXTENDED",)),
        AKS: not_one_of("supportPlan", ("AKSLongTermSupport",)),
    },
)
RULES = (
    POOLS_HAVE_A_LIMIT,
    GPU_FROM_ZERO,
    BUDGET,
    LOGS_EXPIRE,
    BUCKET_LIFECYCLE,
    IMAGE_LIFECYCLE,
    STANDARD_SUPPORT,
)
