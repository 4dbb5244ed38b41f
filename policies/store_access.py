"""Rules on access to buckets, vaults and registries, part of the exposure theme."""

from __future__ import annotations

from collections.abc import Iterable

from trainfleet.policies.engine.accessors import (
    at,
    false,
    is_true,
    listed,
    missing_companion,
    one_of,
    statements,
    true,
)
from trainfleet.policies.engine.rule import Json, Resource, Rule, Violation
from trainfleet.policies.resource_types import (
    ACR,
    AZURE_STORAGE,
    BLOB_CONTAINER,
    GCS,
    S3,
    S3_BLOCK,
    S3_POLICY,
    VAULT,
)

BLOCKS = ("blockPublicAcls", "blockPublicPolicy", "ignorePublicAcls", "restrictPublicBuckets")


OPEN_ACLS = {"public-read", "public-read-write", "authenticated-read"}


OPEN_GROUPS = ("AllUsers", "AuthenticatedUsers")


PUBLIC_MEMBERS = {"allUsers", "allAuthenticatedUsers"}


def public_acl(resource: Resource) -> Iterable[Violation]:
    if resource.props.get("acl") in OPEN_ACLS:
        yield Violation(f"acl is {resource.props['acl']}")
    policy = resource.props.get("accessControlPolicy") or {}
    for grant in listed(policy.get("grants")):
        uri = (grant.get("grantee") or {}).get("uri") or ""
        if uri.endswith(OPEN_GROUPS):
            yield Violation(
                f"accessControlPolicy grants {grant.get('permission')} to {uri.rpartition('/')[2]}"
            )


def open_block(resource: Resource) -> Iterable[Violation]:
    for flag in BLOCKS:
        if not is_true(resource.props.get(flag)):
            yield Violation(f"{flag} is not true")


def public_entity(resource: Resource) -> Iterable[Violation]:
    entity = resource.props.get("entity")
    if entity in PUBLIC_MEMBERS:
        yield Violation(f"entity is {entity}")


def plain_http(resource: Resource) -> Iterable[Violation]:
    if not _denies_plain_http(resource.props.get("policy")):
        yield Violation(
            "policy has no statement that denies s3:* to every principal when aws:SecureTransport is false"
        )


def _denies_plain_http(policy: Json) -> bool:
    for statement in statements(policy):
        condition = (statement.get("Condition") or {}).get("Bool") or {}
        principal = statement.get("Principal")
        if (
            statement.get("Effect") == "Deny"
            and (principal == "*" or (isinstance(principal, dict) and "*" in listed(principal.get("AWS"))))
            and {"s3:*", "*"} & set(listed(statement.get("Action")))
            and [str(value).lower() for value in listed(condition.get("aws:SecureTransport"))] == ["false"]
        ):
            return True
    return False


def azure_transport(resource: Resource) -> Iterable[Violation]:
    """Require HTTPS and TLS 1.2. NFS file shares have no HTTPS; their network restricts access."""
    nfs = (
        resource.props.get("kind") == "FileStorage"
        and resource.props.get("publicNetworkAccess") == "Disabled"
    )
    if not nfs and not is_true(resource.props.get("enableHttpsTrafficOnly", True)):
        yield Violation("enableHttpsTrafficOnly is not true")
    if resource.props.get("minimumTlsVersion") not in ("TLS1_2", "TLS1_3"):
        yield Violation("minimumTlsVersion is not `TLS1_2` or `TLS1_3`")


def closed_store(resource: Resource) -> Iterable[Violation]:
    """An Azure store must accept requests only from named networks or its private endpoint."""
    props = resource.props.get("properties") if resource.kind == VAULT else resource.props
    rules = "networkAcls" if resource.kind == VAULT else "networkRuleSet"
    where = "properties." if resource.kind == VAULT else ""
    access = at(props, "publicNetworkAccess")
    if access is not None and str(access).lower() == "disabled":
        return
    if at(props, f"{rules}.defaultAction") != "Deny":
        yield Violation(
            f"{where}publicNetworkAccess is not `Disabled` and {where}{rules}.defaultAction is not `Deny`"
        )


NO_PUBLIC_BUCKET = Rule(
    name="no-public-bucket",
    statement="No bucket can be made public, by access control list or by policy.",
    reason="Publicly readable data sets and checkpoints are the most common leak, and often go unnoticed.",
    fix=(
        "block public access (S3: all four flags; GCS: publicAccessPrevention enforced; Azure: "
        "allowBlobPublicAccess false)"
    ),
    references=(
        "CIS AWS 2.1.4",
        "CKV_AWS_53",
        "CKV_AWS_54",
        "CKV_AWS_55",
        "CKV_AWS_56",
        "CKV2_AWS_6",
        "AWS-0086",
        "CKV_GCP_114",
        "GCP-0001",
        "CKV_AZURE_59",
        "CKV_AZURE_190",
        "AZU-0007",
    ),
    severity="critical",
    checks={
        **dict.fromkeys(S3, public_acl),
        "aws:s3/bucketAcl:BucketAcl": public_acl,
        S3_BLOCK: open_block,
        GCS: one_of("publicAccessPrevention", ("enforced",)),
        "gcp:storage/bucketAccessControl:BucketAccessControl": public_entity,
        AZURE_STORAGE: false("allowBlobPublicAccess"),
        BLOB_CONTAINER: one_of("publicAccess", ("None", "none")),
    },
    stack=dict.fromkeys(
        S3, missing_companion(S3, (S3_BLOCK,), "bucket", "the bucket has no public access block")
    ),
)


UNIFORM_BUCKET = Rule(
    name="one-way-into-buckets",
    statement="Access to a bucket is defined once for the bucket, not per object.",
    reason="An access list on a single object survives every review of the bucket's own rules.",
    fix="set uniformBucketLevelAccess (GCS) or objectOwnership BucketOwnerEnforced (S3)",
    references=("CKV_GCP_29", "GCP-0002", "Security Hub S3.12"),
    severity="medium",
    checks={
        GCS: true("uniformBucketLevelAccess"),
        "aws:s3/bucketOwnershipControls:BucketOwnershipControls": one_of(
            "rule.objectOwnership", ("BucketOwnerEnforced",)
        ),
    },
)


TLS_ONLY_BUCKET = Rule(
    name="tls-only-bucket",
    statement="A bucket rejects requests that do not use TLS.",
    reason="An unencrypted request exposes its data and its signature to anyone on the network path.",
    fix=(
        "S3: deny s3:* to every principal when aws:SecureTransport is false, on the bucket and its objects; "
        "Azure: require HTTPS and TLS 1.2"
    ),
    references=(
        "CIS AWS 2.1.1",
        "CKV_AWS_379",
        "Security Hub S3.5",
        "CKV_AZURE_3",
        "CKV_AZURE_44",
        "AZU-0008",
        "AZU-0011",
    ),
    severity="high",
    checks={S3_POLICY: plain_http, AZURE_STORAGE: azure_transport},
    stack=dict.fromkeys(
        S3,
        missing_companion(
            S3, (S3_POLICY,), "bucket", "the bucket has no bucket policy, so plain HTTP is accepted"
        ),
    ),
)


CLOSED_STORES = Rule(
    name="closed-stores",
    statement="Data stores, vaults and registries accept requests only from the platform's network.",
    reason="A store that any network can reach is one leaked key away from being copied.",
    fix="disable public network access and add a private endpoint, or deny by default and list the ranges",
    references=("CKV_AZURE_35", "AZU-0012", "CKV_AZURE_109", "AZU-0013", "CKV_AZURE_139"),
    severity="high",
    levels={"dev": "advisory"},
    checks={AZURE_STORAGE: closed_store, VAULT: closed_store, ACR: closed_store},
)
