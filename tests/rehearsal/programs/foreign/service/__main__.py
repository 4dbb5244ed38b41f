"""Uses the outputs of two other stacks: one is a program in this repository, the other is not."""

import pulumi
import pulumi_aws as aws

network = pulumi.StackReference("acme/network/prod")
dns = pulumi.StackReference("dns", "acme/dns/prod")
group = aws.ec2.SecurityGroup("service", vpc_id=network.require_output("vpc_id"), tags={"team": "ml"})
aws.route53.Record(
    "name",
    zone_id=dns.require_output("zone_id"),
    name="service",
    type="A",
    ttl=60,
    records=["192.0.2.1"],
)
pulumi.export("vpc_id", network.require_output("vpc_id"))
pulumi.export("group", group.id)
