"""Imports two packages that nobody has, and a module of its own."""

import local_module
import pulumi_aws as aws
import pulumi_nowhere_to_be_found
from another_missing_package import thing

aws.s3.Bucket("b", bucket=local_module.NAME + str(thing) + str(pulumi_nowhere_to_be_found))
