"""`trainfleet policies`: the table, one rule, scripts, the document, and what it says to a wrong word."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from trainfleet.policies.catalogue import RULES
from trainfleet.policies.engine.document import markdown, select_rules

Run = Callable[..., subprocess.CompletedProcess[str]]


def test_the_document_names_every_rule_with_its_reason_remedy_and_sources() -> None:
    text = markdown()
    for rule in RULES:
        section = text.partition(f"### {rule.name}\n")[2].partition("\n###")[0]
        for part in (rule.statement, rule.reason, rule.fix, *rule.references):
            assert part in section, (rule.name, part)


def test_the_table_lists_every_rule_with_its_levels(trainfleet: Run) -> None:
    done = trainfleet("policies")
    assert done.returncode == 0, done.stderr
    for rule in RULES:
        assert rule.name in done.stdout
    assert f"{len(RULES)} rules" in done.stdout


def test_a_script_reads_one_document(trainfleet: Run) -> None:
    listed = json.loads(trainfleet("policies", "--json", "--cloud", "azure", "--severity", "critical").stdout)
    assert [rule["name"] for rule in listed] == [rule.name for rule in select_rules("azure", "critical")]
    assert all(rule["severity"] == "critical" and "azure" in rule["clouds"] for rule in listed)
    one = json.loads(trainfleet("policies", "closed-stores", "--json").stdout)
    assert one["levels"] == {"dev": "advisory", "staging": "mandatory", "prod": "mandatory"}


@pytest.mark.parametrize("name", ["no-public-bucket", "no-public-bucket-everywhere"])
def test_one_rule_is_shown_completely(trainfleet: Run, name: str) -> None:
    output = trainfleet("policies", name).stdout
    (rule,) = [rule for rule in RULES if rule.name == "no-public-bucket"]
    for part in (rule.statement, rule.reason, rule.fix, "CKV2_AWS_6", "storage.StorageAccount"):
        assert part in output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["no-public-buckets"], "did you mean `no-public-bucket`?"),
        (["--cloud", "mars"], "aws, gcp, azure, kubernetes"),
        (["--severity", "huge"], "low, medium, high, critical"),
        (["--check", "nowhere/policies.md"], "cannot read the document"),
    ],
)
def test_an_unknown_value_is_rejected_with_the_valid_ones(
    trainfleet: Run, arguments: list[str], says: str
) -> None:
    done = trainfleet("policies", *arguments)
    assert done.returncode == 2
    assert says in done.stderr


def test_a_stale_document_is_reported_with_the_command_that_writes_it(
    trainfleet: Run, tmp_path: Path
) -> None:
    file = tmp_path / "policies.md"
    file.write_text(markdown())
    assert trainfleet("policies", "--check", str(file)).returncode == 0
    file.write_text(markdown() + "more\n")
    done = trainfleet("policies", "--check", str(file))
    assert done.returncode == 1
    assert "does not match the rules" in done.stderr


def test_the_command_imports_neither_pulumi_nor_the_platforms() -> None:
    script = (
        "import sys; import trainfleet.policies.cli.policies, trainfleet.policies.engine.document; "
        "print([name for name in sys.modules if name.split('.')[0] in ('pulumi', 'pydantic')"
        " or name.startswith('trainfleet.infra')])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
