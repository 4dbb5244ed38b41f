"""Requires five settings of two namespaces, some only if another one is given."""

import pulumi
import pulumi_aws as aws

config = pulumi.Config()
name = config.require("name")
token = config.require_secret("token")
size = config.require_int("size")
if config.require_bool("public") is False:
    owner = pulumi.Config("team").require("owner")
aws.s3.Bucket("b", bucket=f"{name}-{size}")
