"""Relations of identities and of keys: each rule with a wrong and a right program, by record."""

from __future__ import annotations

import json

import pytest

from tests.rehearsal.relation_cases import (
    Right,
    Wrong,
    assert_accepted,
    assert_rejected,
    each_right,
    each_wrong,
    record,
)
from trainfleet.rehearsal.simulation.cloud_object import CloudObject
from trainfleet.rehearsal.simulation.state import Cloud, RefusedError

POD_SERVICE = "pods.eks.amazonaws.com"


def iam_role(service: str, *actions: str) -> CloudObject:
    statement = {"Effect": "Allow", "Principal": {"Service": service}, "Action": list(actions)}
    trust = json.dumps({"Version": "2012-10-17", "Statement": statement})
    arn = {"arn": "arn:aws:iam::1:role/train"}
    return record("aws:iam/role:Role", "train", arn, assumeRolePolicy=trust)


def association(role: str = "train") -> CloudObject:
    kind = "aws:eks/podIdentityAssociation:PodIdentityAssociation"
    return record(kind, "a-1", roleArn=f"arn:aws:iam::1:role/{role}")


EKS = record("aws:eks/cluster:Cluster", "lab", roleArn="arn:aws:iam::1:role/train")
ADDON = record(
    "aws:eks/addon:Addon", "cni", podIdentityAssociations=[{"roleArn": "arn:aws:iam::1:role/train"}]
)


def aks(*, integrated: bool, access: str = "Private") -> CloudObject:
    return record(
        "azure-native:containerservice:ManagedCluster",
        "/s/aks",
        securityProfile={"azureKeyVaultKms": {"enabled": True, "keyVaultNetworkAccess": access}},
        apiServerAccessProfile={"enableVnetIntegration": integrated},
    )


NO_DEFAULT = record(
    "gcp:projects/defaultServiceAccounts:DefaultServiceAccounts", "projects/p/none", action="DISABLE"
)


def gke(**node_config: str) -> CloudObject:
    return record("gcp:container/cluster:Cluster", "projects/p/lab", nodeConfig=node_config)


REFUSED: list[Wrong] = [
    (
        "pods with a role for tokens of the issuer",
        [iam_role("ec2.amazonaws.com", "sts:AssumeRole")],
        association(),
        f"the trust policy of role train does not allow {POD_SERVICE} sts:AssumeRole and sts:TagSession",
    ),
    (
        "pods without session tags",
        [iam_role(POD_SERVICE, "sts:AssumeRole")],
        association(),
        f"role train does not allow {POD_SERVICE} sts:TagSession",
    ),
    (
        "an add-on whose role does not trust pods",
        [iam_role("eks.amazonaws.com", "sts:AssumeRole")],
        ADDON,
        "role train does not allow",
    ),
    (
        "a control plane with the role of nodes",
        [iam_role("ec2.amazonaws.com", "sts:AssumeRole")],
        EKS,
        "role train does not allow eks.amazonaws.com sts:AssumeRole",
    ),
    (
        "an initial pool with a disabled account",
        [NO_DEFAULT],
        gke(),
        "its initial nodes have no service account, and none takes the default one (DISABLE)",
    ),
    (
        "a private vault without integration of the API server",
        [],
        aks(integrated=False),
        "requires apiServerAccessProfile.enableVnetIntegration",
    ),
]
ALLOWED: list[Right] = [
    ("pods with a role", [iam_role(POD_SERVICE, "sts:AssumeRole", "sts:TagSession")], association()),
    ("pods with a role from elsewhere", [iam_role("ec2.amazonaws.com")], association("ours")),
    ("an add-on with a role", [iam_role(POD_SERVICE, "sts:AssumeRole", "sts:TagSession")], ADDON),
    ("a control plane with its role", [iam_role("eks.amazonaws.com", "sts:AssumeRole")], EKS),
    ("an initial pool with an account", [NO_DEFAULT], gke(serviceAccount="nodes@p.iam.gserviceaccount.com")),
    ("an initial pool where the default account exists", [], gke()),
    ("a private vault with integration of the API server", [], aks(integrated=True)),
    ("a public vault without integration of the API server", [], aks(integrated=False, access="Public")),
]


@each_wrong(REFUSED)
def test_a_missing_relation_is_rejected(there: list[CloudObject], what: CloudObject, output: str) -> None:
    assert_rejected(there, what, output)


@each_right(ALLOWED)
def test_a_relation_that_holds_is_accepted(there: list[CloudObject], what: CloudObject) -> None:
    assert_accepted(there, what)


def test_a_policy_that_bounds_a_role_cannot_be_deleted() -> None:
    arn = "arn:aws:iam::1:policy/boundary"
    policy = record("aws:iam/policy:Policy", arn, {"arn": arn})
    bounded = record("aws:iam/role:Role", "train", permissionsBoundary=arn)
    cloud = Cloud(records={each.key: each for each in (policy, bounded)})
    with pytest.raises(RefusedError, match="still in use by train"):
        cloud.delete(policy.token, policy.id, policy.urn)
    del cloud.records[bounded.key]
    cloud.delete(policy.token, policy.id, policy.urn)
