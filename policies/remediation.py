"""One-line fixes that the engine makes while it plans, for rules that are set to the level `remediate`.

No rule has this level by itself: `--policy-pack-config` chooses it, for example `{"imdsv2": "remediate"}`.
A fix is only made if the rule then holds; everything else is still reported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from trainfleet.policies.engine.accessors import at
from trainfleet.policies.engine.rule import UNKNOWN, Json, Resource, Rule, StillUnknown, evaluate
from trainfleet.policies.naming import (
    AWS_TAGGABLE,
    AZURE_TAGGABLE,
    ENVIRONMENT,
    GCP_LABELLED,
    OWNER,
    PLATFORM,
    label,
    tags_of,
)
from trainfleet.policies.resource_types import (
    ACR,
    AKS_NODES,
    AWS_SUBNET,
    AZURE_STORAGE,
    BLOB_CONTAINER,
    EC2,
    ECR,
    EFS,
    GCS,
    GKE_NODES,
    KMS_KEY,
    LAUNCH_TEMPLATE,
    S3_BLOCK,
)

Values = Mapping[str, Json]
"""Dotted path of a property to its value."""
Fix = Callable[[Resource, Mapping[str, str]], Values]
"""From a resource and the tags of its platform to what has to be set."""

SESSION_TOKENS: Values = {"metadataOptions.httpTokens": "required"}
FIXES: Mapping[str, Mapping[str, Values]] = {
    "imdsv2": {LAUNCH_TEMPLATE: SESSION_TOKENS, EC2: SESSION_TOKENS},
    "no-public-bucket": {
        S3_BLOCK: dict.fromkeys(
            ("blockPublicAcls", "blockPublicPolicy", "ignorePublicAcls", "restrictPublicBuckets"), True
        ),
        GCS: {"publicAccessPrevention": "enforced"},
        AZURE_STORAGE: {"allowBlobPublicAccess": False},
        BLOB_CONTAINER: {"publicAccess": "None"},
    },
    "one-way-into-buckets": {
        GCS: {"uniformBucketLevelAccess": True},
        "aws:s3/bucketOwnershipControls:BucketOwnershipControls": {
            "rule.objectOwnership": "BucketOwnerEnforced"
        },
    },
    "tls-only-bucket": {AZURE_STORAGE: {"enableHttpsTrafficOnly": True, "minimumTlsVersion": "TLS1_2"}},
    "no-public-node": {
        AWS_SUBNET: {"mapPublicIpOnLaunch": False},
        EC2: {"associatePublicIpAddress": False},
        GKE_NODES: {"networkConfig.enablePrivateNodes": True},
        AKS_NODES: {"enableNodePublicIP": False},
    },
    "encrypted-volumes": {
        "aws:ebs/volume:Volume": {"encrypted": True},
        EFS: {"encrypted": True},
        AKS_NODES: {"enableEncryptionAtHost": True},
    },
    "keys-rotate": {KMS_KEY: {"enableKeyRotation": True}},
    "no-long-lived-keys": {AZURE_STORAGE: {"allowSharedKeyAccess": False}, ACR: {"adminUserEnabled": False}},
    "immutable-images": {ECR: {"imageTagMutability": "IMMUTABLE"}},
    "images-scanned": {ECR: {"imageScanningConfiguration.scanOnPush": True}},
}
"""Name of a rule and resource type to what has to be set."""
TAGGED = "required-tags"


def remediable(rule: Rule) -> tuple[str, ...]:
    """Return the resource types for which a rule has a fix."""
    if rule.name == TAGGED:
        return (*AWS_TAGGABLE, *GCP_LABELLED, *AZURE_TAGGABLE)
    return tuple(FIXES.get(rule.name, ()))


def remedy(rule: Rule, resource: Resource, tags: Mapping[str, str]) -> Values:
    """Return what has to be set on a resource so that it follows a rule; empty if nothing has to, or nothing
    known is enough.

    Args:
        rule: the rule.
        resource: the resource.
        tags: the required tags and their values, as far as they are known.
    """
    if resource.kind not in remediable(rule) or not evaluate(rule, resource):
        return {}
    try:
        values = _tags(resource, tags) if rule.name == TAGGED else FIXES[rule.name][resource.kind]
        fixed = replace(resource, props=with_values(resource.props, values))
    except StillUnknown:
        return {}
    return {} if evaluate(rule, fixed) else values


def with_values(props: Mapping[str, Json], values: Values) -> dict[str, Json]:
    """Return a copy of properties in which values are set.

    Raises:
        StillUnknown: a value on the way is only known when the stack is applied.
    """
    copy = dict(props)
    for path, value in values.items():
        *parents, last = path.split(".")
        part = copy
        for name in parents:
            inner = part.get(name)
            if inner is UNKNOWN:
                raise StillUnknown
            part[name] = dict(inner) if isinstance(inner, Mapping) else {}
            part = part[name]
        part[last] = value
    return copy


def platform_tags(spec: Mapping[str, Json]) -> dict[str, str]:
    """Return the required tags of a platform, as far as its spec states them."""
    keys = {PLATFORM: "name", ENVIRONMENT: "environment", OWNER: "owner"}
    known = {tag: spec.get(key) for tag, key in keys.items()}
    if "cloud" in spec:
        known[ENVIRONMENT] = known[ENVIRONMENT] or "dev"
    return {tag: value for tag, value in known.items() if isinstance(value, str) and value}


def _tags(resource: Resource, tags: Mapping[str, str]) -> Values:
    present = tags_of(resource)
    if present is UNKNOWN or present is None:
        raise StillUnknown
    where = GCP_LABELLED.get(resource.kind, "")
    if at(resource.props, where or "tags") is UNKNOWN:
        raise StillUnknown
    expected = {label(key): label_value(value) for key, value in tags.items()} if where else dict(tags)
    missing = {key: value for key, value in expected.items() if not present.get(key)}
    return {where or "tags": {**present, **missing}}


def label_value(text: str) -> str:
    """Return a tag's value as a Google Cloud label: at most 63 lower case letters, digits, `-` and `_`."""
    return re.sub(r"[^a-z0-9_-]", "-", text.lower().replace("@", "_at_").replace(".", "_"))[:63]
