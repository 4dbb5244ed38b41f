"""What changes of AWS resources mean for access."""

from __future__ import annotations

from tests.rehearsal.diff.access_resources import (
    BUCKET,
    OBJECTS,
    POLICY,
    ROLE,
    WEB,
    allow,
    attached,
    document,
    ingress,
    inline,
    made,
)
from trainfleet.rehearsal.diff.grants.model import Planned
from trainfleet.rehearsal.simulation.pulumi_values import UNKNOWN

Case = tuple[list[Planned], list[Planned], list[str]]
"""The resources before and after, and the sentences in their order."""
AWS: dict[str, Case] = {
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
}
