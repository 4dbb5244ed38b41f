"""Access in words on the real engine, one stack for each cloud: a line changes who can do or reach what."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.rehearsal.diff.conftest import Diffs
from tests.rehearsal.diff.repos import PARTS, Repo

AWS = """
import json
import pulumi_aws as aws

ACTIONS = ["s3:GetObject"]
SOURCE = "10.0.0.0/8"

def build(platform, extra):
    bucket = aws.s3.Bucket("runs", bucket="tiny-runs")
    trust = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}]}
    role = aws.iam.Role("train", assume_role_policy=json.dumps(trust))
    document = bucket.arn.apply(lambda arn: json.dumps({"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": ACTIONS, "Resource": f"{arn}/*"}]}))
    aws.iam.RolePolicy("rights", role=role.name, policy=document)
    vpc = aws.ec2.Vpc("vpc", cidr_block="10.40.0.0/16")
    group = aws.ec2.SecurityGroup("web", description="web", vpc_id=vpc.id)
    aws.vpc.SecurityGroupIngressRule("https", security_group_id=group.id, ip_protocol="tcp", from_port=443, to_port=443, cidr_ipv4=SOURCE)
"""
GCP = """
import pulumi_gcp as gcp

ROLE = "roles/storage.objectViewer"
SOURCES = ["10.0.0.0/8"]

def build(platform, extra):
    bucket = gcp.storage.Bucket("runs", name="tiny-runs", location="US", project="my-project")
    account = gcp.serviceaccount.Account("trainer", account_id="trainer-one", project="my-project")
    gcp.storage.BucketIAMMember("rights", bucket=bucket.name, role=ROLE, member=account.member)
    network = gcp.compute.Network("net", auto_create_subnetworks=False, project="my-project")
    gcp.compute.Firewall("https", network=network.id, project="my-project", allows=[{"protocol": "tcp", "ports": ["443"]}], source_ranges=SOURCES)
"""
AZURE = """
import pulumi_azure_native as azure

ROLE = "2a2b9908-6ea1-4ae2-8e65-a410df84e7d1"
SOURCE = "10.0.0.0/8"
SUBSCRIPTION = "/subscriptions/11111111-1111-1111-1111-111111111111"

def build(platform, extra):
    group = azure.resources.ResourceGroup("rg", resource_group_name="rg", location="westeurope")
    identity = azure.managedidentity.UserAssignedIdentity("trainer", resource_group_name=group.name, location="westeurope")
    azure.authorization.RoleAssignment("rights", principal_id=identity.principal_id, principal_type="ServicePrincipal", scope=group.id, role_definition_id=f"{SUBSCRIPTION}/providers/Microsoft.Authorization/roleDefinitions/{ROLE}", role_assignment_name="33333333-3333-3333-3333-333333333333" if ROLE.startswith("2a") else "44444444-4444-4444-4444-444444444444")
    azure.network.NetworkSecurityGroup("nodes", resource_group_name=group.name, location="westeurope", security_rules=[{"name": "https", "priority": 100, "direction": "Inbound", "access": "Allow", "protocol": "Tcp", "source_address_prefix": SOURCE, "source_port_range": "*", "destination_address_prefix": "*", "destination_port_range": "443"}])
"""
KUBERNETES = """
import pulumi
import pulumi_kubernetes as k8s

VERBS = ["get"]
NAME = "reader"

def build(platform, extra):
    provider = k8s.Provider("cluster", kubeconfig='{"apiVersion": "v1", "kind": "Config", "clusters": [{"name": "c", "cluster": {"server": "https://10.0.0.1"}}], "users": [{"name": "u", "user": {"token": "t"}}], "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}], "current-context": "x"}')
    to = pulumi.ResourceOptions(provider=provider)
    space = k8s.core.v1.Namespace("ml", metadata={"name": "ml"}, opts=to)
    after = pulumi.ResourceOptions(provider=provider, depends_on=[space])
    k8s.core.v1.ServiceAccount("runner", metadata={"name": "runner", "namespace": "ml"}, opts=after)
    k8s.rbac.v1.Role("reader", metadata={"name": "reader", "namespace": "ml"}, rules=[{"api_groups": [""], "resources": ["pods"], "verbs": VERBS}], opts=after)
    k8s.rbac.v1.RoleBinding("binding", metadata={"name": "binding", "namespace": "ml"}, role_ref={"api_group": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"}, subjects=[{"kind": "ServiceAccount", "name": "runner", "namespace": "ml"}], opts=after)
"""


@pytest.mark.deep
@pytest.mark.parametrize(
    ("program", "edits", "texts"),
    [
        (
            AWS,
            {'["s3:GetObject"]': '["s3:GetObject", "s3:DeleteObject"]', '"10.0.0.0/8"': '"0.0.0.0/0"'},
            [
                "port 443 of security group web is now reachable from 0.0.0.0/0",
                "role train can now write to bucket runs/* (s3:DeleteObject)",
            ],
        ),
        (
            GCP,
            {"objectViewer": "objectAdmin", '["10.0.0.0/8"]': '["0.0.0.0/0"]'},
            [
                "port 443 of network net is now reachable from 0.0.0.0/0",
                "account trainer now has roles/storage.objectAdmin on bucket runs",
                "account trainer no longer has roles/storage.objectViewer on bucket runs",
            ],
        ),
        (
            AZURE,
            {
                "2a2b9908-6ea1-4ae2-8e65-a410df84e7d1": "ba92f5b4-2d11-453d-a403-e96b0029c9fe",
                '"10.0.0.0/8"': '"*"',
            },
            [
                "port 443 of network security group nodes is now reachable from 0.0.0.0/0",
                "user assigned identity trainer now has Storage Blob Data Contributor on resource group rg",
                "user assigned identity trainer no longer has Storage Blob Data Reader on resource group rg",
            ],
        ),
        (
            KUBERNETES,
            {'["get"]': '["get", "delete"]'},
            ["service account ml/runner can now write to pods in namespace ml (delete)"],
        ),
    ],
    ids=["aws", "gcp", "azure", "kubernetes"],
)
def test_access_of_each_cloud(
    repo: Repo, diff: Diffs, tmp_path: Path, program: str, edits: dict[str, str], texts: list[str]
) -> None:
    repo.write(PARTS, program)
    repo.commit()
    for old, new in edits.items():
        repo.replace(PARTS, old, new)
    done = diff("one", "--worktree", "--json")
    assert done.stdout, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["access"]
    assert [each["text"] for each in found] == texts, found
    page = tmp_path / "page.html"
    diff("one", "--worktree", "--format", "html", "--output", str(page))
    assert texts[0] in page.read_text()
