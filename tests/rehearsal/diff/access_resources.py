"""Planned resources of each cloud for tests of access, with the least that a grant is read from."""

from __future__ import annotations

import json
from typing import Any

from trainfleet.rehearsal.diff.grants.model import Planned

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
