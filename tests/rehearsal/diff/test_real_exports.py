"""`diff --state` on five other real exports, with programs that differ from them in named places.

Each program has the resources of its export: what is equal must not be in the diff, and each difference must.
`test_real_export.py` does the same with the sixth.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.rehearsal.diff.repos import make_repo
from trainfleet.rehearsal.diff.exports import read
from trainfleet.rehearsal.diff.real_preview import diff_of

EXPORTS = Path(__file__).with_name("exports")
Diffs = Callable[..., "subprocess.CompletedProcess[str]"]

COUNTDOWN = """import json

import pulumi
import pulumi_aws as aws

dead_letters = "arn:aws:sns:us-east-2:482910573614:unhandled-error-topic-8ff35ade1b6e4a7f"
policies = ["arn:aws:iam::aws:policy/AWSLambdaFullAccess", "arn:aws:iam::aws:policy/AmazonEC2ContainerServiceFullAccess"]
options = {"deadLetterConfig": {"targetArn": dead_letters}, "memorySize": 128, "policies": list(policies)}
pulumi.ComponentResource("cloud:topic:Topic", "countDown")
pulumi.ComponentResource("cloud:function:Function", "countDown_watcher", {"handler": {}})
pulumi.ComponentResource("aws:serverless:Function", "countDown_watcher", {"options": options})
aws.sns.Topic("countDown")
assume = {"Action": "sts:AssumeRole", "Principal": {"Service": "lambda.amazonaws.com"}, "Effect": "Allow", "Sid": ""}
role = aws.iam.Role(
    "countDown_watcher-iamrole",
    assume_role_policy=json.dumps({"Version": "2012-10-17", "Statement": [assume]}, separators=(",", ":")),
)
policies[1] = "arn:aws:iam::aws:policy/AmazonECS_FullAccess"
for index, policy in enumerate(policies):
    aws.iam.RolePolicyAttachment(f"countDown_watcher-iampolicy-{index}", role=role.name, policy_arn=policy)
"""
"""Without the topic `unhandled-error-topic`, and with another policy in the place of the second."""

PARAMETERS = """import pulumi
import pulumi_aws as aws

key = aws.kms.Key("secrets-key", description="KMS key for secret parameter encryption", enable_key_rotation=True)
for name, description, value, key_id in (
    ("api-token", "External API token", "api-token", key.arn),
    ("app-config", "Application configuration", "{}", None),
    ("db-password", "Database password", "db-password", key.arn),
):
    aws.ssm.Parameter(
        name, name=f"/drift-adopter-secrets/{name}", description=description, key_id=key_id,
        type="SecureString" if key_id else "String", value=pulumi.Output.secret(value),
        tags={"Environment": "production", "ManagedBy": "pulumi"},
    )
"""
"""What the code of that stack says, for which the real provider previewed `digest-ssm-secrets.json`."""


@pytest.fixture
def compared(tmp_path: Path, diff: Diffs) -> Callable[..., Any]:
    """Compare an export with a program of its project, and return the diff."""

    def compare(export: Path, program: str, region: str) -> Any:
        deployed = read(export)
        source = tmp_path / "source"
        source.mkdir()
        (source / "Pulumi.yaml").write_text(f"name: {deployed.project}\nruntime: python\n")
        (source / f"Pulumi.{deployed.stack}.yaml").write_text(f"config:\n  aws:region: {region}\n")
        (source / "__main__.py").write_text(program)
        root = make_repo(tmp_path / "project", source).root
        done = diff(str(root), "--state", str(export), "--json", cwd=root)
        assert done.stdout, done.stderr
        return json.loads(done.stdout)

    return compare


CHANGED = {
    "countDown_watcher-iampolicy-1": ("replace", ["policyArn"]),
    "unhandled-error-topic": ("delete", []),
}
"""What the program really says otherwise."""
RENAMED = {
    "countDown": ("replace", ["name"]),
    "countDown_watcher-iamrole": ("replace", ["name"]),
    "countDown_watcher-iampolicy-0": ("replace", ["role"]),
    "countDown_watcher-iampolicy-1": ("replace", ["policyArn", "role"]),
}
"""Versions 3 and 4 of this file have the generated names in no input, so that new ones are generated."""


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("state-v1-countdown.json", CHANGED),
        ("state-v3-countdown.json", CHANGED | RENAMED),
        ("state-v3-secrets.json", CHANGED | RENAMED),
        ("state-v4-countdown.json", CHANGED | RENAMED),
    ],
)
def test_only_what_differs_from_a_real_export_changes(
    name: str, changed: dict[str, tuple[str, list[str]]], compared: Callable[..., Any]
) -> None:
    found = compared(EXPORTS / name, COUNTDOWN, "us-east-2")
    assert {each["name"]: (each["verb"], each["forced_by"]) for each in found["changes"]} == changed
    assert found["exit_code"] == 2  # neither a topic nor a permission holds data
    paths = {value["path"] for each in found["changes"] for value in each["properties"]}
    assert paths <= {"name", "policyArn", "role"}  # not the policy of the role, plain or encrypted
    encrypted = any("2 values are encrypted in the export" in note for note in found["notes"])
    assert encrypted is (name == "state-v3-secrets.json")


@pytest.mark.deep
def test_the_changes_of_secret_parameters_are_those_of_the_real_preview(compared: Callable[..., Any]) -> None:
    found = compared(EXPORTS / "export-v3-ssm-secrets.json", PARAMETERS, "us-west-2")
    recorded = diff_of(EXPORTS / "digest-ssm-secrets.json").as_json()
    simulated, real = (
        {
            (each["verb"], each["name"]): [
                (value["path"], value["old"], value["new"])
                for value in each["properties"]
                if not value["path"].startswith("tagsAll.")  # the provider computes it from `tags`
            ]
            for each in side["changes"]
        }
        for side in (found, recorded)
    )
    assert simulated == real
    assert "new-db-password" not in json.dumps(found)
