"""A network; its outputs are used by programs/foreign/service."""

import pulumi
import pulumi_aws as aws

vpc = aws.ec2.Vpc("vpc", cidr_block="10.0.0.0/16")
subnet = aws.ec2.Subnet("subnet", vpc_id=vpc.id, cidr_block="10.0.1.0/24")
pulumi.export("vpc_id", vpc.id)
pulumi.export("subnet_ids", [subnet.id])
