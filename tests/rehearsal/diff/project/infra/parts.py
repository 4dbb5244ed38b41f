"""A bucket, a protected key, a network and a parameter: one of each kind of loss."""

import pulumi
import pulumi_aws as aws

BUCKET = "tiny-runs"


def build(platform, extra):
    tags = platform.get("tags", {})
    aws.s3.Bucket("runs", bucket=BUCKET, tags=tags)
    aws.kms.Key(
        "key", description="data", tags=tags, opts=pulumi.ResourceOptions(protect=True, retain_on_delete=True)
    )
    vpc = aws.ec2.Vpc("vpc", cidr_block=platform.get("network", {}).get("cidr", "10.40.0.0/16"), tags=tags)
    aws.ec2.Subnet("subnet", vpc_id=vpc.id, cidr_block="10.40.1.0/24")
    aws.ssm.Parameter(
        "secret",
        type="SecureString",
        value=extra.get_secret("word") or "none",
        tags={"changes-with": extra.get("note") or "-"},
    )
