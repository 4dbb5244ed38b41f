"""The table of scanner findings that stay, the command that prints it, and the comparison with a report."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from tools.scanner.__main__ import findings, unused, without_exception
from tools.scanner.convert import read_state, terraform_type, write_files
from trainfleet.policies.catalogue import RULES
from trainfleet.policies.engine.document import markdown
from trainfleet.policies.scanner_exceptions import ScannerException, scanner, scanner_exceptions

Run = Callable[..., subprocess.CompletedProcess[str]]
URN = "urn:pulumi:s::p::"
LOGS = ScannerException("CKV_AWS_145", "s", ("aws_s3_bucket.*_access_logs",), "r", date(2026, 1, 1))


def test_each_exception_names_one_check_its_resources_a_reason_and_a_past_date() -> None:
    checks = Counter(each.check for each in scanner_exceptions())
    assert {check for check, count in checks.items() if count > 1} == set()
    names = {rule.name for rule in RULES}
    for each in scanner_exceptions():
        assert each.resources, each.check
        assert "*" not in each.resources, each.check
        assert each.reason, each.check
        assert date(2026, 1, 1) <= each.date <= date.today(), each.check
        assert not each.rule or each.rule in names, each.check


def test_the_reference_page_and_the_command_show_every_exception(trainfleet: Run) -> None:
    page, printed = markdown(), trainfleet("policies", "--exceptions")
    assert printed.returncode == 0, printed.stderr
    for each in scanner_exceptions():
        assert f"| {each.check} | {each.statement} | {each.reason} |" in page
        assert each.check in printed.stdout
    assert f"{len(scanner_exceptions())} exceptions to {scanner()}" in printed.stdout


def test_a_script_reads_the_exceptions_of_one_cloud(trainfleet: Run) -> None:
    document = json.loads(trainfleet("policies", "--exceptions", "--json", "--cloud", "gcp").stdout)
    assert document["scanner"] == scanner()
    rows = document["exceptions"]
    assert [row["check"] for row in rows] == [
        each.check for each in scanner_exceptions() if each.cloud == "gcp"
    ]
    assert {key for row in rows for key in row} == {
        "check",
        "cloud",
        "statement",
        "resources",
        "reason",
        "rule",
        "date",
    }


@pytest.mark.parametrize("option", [["imdsv2"], ["--markdown"], ["--severity", "high"]])
def test_options_of_the_rules_do_not_go_with_exceptions(trainfleet: Run, option: list[str]) -> None:
    done = trainfleet("policies", "--exceptions", *option)
    assert done.returncode == 2
    assert "does not go with --exceptions" in done.stderr


def report(*failed: tuple[str, str]) -> Any:
    checks = [{"check_id": check, "resource": where, "check_name": "n"} for check, where in failed]
    return {"results": {"failed_checks": checks}}


def test_a_finding_without_an_exception_is_named_and_an_exception_without_a_finding_too() -> None:
    found = findings(
        [
            report(
                ("CKV_AWS_145", "aws_s3_bucket.p_access_logs"),
                ("CKV_AWS_145", "aws_s3_bucket.p_bucket"),
            ),
            report(("CKV_AWS_1", "aws_s3_bucket.p_access_logs")),
        ]
    )
    assert [each[:2] for each in without_exception(found, [LOGS])] == [
        ("CKV_AWS_145", "aws_s3_bucket.p_bucket"),
        ("CKV_AWS_1", "aws_s3_bucket.p_access_logs"),
    ]
    assert unused(found, [LOGS]) == []
    assert unused(findings(report(("CKV_AWS_145", "aws_s3_bucket.p_bucket"))), [LOGS]) == [LOGS]


@pytest.mark.parametrize(
    ("token", "name"),
    [
        ("aws:ec2/vpc:Vpc", "aws_vpc"),
        ("aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule", "aws_vpc_security_group_ingress_rule"),
        ("aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock", "aws_s3_bucket_public_access_block"),
        ("gcp:container/nodePool:NodePool", "google_container_node_pool"),
        ("gcp:projects/iAMMember:IAMMember", "google_project_iam_member"),
        ("gcp:storage/bucketIAMMember:BucketIAMMember", "google_storage_bucket_iam_member"),
        ("gcp:serviceaccount/account:Account", "google_service_account"),
        ("gcp:secretmanager/secret:Secret", "google_secret_manager_secret"),
    ],
)
def test_a_bridged_type_has_its_name_in_terraform(token: str, name: str) -> None:
    assert terraform_type(token) == name


def resource(kind: str, name: str, inputs: Any, outputs: Any = None, **depends: list[str]) -> dict[str, Any]:
    return {
        "urn": f"{URN}{kind}::{name}",
        "custom": True,
        "type": kind,
        "id": f"id-of-{name}",
        "inputs": inputs,
        "outputs": outputs or {},
        "propertyDependencies": depends,
    }


KEY = resource(
    "aws:kms/key:Key", "p-key", {"enableKeyRotation": True, "tags": {"a:b": "c"}}, {"arn": "arn:k"}
)
RULES_OF_KEY = [
    {"applyServerSideEncryptionByDefault": {"sseAlgorithm": "aws:kms", "kmsMasterKeyId": "arn:k"}}
]
SETTINGS = resource(
    "aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration",
    "p-encryption",
    {"bucket": "b", "rules": RULES_OF_KEY, "note": '${no} "expression"'},
    rules=[KEY["urn"]],
)
ACCOUNT = resource(
    "azure-native:storage/v20240101:StorageAccount",
    "p-account",
    {"accountName": "paccount", "kind": "StorageV2", "networkRuleSet": {"defaultAction": "Deny"}},
)
CLAIM = resource("kubernetes:core/v1:Namespace", "p-ns", {"apiVersion": "v1", "kind": "Namespace"})
CHART = resource("kubernetes:helm.sh/v3:Release", "p-chart", {"chart": "c"})


def test_a_state_becomes_files_that_the_scanner_reads(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    resources = [KEY, SETTINGS, ACCOUNT, CLAIM, CHART]
    file.write_text(json.dumps({"checkpoint": {"latest": {"resources": resources}}}))
    write_files(read_state(file), tmp_path)
    terraform = (tmp_path / "main.tf").read_text()
    assert 'resource "aws_kms_key" "p_key" {\n  enable_key_rotation = true\n' in terraform
    assert 'tags = { "a:b" = "c" }' in terraform
    assert "rule {\n    apply_server_side_encryption_by_default {" in terraform
    assert "kms_master_key_id = aws_kms_key.p_key.arn" in terraform
    assert 'note = "$${no} \\"expression\\""' in terraform
    (account,) = json.loads((tmp_path / "azure.json").read_text())["resources"]
    assert (account["type"], account["name"]) == ("Microsoft.Storage/storageAccounts", "paccount")
    assert account["properties"]["networkAcls"] == {"defaultAction": "Deny"}
    objects = json.loads((tmp_path / "kubernetes.json").read_text())["items"]
    assert [each["kind"] for each in objects] == ["Namespace"]


def test_a_secret_is_never_written(tmp_path: Path) -> None:
    secret = {"4dabf18193072939515e22adb298388d": "1b47061264138c4ac30d75fd1eb44270", "plaintext": '"hidden"'}
    file = tmp_path / "state.json"
    hidden = resource("aws:kms/key:Key", "p-key", {"description": secret})
    file.write_text(json.dumps({"deployment": {"resources": [hidden]}}))
    write_files(read_state(file), tmp_path)
    assert "hidden" not in (tmp_path / "main.tf").read_text()
