"""A real export with a program of its resources, compared with the real preview of the same stack.

`exports/export-v3-tags-and-sets.json` and `exports/digest-tags-and-sets.json` are the state of one stack and what
the real AWS provider previewed on it.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.rehearsal.diff.repos import Repo, make_repo
from trainfleet.rehearsal.diff.exports import read
from trainfleet.rehearsal.diff.real_preview import diff_of

EXPORTS = Path(__file__).with_name("exports")
EXPORT = EXPORTS / "export-v3-tags-and-sets.json"
STACK = read(EXPORT).stack
Diffs = Callable[..., "subprocess.CompletedProcess[str]"]

PROGRAM = """import json

import pulumi
import pulumi_aws as aws

DEPLOYED = True
vpc = aws.ec2.Vpc("test-vpc", cidr_block="10.0.0.0/16", tags={"Name": "drift-adopter-test-vpc"})
https = {"description": "HTTPS from anywhere", "from_port": 443, "to_port": 443, "protocol": "tcp",
         "cidr_blocks": ["0.0.0.0/0"]}
app = {"description": "Custom app port", "from_port": 8080, "to_port": 8080, "protocol": "tcp",
       "cidr_blocks": ["10.0.0.0/8"]}
http = {"description": "HTTP from internal", "from_port": 80, "to_port": 80, "protocol": "tcp",
        "cidr_blocks": ["10.0.0.0/8"]}
aws.ec2.SecurityGroup(
    "test-sg", name="drift-adopter-test-sg", vpc_id=vpc.id, tags={"Name": "drift-adopter-test-sg"},
    description="Updated security group for testing" if DEPLOYED else "Security group for drift-adopter testing",
    ingress=[https, app] if DEPLOYED else [http, https],
    egress=[{"from_port": 0, "to_port": 0, "protocol": "-1", "cidr_blocks": ["0.0.0.0/0"]}],
)
actions = ["logs:CreateLogGroup", "logs:CreateLogStream", "logs:PutLogEvents"]
actions += ["logs:DescribeLogGroups", "logs:DescribeLogStreams"] if DEPLOYED else []


def document(statement):
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]}, separators=(",", ":"))


aws.iam.Role(
    "test-role", name="drift-adopter-test-role", tags={"Purpose": "drift-testing"},
    assume_role_policy=document(
        {"Action": "sts:AssumeRole", "Effect": "Allow", "Principal": {"Service": "lambda.amazonaws.com"}}
    ),
    inline_policies=[{"name": "log-access", "policy": document(
        {"Action": actions, "Effect": "Allow", "Resource": "arn:aws:logs:*:*:*"}
    )}],
)
tags = {"Project": "drift-adopter-tests"}
tags |= (
    {"Environment": "staging", "Owner": "team-b", "Team": "platform"}
    if DEPLOYED
    else {"Environment": "production", "Owner": "team-a", "CostCenter": "cc-100"}
)
bucket = aws.s3.Bucket("test-bucket", bucket="drift-adopter-testdata-tags", force_destroy=True, tags=tags)
aws.s3.BucketVersioningV2(
    "test-bucket-versioning", bucket=bucket.id,
    versioning_configuration={"status": "Suspended" if DEPLOYED else "Enabled"},
)
"""


@pytest.fixture
def project(tmp_path: Path) -> Repo:
    source = tmp_path / "source"
    source.mkdir()
    (source / "Pulumi.yaml").write_text("name: aws-tags-and-sets\nruntime: python\n")
    (source / "__main__.py").write_text(PROGRAM)
    (source / f"Pulumi.{STACK}.yaml").write_text("config:\n  aws:region: us-west-2\n")
    return make_repo(tmp_path / "project", source)


def test_the_program_of_a_real_export_changes_nothing(project: Repo, diff: Diffs) -> None:
    done = diff(str(project.root), "--state", str(EXPORT), "--json", cwd=project.root)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["changes"] == []


@pytest.mark.deep
def test_the_simulated_preview_is_that_of_the_real_provider(project: Repo, diff: Diffs) -> None:
    project.replace("__main__.py", "DEPLOYED = True", "DEPLOYED = False")
    project.commit("what the code says")
    done = diff(str(project.root), "--state", str(EXPORT), "--json", cwd=project.root)
    assert done.returncode in (2, 3), done.stderr
    simulated = json.loads(done.stdout)
    recorded = diff_of(EXPORTS / "digest-tags-and-sets.json").as_json()
    expected = {each["name"]: (each["verb"], tuple(each["forced_by"])) for each in recorded["changes"]}
    found = {each["name"]: (each["verb"], tuple(each["forced_by"])) for each in simulated["changes"]}
    assert found == expected
