"""A network of `awsx`, whose plugin a rehearsal does not run."""

import pulumi
import pulumi_aws as aws
import pulumi_awsx as awsx

network = awsx.ec2.Vpc("network", cidr_block="10.0.0.0/16")
group = aws.ec2.SecurityGroup("group", vpc_id=network.vpc_id, tags={"team": "ml"})
pulumi.export("vpc_id", network.vpc_id)
pulumi.export("private", network.private_subnet_ids)
