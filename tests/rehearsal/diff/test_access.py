"""Access in words: tables of planned resources of each cloud, before and after, and the sentences about them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from trainfleet.infra.azure.permissions import ROLES as BUILT_IN
from trainfleet.rehearsal.diff.access import access_changes, planned_after, planned_before
from trainfleet.rehearsal.diff.grants import aws, gcp
from trainfleet.rehearsal.diff.grants.azure import ROLES
from trainfleet.rehearsal.diff.grants.model import Index, Planned, port_range, ports
from trainfleet.rehearsal.simulation.pulumi_values import UNKNOWN, secret
from trainfleet.rehearsal.simulation.schema import packages

RBAC = "kubernetes:rbac.authorization.k8s.io/v1:"


def made(token: str, name: str = "x", /, **inputs: Any) -> Planned:
    outputs = inputs.pop("outputs", {})
    return Planned(token, f"urn:pulumi:s::p::{token}::{name}", inputs, outputs, inputs.pop("id", ""))


def document(*statements: dict[str, Any]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": [*statements]})


def allow(*actions: str, on: str | list[str] = "*", **more: Any) -> dict[str, Any]:
    return {"Effect": "Allow", "Action": [*actions], "Resource": on, **more}


ROLE = made("aws:iam/role:Role", "train", name="train-1", outputs={"arn": "arn:aws:iam::1:role/train-1"})
BUCKET = made(
    "aws:s3/bucket:Bucket", "runs", bucket="runs-1", outputs={"arn": "arn:aws:s3:::runs-1", "id": "runs-1"}
)


def inline(*statements: dict[str, Any]) -> Planned:
    return made("aws:iam/rolePolicy:RolePolicy", "p", role="train-1", policy=document(*statements))


def ingress(**inputs: Any) -> Planned:
    group = {"securityGroupId": "sg-web", "ipProtocol": "tcp", "fromPort": 443, "toPort": 443}
    return made("aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule", "r", **(group | inputs))


def attached(arn: str) -> Planned:
    return made("aws:iam/rolePolicyAttachment:RolePolicyAttachment", "a", role="train-1", policyArn=arn)


WEB = made("aws:ec2/securityGroup:SecurityGroup", "web", outputs={"id": "sg-web"})
OBJECTS = "arn:aws:s3:::runs-1/*"
POLICY = made(
    "aws:iam/policy:Policy",
    "own",
    policy=document(allow("s3:*", on=OBJECTS)),
    outputs={"arn": "arn:aws:iam::1:policy/own"},
)


def firewall(**inputs: Any) -> Planned:
    return made("gcp:compute/firewall:Firewall", "f", **({"network": "net"} | inputs))


def nsg(**rule: Any) -> Planned:
    given = {
        "access": "Allow",
        "direction": "Inbound",
        "protocol": "Tcp",
        "sourceAddressPrefix": "*",
        "destinationPortRange": "443",
    }
    return made("azure-native:network:NetworkSecurityGroup", "nodes", securityRules=[given | rule])


def assignment(role: str, scope: str = "/subscriptions/1/resourceGroups/rg") -> Planned:
    return made(
        "azure-native:authorization:RoleAssignment",
        principalId="p-1",
        scope=scope,
        roleDefinitionId=f"/subscriptions/1/providers/Microsoft.Authorization/roleDefinitions/{role}",
    )


IDENTITY = made(
    "azure-native:managedidentity:UserAssignedIdentity", "trainer", outputs={"principalId": "p-1"}
)
CONTRIBUTOR = "b24988ac-6180-42a0-ab88-20f7382dd24c"


def role(*rules: dict[str, Any], kind: str = "Role", name: str = "reader") -> Planned:
    return made(f"{RBAC}{kind}", name, metadata={"name": name, "namespace": "ml"}, rules=[*rules])


def binding(kind: str = "Role", name: str = "reader", of: str = "RoleBinding", /, **subject: Any) -> Planned:
    given = {"kind": "ServiceAccount", "name": "runner", "namespace": "ml"} | subject
    return made(
        f"{RBAC}{of}",
        "b",
        metadata={"name": "b", "namespace": "ml"},
        roleRef={"kind": kind, "name": name},
        subjects=[given],
    )


def rule(*verbs: str, on: str = "pods", group: str = "", **more: Any) -> dict[str, Any]:
    return {"apiGroups": [group], "resources": [on], "verbs": [*verbs], **more}


CASES: dict[str, tuple[list[Planned], list[Planned], list[str]]] = {
    "nothing": ([ROLE, inline(allow("s3:GetObject"))], [ROLE, inline(allow("s3:GetObject"))], []),
    "aws write": (
        [ROLE, BUCKET, inline(allow("s3:GetObject", on=OBJECTS))],
        [ROLE, BUCKET, inline(allow("s3:GetObject", "s3:PutObject", on=OBJECTS))],
        ["role train can now write to bucket runs/* (s3:PutObject)"],
    ),
    "aws removed": (
        [ROLE, BUCKET, inline(allow("s3:GetObject", "s3:PutObject", on=OBJECTS))],
        [ROLE, BUCKET, inline(allow("s3:GetObject", on=OBJECTS))],
        ["role train can no longer write to bucket runs/* (s3:PutObject)"],
    ),
    "aws narrower": (
        [ROLE, BUCKET, inline(allow("s3:*", on=OBJECTS))],
        [ROLE, BUCKET, inline(allow("s3:GetObject", on=OBJECTS))],
        ["role train can no longer do anything with bucket runs/* (s3:*)"],
    ),
    "aws wider": (
        [ROLE, inline(allow("s3:GetObject"))],
        [ROLE, inline(allow("*"))],
        ["role train can now do anything with every resource (*)"],
    ),
    "aws wider on resources": (
        [ROLE, BUCKET, inline(allow("s3:GetObject", on=OBJECTS))],
        [ROLE, BUCKET, inline(allow("s3:GetObject"))],
        ["role train can now read every resource (s3:GetObject)"],
    ),
    "aws another form": (
        [ROLE, BUCKET, inline(allow("s3:GetObject", on=OBJECTS))],
        [
            ROLE,
            BUCKET,
            attached("arn:aws:iam::1:policy/own"),
            made(
                POLICY.token,
                "own",
                policy=document(allow("s3:GetObject", on=OBJECTS)),
                outputs=dict(POLICY.outputs),
            ),
        ],
        [],
    ),
    "aws condition": (
        [ROLE, inline(allow("s3:GetObject", Condition={"Bool": {"aws:SecureTransport": "true"}}))],
        [ROLE, inline(allow("s3:GetObject"))],
        [
            "role train can now read every resource (s3:GetObject)",
        ],
    ),
    "aws not action": (
        [ROLE],
        [ROLE, inline({"Effect": "Allow", "NotAction": "iam:*", "Resource": "*"})],
        ["role train can now do anything with every resource (every action except iam:*)"],
    ),
    "aws not resource": (
        [ROLE],
        [ROLE, inline({"Effect": "Allow", "Action": "s3:GetObject", "NotResource": "arn:aws:s3:::secret"})],
        ["role train can now read everything except arn:aws:s3:::secret (s3:GetObject)"],
    ),
    "aws deny": (
        [ROLE, inline({"Effect": "Deny", "Action": "s3:DeleteObject", "Resource": "*"})],
        [ROLE],
        ["role train is no longer denied s3:DeleteObject on every resource"],
    ),
    "aws unknown document": (
        [ROLE, inline(allow("s3:GetObject"))],
        [ROLE, made("aws:iam/rolePolicy:RolePolicy", "p", role="train-1", policy=UNKNOWN)],
        ["what role train can do on something is not known before the apply ([known after apply])"],
    ),
    "aws unreadable document": (
        [ROLE],
        [ROLE, made("aws:iam/rolePolicy:RolePolicy", "p", role="train-1", policy="{")],
        ["what role train can do on something is not known before the apply (the document cannot be read)"],
    ),
    "aws unknown resource": (
        [ROLE],
        [ROLE, inline(allow("s3:GetObject", on=f"{UNKNOWN}/*"))],
        ["role train can now read [known after apply]/* (s3:GetObject)"],
    ),
    "aws managed": (
        [ROLE],
        [ROLE, attached("arn:aws:iam::aws:policy/AdministratorAccess")],
        ["role train now has policy arn:aws:iam::aws:policy/AdministratorAccess"],
    ),
    "aws trust": (
        [
            made(
                "aws:iam/role:Role",
                "train",
                assumeRolePolicy=document(
                    {
                        "Effect": "Allow",
                        "Principal": {"Service": "ec2.amazonaws.com"},
                        "Action": "sts:AssumeRole",
                    }
                ),
            )
        ],
        [
            made(
                "aws:iam/role:Role",
                "train",
                assumeRolePolicy=document(
                    {
                        "Effect": "Allow",
                        "Principal": {"AWS": "arn:aws:iam::210987654321:root"},
                        "Action": "sts:AssumeRole",
                    }
                ),
            )
        ],
        [
            "account 210987654321 can now assume role train (sts:AssumeRole)",
            "service ec2.amazonaws.com can no longer assume role train (sts:AssumeRole)",
        ],
    ),
    "aws public bucket": (
        [BUCKET],
        [
            BUCKET,
            made(
                "aws:s3/bucketPolicy:BucketPolicy",
                "b",
                bucket="runs-1",
                policy=document({**allow("s3:GetObject", on=OBJECTS), "Principal": "*"}),
            ),
        ],
        ["anyone can now read bucket runs/* (s3:GetObject)"],
    ),
    "aws key policy": (
        [
            made(
                "aws:kms/key:Key",
                "k",
                policy=document({**allow("kms:*"), "Principal": {"AWS": "arn:aws:iam::1:root"}}),
            )
        ],
        [
            made(
                "aws:kms/key:Key",
                "k",
                policy=document(
                    {**allow("kms:*"), "Principal": {"AWS": "arn:aws:iam::1:root"}},
                    {**allow("kms:Decrypt"), "Principal": {"AWS": "*"}},
                ),
            )
        ],
        ["anyone can now use key k (kms:Decrypt)"],
    ),
    "aws public access block": (
        [
            BUCKET,
            made(
                "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock",
                "b",
                bucket="runs-1",
                blockPublicAcls=True,
                blockPublicPolicy=True,
            ),
        ],
        [
            BUCKET,
            made(
                "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock",
                "b",
                bucket="runs-1",
                blockPublicAcls=True,
            ),
        ],
        ["bucket runs no longer blocks public access (blockPublicPolicy)"],
    ),
    "aws port": (
        [WEB, ingress(cidrIpv4="10.0.0.0/8")],
        [WEB, ingress(cidrIpv4="0.0.0.0/0")],
        ["port 443 of security group web is now reachable from 0.0.0.0/0"],
    ),
    "aws narrower network": (
        [WEB, ingress(cidrIpv4="0.0.0.0/0")],
        [WEB, ingress(cidrIpv4="10.0.0.0/8")],
        ["port 443 of security group web is no longer reachable from 0.0.0.0/0"],
    ),
    "aws every port": (
        [WEB, ingress(cidrIpv4="10.0.0.0/8")],
        [WEB, ingress(cidrIpv4="10.0.0.0/8", ipProtocol="-1", fromPort=None, toPort=None)],
        ["every port of security group web is now reachable from 10.0.0.0/8"],
    ),
    "aws group in place": (
        [made("aws:ec2/securityGroup:SecurityGroup", "web", ingress=[])],
        [
            made(
                "aws:ec2/securityGroup:SecurityGroup",
                "web",
                ingress=[{"protocol": "tcp", "fromPort": 20, "toPort": 22, "cidrBlocks": ["0.0.0.0/0"]}],
                egress=[{"protocol": "-1", "fromPort": 0, "toPort": 0, "cidrBlocks": ["0.0.0.0/0"]}],
            )
        ],
        [
            "ports 20-22 of security group web are now reachable from 0.0.0.0/0",
            "security group web can now reach 0.0.0.0/0 at every port",
        ],
    ),
    "aws unknown source": (
        [WEB],
        [WEB, ingress(referencedSecurityGroupId=UNKNOWN)],
        ["port 443 of security group web is now reachable from [known after apply]"],
    ),
    "aws cluster": (
        [
            made(
                "aws:eks/cluster:Cluster",
                "k",
                vpcConfig={"endpointPublicAccess": True, "publicAccessCidrs": ["203.0.113.0/24"]},
            )
        ],
        [made("aws:eks/cluster:Cluster", "k", vpcConfig={})],
        ["port 443 of the API server of cluster k is now reachable from 0.0.0.0/0"],
    ),
    "aws access policy": (
        [ROLE],
        [
            ROLE,
            made(
                "aws:eks/accessPolicyAssociation:AccessPolicyAssociation",
                clusterName="prod",
                principalArn="arn:aws:iam::1:role/train-1",
                policyArn="arn:aws:eks::aws:cluster-access-policy/AmazonEKSClusterAdminPolicy",
                accessScope={"type": "cluster"},
            ),
        ],
        ["role train now has AmazonEKSClusterAdminPolicy on cluster prod"],
    ),
    "gcp member": (
        [],
        [
            made(
                "gcp:storage/bucketIAMMember:BucketIAMMember",
                bucket="runs-1",
                role="roles/storage.objectAdmin",
                member="serviceAccount:a@p.iam.gserviceaccount.com",
            )
        ],
        ["service account a@p.iam.gserviceaccount.com now has roles/storage.objectAdmin on bucket runs-1"],
    ),
    "gcp binding": (
        [
            made(
                "gcp:projects/iAMBinding:IAMBinding",
                project="p",
                role="roles/viewer",
                members=["user:a@b.c", "user:d@e.f"],
            )
        ],
        [
            made(
                "gcp:projects/iAMBinding:IAMBinding",
                project="p",
                role="roles/viewer",
                members=["user:a@b.c", "allUsers"],
            )
        ],
        ["anyone now has roles/viewer on project p", "user d@e.f no longer has roles/viewer on project p"],
    ),
    "gcp policy": (
        [],
        [
            made(
                "gcp:projects/iAMPolicy:IAMPolicy",
                project="p",
                policyData=json.dumps({"bindings": [{"role": "roles/owner", "members": ["user:a@b.c"]}]}),
            )
        ],
        ["user a@b.c now has roles/owner on project p"],
    ),
    "gcp unknown policy": (
        [],
        [made("gcp:projects/iAMPolicy:IAMPolicy", project="p", policyData=UNKNOWN)],
        ["what somebody can do on project p is not known before the apply ([known after apply])"],
    ),
    "gcp firewall": (
        [firewall(allows=[{"protocol": "tcp", "ports": ["443"]}], sourceRanges=["10.0.0.0/8"])],
        [firewall(allows=[{"protocol": "tcp", "ports": ["443", "8000-9000"]}], sourceRanges=["0.0.0.0/0"])],
        ["ports 443, 8000-9000 of network net are now reachable from 0.0.0.0/0"],
    ),
    "gcp disabled firewall": (
        [firewall(allows=[{"protocol": "tcp"}])],
        [firewall(allows=[{"protocol": "tcp"}], disabled=True)],
        ["every tcp port of network net is no longer reachable from 0.0.0.0/0"],
    ),
    "gcp deny": (
        [firewall(denies=[{"protocol": "all"}], sourceRanges=["198.51.100.0/24"])],
        [],
        ["network net no longer blocks all from 198.51.100.0/24"],
    ),
    "gcp control plane": (
        [
            made(
                "gcp:container/cluster:Cluster",
                "k",
                masterAuthorizedNetworksConfig={"cidrBlocks": [{"cidrBlock": "203.0.113.0/24"}]},
            )
        ],
        [made("gcp:container/cluster:Cluster", "k")],
        ["port 443 of the API server of cluster k is now reachable from 0.0.0.0/0"],
    ),
    "azure role": (
        [IDENTITY],
        [IDENTITY, assignment(CONTRIBUTOR)],
        ["user assigned identity trainer now has Contributor on scope /subscriptions/1/resourceGroups/rg"],
    ),
    "azure unknown scope": (
        [IDENTITY],
        [IDENTITY, assignment("00000000-0000-0000-0000-000000000000", UNKNOWN)],
        [
            "user assigned identity trainer now has /subscriptions/1/providers/Microsoft.Authorization/roleDefinitions/"
            "00000000-0000-0000-0000-000000000000 on scope [known after apply]"
        ],
    ),
    "azure rule": (
        [nsg(sourceAddressPrefix="10.0.0.0/8")],
        [nsg()],
        ["port 443 of network security group nodes is now reachable from 0.0.0.0/0"],
    ),
    "azure tag": (
        [nsg(sourceAddressPrefix="VirtualNetwork")],
        [nsg(sourceAddressPrefix="AzureLoadBalancer", destinationPortRange="*")],
        [
            "every tcp port of network security group nodes is now reachable from AzureLoadBalancer",
            "port 443 of network security group nodes is no longer reachable from VirtualNetwork",
        ],
    ),
    "azure deny": (
        [nsg(access="Deny")],
        [nsg(access="Deny", sourceAddressPrefix="10.0.0.0/8")],
        [
            "network security group nodes now blocks tcp 443 from 10.0.0.0/8",
            "network security group nodes no longer blocks tcp 443 from 0.0.0.0/0",
        ],
    ),
    "azure store": (
        [
            made(
                "azure-native:storage:StorageAccount",
                "runs",
                networkRuleSet={"defaultAction": "Deny", "ipRules": [{"iPAddressOrRange": "203.0.113.7"}]},
            )
        ],
        [
            made(
                "azure-native:storage:StorageAccount",
                "runs",
                networkRuleSet={"defaultAction": "Allow"},
                allowBlobPublicAccess=True,
            )
        ],
        [
            "anyone now has anonymous access, if a container allows it on storage account runs",
            "port 443 of storage account runs is now reachable from 0.0.0.0/0",
        ],
    ),
    "kubernetes verbs": (
        [role(rule("get")), binding()],
        [role(rule("get", "create")), binding()],
        ["service account ml/runner can now write to pods in namespace ml (create)"],
    ),
    "kubernetes wildcard": (
        [role(rule("get")), binding()],
        [role(rule("*", on="*", group="*")), binding()],
        [
            "service account ml/runner can now do anything with every resource of every API group in namespace ml (*)",
            "service account ml/runner can no longer read pods in namespace ml (get)",
        ],
    ),
    "kubernetes unbound": ([], [role(rule("*", on="secrets"))], []),
    "kubernetes removed": (
        [role(rule("get", on="deployments", group="apps", resourceNames=["web"])), binding()],
        [role(rule("get", on="deployments", group="apps", resourceNames=["web"]))],
        ["service account ml/runner can no longer read deployments.apps web in namespace ml (get)"],
    ),
    "kubernetes role elsewhere": (
        [],
        [
            binding(
                "ClusterRole",
                "cluster-admin",
                "ClusterRoleBinding",
                kind="Group",
                name="system:authenticated",
            )
        ],
        ["group system:authenticated now has ClusterRole cluster-admin in every namespace"],
    ),
    "kubernetes unknown rules": (
        [],
        [
            made(f"{RBAC}Role", "reader", metadata={"name": "reader", "namespace": "ml"}, rules=UNKNOWN),
            binding(),
        ],
        [
            "what service account ml/runner can do in namespace ml is not known before the apply (a rule of role reader: [known after apply])"
        ],
    ),
}


@pytest.mark.parametrize(("before", "after", "texts"), CASES.values(), ids=CASES)
def test_access_in_words(before: list[Planned], after: list[Planned], texts: list[str]) -> None:
    assert [each.text for each in access_changes(before, after)] == texts


def test_each_change_has_its_parts() -> None:
    before, after, _ = CASES["aws write"]
    (found,) = access_changes(before, after)
    assert vars(found) == {
        "change": "gained",
        "who": "role train",
        "what": ("s3:PutObject",),
        "on": "bucket runs/*",
        "condition": "",
        "text": "role train can now write to bucket runs/* (s3:PutObject)",
        "resources": ("p",),
    }


def test_states_and_events_are_read() -> None:
    bucket = {
        "type": BUCKET.token,
        "urn": BUCKET.urn,
        "inputs": {"bucket": secret("b")},
        "outputs": {},
        "id": "b",
    }
    gone = {**bucket, "urn": "urn::gone", "delete": True}
    assert [each.inputs for each in planned_before([bucket, gone])] == [{"bucket": "b"}]
    events = [
        {"op": "same", "urn": "one", "type": BUCKET.token, "new": {**bucket, "urn": "one"}},
        {
            "op": "create-replacement",
            "urn": "two",
            "type": BUCKET.token,
            "new": {**bucket, "urn": "two", "id": "new"},
        },
        {
            "op": "delete-replaced",
            "urn": "two",
            "type": BUCKET.token,
            "new": {**bucket, "urn": "two", "id": "old"},
        },
        {"op": "delete", "urn": "three", "type": BUCKET.token, "new": None},
    ]
    assert [(each.urn, each.id) for each in planned_after(events)] == [("one", "b"), ("two", "new")]


def test_what_stays_keeps_what_the_cloud_computed() -> None:
    event = {"type": BUCKET.token, "new": {"type": BUCKET.token, "urn": BUCKET.urn}, "urn": BUCKET.urn}
    (same,) = planned_after([{"op": "same", **event}], [BUCKET])
    (new,) = planned_after([{"op": "create-replacement", **event}], [BUCKET])
    assert same.outputs["arn"] == "arn:aws:s3:::runs-1"
    assert new.outputs == {}


def test_a_value_that_a_resource_was_given_does_not_identify_it() -> None:
    index = Index([assignment(CONTRIBUTOR), IDENTITY])
    assert index.shown("p-1") == "user assigned identity trainer"


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (("-1", 0, 0), "all"),
        (("tcp", 443, 443), "tcp 443"),
        (("6", "443", None), "tcp 443"),
        (("tcp", 0, 65535), "tcp"),
        (("tcp", 1, 1024), "tcp 1-1024"),
        (("icmp", -1, -1), "icmp"),
        (("tcp", UNKNOWN, 1), "tcp [known after apply]"),
    ],
)
def test_ports_have_one_form(given: tuple[Any, Any, Any], shown: str) -> None:
    assert ports(*given) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("443", "tcp 443"),
        ("1-9", "tcp 1-9"),
        ("*", "tcp"),
        (None, "tcp"),
        (UNKNOWN, "tcp [known after apply]"),
    ],
)
def test_ports_as_text_have_the_same_form(text: str | None, shown: str) -> None:
    assert port_range("Tcp", text) == shown


def test_every_type_that_is_read_is_one_of_the_sdk() -> None:
    tokens = {*aws.RESOURCE_POLICIES, *aws.OWN_POLICIES, *aws._READERS}
    assert tokens <= set(packages()["aws"].classes)
    properties = {**aws.OWN_POLICIES, **{token: row[1] for token, row in aws.RESOURCE_POLICIES.items()}}
    for token, name in properties.items():
        resource = packages()["aws"].resource(token)
        assert resource is not None
        assert name in resource.inputs, token
    iam = [
        token
        for token in packages()["gcp"].classes
        if re.search(r":\w*I(AM|am)(Member|Binding|Policy)$", token)
    ]
    assert len(iam) > 100
    assert all(gcp._IAM.match(token) for token in iam)


def test_the_roles_that_our_platforms_assign_have_names() -> None:
    assert {name: guid for guid, name in ROLES.items() if name in BUILT_IN} == BUILT_IN
