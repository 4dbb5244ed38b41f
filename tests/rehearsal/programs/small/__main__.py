"""A program of an adopter: a network, a role, a cluster, a bucket, and two objects in the cluster."""

import json

import pulumi
import pulumi_aws as aws
import pulumi_kubernetes as k8s

config = pulumi.Config()
tags = {"team": "ml"}
zones = aws.get_availability_zones(state="available").names

vpc = aws.ec2.Vpc("vpc", cidr_block="10.0.0.0/16", tags=tags)
subnets = [
    aws.ec2.Subnet(
        f"subnet-{i}", vpc_id=vpc.id, cidr_block=f"10.0.{i}.0/24", availability_zone=zones[i], tags=tags
    )
    for i in range(2)
]
trust = {
    "Version": "2012-10-17",
    "Statement": [
        {"Effect": "Allow", "Principal": {"Service": "eks.amazonaws.com"}, "Action": "sts:AssumeRole"}
    ],
}
role = aws.iam.Role("role", assume_role_policy=json.dumps(trust), tags=tags)
cluster = aws.eks.Cluster(
    "cluster", role_arn=role.arn, vpc_config={"subnet_ids": [subnet.id for subnet in subnets]}, tags=tags
)
bucket = aws.s3.Bucket("runs", tags=tags)
secret = aws.secretsmanager.SecretVersion(
    "token",
    secret_id=aws.secretsmanager.Secret("store", tags=tags).id,
    secret_string=config.get_secret("token") or pulumi.Output.secret("planted-6f1d"),
)
provider = k8s.Provider(
    "provider",
    kubeconfig=cluster.endpoint.apply(lambda url: json.dumps({"server": url})),
    cluster_identifier=cluster.name,
)
in_cluster = pulumi.ResourceOptions(provider=provider)
namespace = k8s.core.v1.Namespace(
    "training", metadata={"name": "training", "labels": {"team": "ml"}}, opts=in_cluster
)
k8s.core.v1.ServiceAccount(
    "trainer", metadata={"name": "trainer", "namespace": namespace.metadata.name}, opts=in_cluster
)

pulumi.export("bucket", bucket.bucket)
pulumi.export("endpoint", cluster.endpoint)
pulumi.export("subnets", [subnet.id for subnet in subnets])
