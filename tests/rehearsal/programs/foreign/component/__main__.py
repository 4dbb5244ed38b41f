"""A network and a cluster of `awsx` and `eks`, whose plugins a rehearsal does not run."""

import json

import pulumi
import pulumi_aws as aws
import pulumi_awsx as awsx
import pulumi_eks as eks
import pulumi_kubernetes as kubernetes

network = awsx.ec2.Vpc("network", cidr_block="10.0.0.0/16")
cluster = eks.Cluster(
    "cluster",
    vpc_id=network.vpc_id,
    private_subnet_ids=network.private_subnet_ids,
    public_subnet_ids=network.public_subnet_ids,
    instance_type="t3.large",
)
group = aws.ec2.SecurityGroup("group", vpc_id=network.vpc_id, tags={"team": "ml"})
aws.vpc.SecurityGroupIngressRule(
    "from-nodes",
    security_group_id=group.id,
    referenced_security_group_id=cluster.node_security_group.apply(lambda each: each.id),
    ip_protocol="tcp",
    from_port=2049,
    to_port=2049,
)
files = aws.efs.FileSystem("files")
network.private_subnet_ids.apply(
    lambda ids: [
        aws.efs.MountTarget(f"files-{index}", file_system_id=files.id, subnet_id=each)
        for index, each in enumerate(ids)
    ]
)
aws.eks.Addon("dns", cluster_name=cluster.eks_cluster.name, addon_name="coredns")
role = aws.iam.Role(
    "jobs",
    assume_role_policy=pulumi.Output.json_dumps(
        {
            "Version": "2012-10-17",
            "Statement": [
                {
                    "Effect": "Allow",
                    "Action": "sts:AssumeRoleWithWebIdentity",
                    "Principal": {"Federated": cluster.oidc_provider_arn},
                }
            ],
        }
    ),
)
for name, kubeconfig in (
    ("team", cluster.kubeconfig.apply(json.dumps)),
    ("jobs", cluster.get_kubeconfig(role_arn=role.arn)),
):
    provider = kubernetes.Provider(name, kubeconfig=kubeconfig)
    kubernetes.core.v1.Namespace(name, opts=pulumi.ResourceOptions(provider=provider))

pulumi.export("vpc_id", network.vpc_id)
pulumi.export("cidr", network.vpc.cidr_block)
pulumi.export("private", network.private_subnet_ids)
pulumi.export("isolated", network.isolated_subnet_ids)
pulumi.export("subnets", network.subnets.apply(lambda found: [each.id for each in found]))
pulumi.export("kubeconfig", cluster.kubeconfig)
pulumi.export("issuer", cluster.oidc_provider_url)
pulumi.export("names", [cluster.core["cluster"].name, cluster.eks_cluster.name])
