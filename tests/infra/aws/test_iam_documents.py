"""What roles and keys may do, as documents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from trainfleet.infra.aws import iam_documents, keys, permissions, storage

ACCOUNT = "111122223333"
BUCKET = "arn:aws:s3:::runs"
KEY = f"arn:aws:kms:us-east-2:{ACCOUNT}:key/1"
SECRET = f"arn:aws:secretsmanager:us-east-2:{ACCOUNT}:secret:hf-token"

DOCUMENTS: dict[str, iam_documents.Document] = {
    "cluster_secrets": permissions.cluster_secrets(KEY),
    "training": permissions.training(BUCKET, KEY, "us-east-2"),
    "autoscaler": permissions.autoscaler("aws", "us-east-2", ACCOUNT, "trainfleet-lab"),
    "read_secrets": permissions.read_secrets([SECRET], KEY, "us-east-2"),
    "encrypted_volumes": permissions.encrypted_volumes(KEY),
    "shared_volume": permissions.shared_volume(),
    "hyperpod_node": permissions.hyperpod_node(
        "aws",
        "us-east-2",
        ACCOUNT,
        f"arn:aws:eks:us-east-2:{ACCOUNT}:cluster/lab",
        bucket_arn=BUCKET,
        keys=[KEY, f"{KEY}2"],
    ),
    "write_logs": permissions.write_logs("arn:aws:logs:us-east-2:111122223333:log-group:pods"),
    "flow_logs": permissions.flow_logs("arn:aws:logs:us-east-2:111122223333:log-group:flow"),
}
READS = ("Describe", "List", "Get")


def statements(document: iam_documents.Document) -> Iterator[dict[str, Any]]:
    yield from document["Statement"]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_role_never_gets_all_actions_of_a_service(name: str) -> None:
    for statement in statements(DOCUMENTS[name]):
        assert all(action.split(":")[1] != "*" for action in statement["Action"]), statement


@pytest.mark.parametrize("name", DOCUMENTS)
def test_only_reading_is_allowed_on_every_resource(name: str) -> None:
    for statement in statements(DOCUMENTS[name]):
        if "*" in statement["Resource"]:
            assert all(action.split(":")[1].startswith(READS) for action in statement["Action"]), statement


def test_training_writes_runs_only_and_can_not_erase_a_version() -> None:
    writes = {
        action: statement["Resource"]
        for statement in statements(DOCUMENTS["training"])
        for action in statement["Action"]
        if action in ("s3:PutObject", "s3:DeleteObject", "s3:DeleteObjectVersion", "s3:PutBucketPolicy")
    }
    assert writes == {"s3:PutObject": [f"{BUCKET}/runs/*"], "s3:DeleteObject": [f"{BUCKET}/runs/*"]}


def test_a_training_cannot_write_the_script_that_new_hyperpod_nodes_run() -> None:
    (write,) = [each for each in statements(DOCUMENTS["training"]) if "s3:PutObject" in each["Action"]]
    (read,) = [each for each in statements(DOCUMENTS["hyperpod_node"]) if each["Sid"] == "ReadLifecycle"]
    assert read["Resource"] == [f"{BUCKET}/{permissions.LIFECYCLE_PREFIX}*"]
    assert not permissions.LIFECYCLE_PREFIX.startswith(permissions.RUNS_PREFIX)
    assert write["Resource"] == [f"{BUCKET}/{permissions.RUNS_PREFIX}*"]


def test_the_autoscaler_scales_the_groups_of_its_own_cluster_only() -> None:
    (scale,) = [each for each in statements(DOCUMENTS["autoscaler"]) if each["Sid"] == "Scale"]
    assert scale["Condition"] == {
        "StringEquals": {"aws:ResourceTag/k8s.io/cluster-autoscaler/trainfleet-lab": "owned"}
    }
    (groups,) = [each for each in statements(DOCUMENTS["autoscaler"]) if each["Sid"] == "SeeNodeGroups"]
    assert groups["Action"] == ["eks:DescribeNodegroup"], "a pool at zero nodes is known by this alone"


def test_a_pod_role_can_be_taken_by_one_service_account_of_one_cluster() -> None:
    (trust,) = statements(
        iam_documents.trust_pods(
            "arn:aws:eks:us-east-2:111122223333:cluster/trainfleet-lab", "training", "trainer"
        )
    )
    assert trust["Principal"] == {"Service": "pods.eks.amazonaws.com"}
    assert trust["Action"] == ["sts:AssumeRole", "sts:TagSession"], "pod identity tags every session"
    assert trust["Condition"]["StringEquals"] == {
        "aws:RequestTag/eks-cluster-arn": "arn:aws:eks:us-east-2:111122223333:cluster/trainfleet-lab",
        "aws:RequestTag/kubernetes-namespace": "training",
        "aws:RequestTag/kubernetes-service-account": "trainer",
    }


def test_users_of_a_key_without_a_principal_are_named_by_condition() -> None:
    for make in (keys.used_by_service_roles, keys.grants_by_service_roles):
        statement = make("Nodes", "aws", ACCOUNT, keys.NODE_STARTERS)
        assert statement["Principal"] == {"AWS": "*"}
        assert statement["Condition"]["StringEquals"] == {"kms:CallerAccount": ACCOUNT}
        roles = statement["Condition"]["ArnLike"]["aws:PrincipalArn"]
        assert len(roles) == len(keys.NODE_STARTERS)
        assert all(role.startswith(f"arn:aws:iam::{ACCOUNT}:role/aws-service-role/") for role in roles)


def test_a_key_is_granted_on_only_to_aws_resources() -> None:
    grants = [
        keys.grants_by_service_roles("Nodes", "aws", ACCOUNT, keys.NODE_STARTERS),
        *statements(DOCUMENTS["encrypted_volumes"]),
    ]
    granting = [each for each in grants if "kms:CreateGrant" in each["Action"]]
    assert len(granting) == 2
    assert all(each["Condition"]["Bool"] == {"kms:GrantIsForAWSResource": "true"} for each in granting)


def test_logs_encrypt_the_log_groups_of_one_account_and_region() -> None:
    statement = keys.used_by_logs("aws-cn", "cn-north-1", ACCOUNT)
    assert statement["Principal"] == {"Service": "logs.cn-north-1.amazonaws.com"}
    assert statement["Condition"] == {
        "ArnLike": {"kms:EncryptionContext:aws:logs:arn": f"arn:aws-cn:logs:cn-north-1:{ACCOUNT}:log-group:*"}
    }


def test_a_bucket_denies_access_without_tls() -> None:
    statement = storage.tls_only(BUCKET)
    assert statement["Effect"] == "Deny"
    assert statement["Resource"] == [BUCKET, f"{BUCKET}/*"]
    assert statement["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}


def test_access_logs_are_delivered_for_one_bucket_of_this_account() -> None:
    statement = storage.log_delivery("arn:aws:s3:::logs", BUCKET, ACCOUNT)
    assert statement["Resource"] == ["arn:aws:s3:::logs/access/*"]
    assert statement["Condition"] == {
        "StringEquals": {"aws:SourceAccount": ACCOUNT},
        "ArnLike": {"aws:SourceArn": BUCKET},
    }
