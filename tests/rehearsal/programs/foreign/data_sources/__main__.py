"""Reads a network by id, a network of its own by its name, and two that only rehearsal.toml knows."""

import pulumi
import pulumi_aws as aws

existing = aws.ec2.Vpc.get("existing", "vpc-0123456789abcdef0")
own = aws.ec2.Vpc("own", cidr_block="10.1.0.0/16", tags={"Name": "own"})
found = aws.ec2.get_vpc_output(id=own.id)
zone = aws.route53.get_zone(name="example.org")
bucket = aws.s3.get_bucket(bucket="shared")
aws.ec2.Subnet("subnet", vpc_id=existing.id, cidr_block="10.2.1.0/24", tags={"zone": zone.zone_id})
pulumi.export("existing", existing.cidr_block)
pulumi.export("own", found.cidr_block)
pulumi.export("zone", zone.zone_id)
pulumi.export("bucket", bucket.arn)
