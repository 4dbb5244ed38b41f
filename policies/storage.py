"""Buckets: closed to the public, and reached by TLS only. What a bucket lacks is seen only when the whole stack is known."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from policies.rule import UNKNOWN, Json, Resource, Rule, StillUnknown, Violation, is_true, listed

BUCKETS = ("aws:s3/bucket:Bucket", "aws:s3/bucketV2:BucketV2")
BLOCK = "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock"
POLICY = "aws:s3/bucketPolicy:BucketPolicy"
BLOCKS = ("blockPublicAcls", "blockPublicPolicy", "ignorePublicAcls", "restrictPublicBuckets")
OPEN_ACLS = {"public-read", "public-read-write", "authenticated-read"}
OPEN_GROUPS = ("AllUsers", "AuthenticatedUsers")


def public_acl(resource: Resource) -> Iterable[Violation]:
    if resource.props.get("acl") in OPEN_ACLS:
        yield Violation(f"acl is {resource.props['acl']}")
    policy = resource.props.get("accessControlPolicy") or {}
    for grant in listed(policy.get("grants")):
        uri = (grant.get("grantee") or {}).get("uri") or ""
        if uri.endswith(OPEN_GROUPS):
            yield Violation(f"accessControlPolicy grants {grant.get('permission')} to {uri.rpartition('/')[2]}")


def open_block(resource: Resource) -> Iterable[Violation]:
    for flag in BLOCKS:
        if not is_true(resource.props.get(flag)):
            yield Violation(f"{flag} is not true")


def unblocked_buckets(resources: Sequence[Resource]) -> Iterable[Violation]:
    yield from _without(resources, BLOCK, "no public access block")


def plain_http(resource: Resource) -> Iterable[Violation]:
    if not _denies_plain_http(resource.props.get("policy")):
        yield Violation("policy has no statement that denies every principal all of s3 when aws:SecureTransport is false")


def http_buckets(resources: Sequence[Resource]) -> Iterable[Violation]:
    yield from _without(resources, POLICY, "no bucket policy, so nothing refuses plain HTTP")


def _without(resources: Sequence[Resource], companion: str, lack: str) -> Iterable[Violation]:
    companions = [resource for resource in resources if resource.type == companion]
    for bucket in (resource for resource in resources if resource.type in BUCKETS):
        if not any(_belongs(one, bucket) for one in companions):
            yield Violation(f"the bucket has {lack}", bucket.urn, bucket.name)


def _belongs(companion: Resource, bucket: Resource) -> bool:
    """By the reference, which a preview knows; else by the name, which may be unknown on either side."""
    if bucket.urn in companion.depends.get("bucket", ()):
        return True
    wanted, names = companion.props.get("bucket"), [bucket.props.get("bucket"), bucket.props.get("id")]
    if wanted is UNKNOWN or all(name is UNKNOWN or name is None for name in names):
        return False
    return wanted in [name for name in names if name is not UNKNOWN]


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


def statements(policy: Json) -> list[dict[str, Json]]:
    """The statements of a policy document, given as JSON text or as an object; none where it is neither."""
    if policy is UNKNOWN:
        raise StillUnknown
    try:
        document = json.loads(policy) if isinstance(policy, str) else policy
    except ValueError:
        return []
    if not isinstance(document, dict):
        return []
    return [statement for statement in listed(document.get("Statement")) if isinstance(statement, dict)]


NO_PUBLIC_BUCKET = Rule(
    name="no-public-bucket",
    statement="No bucket can be made public, by access list or by policy.",
    fix="give the bucket a public access block with all four flags on, and no public access list",
    references=("CIS AWS 2.1.4", "CKV_AWS_53", "CKV_AWS_54", "CKV_AWS_55", "CKV_AWS_56", "CKV2_AWS_6", "AWS-0086"),
    checks={**dict.fromkeys(BUCKETS, public_acl), "aws:s3/bucketAcl:BucketAcl": public_acl, BLOCK: open_block},
    stack=unblocked_buckets,
)
TLS_ONLY_BUCKET = Rule(
    name="tls-only-bucket",
    statement="A bucket refuses requests that do not come by TLS.",
    fix='add a statement to the bucket\'s policy: Deny, Principal "*", s3:*, on the bucket and its objects, when aws:SecureTransport is false',
    references=("CIS AWS 2.1.1", "CKV_AWS_379", "Security Hub S3.5"),
    checks={POLICY: plain_http},
    stack=http_buckets,
)
RULES = (NO_PUBLIC_BUCKET, TLS_ONLY_BUCKET)
