"""A bucket, a key, a network with an open port, a group that scales by itself, and a secret."""

import pulumi
import pulumi_aws as aws

TAGS = {"team": "ml"}

aws.s3.Bucket("runs", bucket="drifting-runs", tags=TAGS)
aws.kms.Key("key", description="data", tags=TAGS)
vpc = aws.ec2.Vpc("vpc", cidr_block="10.40.0.0/16", tags=TAGS)
aws.ec2.Subnet("subnet", vpc_id=vpc.id, cidr_block="10.40.1.0/24")
aws.ec2.SecurityGroup(
    "web",
    vpc_id=vpc.id,
    ingress=[{"protocol": "tcp", "from_port": 443, "to_port": 443, "cidr_blocks": ["10.0.0.0/8"]}],
)
aws.autoscaling.Group(
    "workers",
    min_size=0,
    max_size=4,
    launch_configuration="workers",
    availability_zones=["us-east-2a"],
    health_check_grace_period=300,
    opts=pulumi.ResourceOptions(ignore_changes=["healthCheckGracePeriod"]),
)
aws.ssm.Parameter("secret", type="SecureString", value=pulumi.Output.secret("the-first-word"))
