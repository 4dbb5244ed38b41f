"""docs/secrets.md and the pages of the first apply use the names under which the platforms create secrets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.pages import ROOT
from trainfleet.infra.aws import layout
from trainfleet.infra.gcp.secrets import secret_name
from trainfleet.infra.spec.load import load_stack
from trainfleet.training.launch.remote.secret_variables import LIBRARY_VARIABLES, secret_variables

SECRETS = ROOT / "docs" / "secrets.md"
ROW = re.compile(r"^\| `(?P<name>[a-z-]+)` \| (?P<variables>[^|]+) \|", re.MULTILINE)


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def test_the_table_has_the_variables_that_pods_get_and_every_exception() -> None:
    table = {
        found["name"]: re.findall(r"`(\w+)`", found["variables"])
        for found in ROW.finditer(page("secrets.md"))
    }
    assert table.keys() >= LIBRARY_VARIABLES.keys()
    for name, shown in table.items():
        assert [each["name"] for each in secret_variables([name])] == shown


@pytest.mark.parametrize(("file", "platform"), [("secrets.md", "prod"), ("first-apply/aws.md", "dev")])
def test_the_commands_of_aws_write_the_secret_of_the_stack(file: str, platform: str) -> None:
    (written,) = set(re.findall(r"--secret-id (\S+)", page(file)))
    spec = load_stack(f"aws-{platform}", ROOT)
    assert written in {layout.secret_name(spec, name) for name in spec.secrets.names}
    regions = set(re.findall(r"put-secret-value --region (\S+)", page(file)))
    assert regions == {spec.region}


@pytest.mark.parametrize(("file", "platform"), [("secrets.md", "prod"), ("first-apply/gcp.md", "dev")])
def test_the_commands_of_google_cloud_write_the_secret_of_the_stack(file: str, platform: str) -> None:
    (written,) = set(re.findall(r"gcloud secrets versions add (\S+)", page(file)))
    spec = load_stack(f"gcp-{platform}", ROOT)
    assert written in {secret_name(spec, name) for name in spec.secrets.names}


@pytest.mark.parametrize(("file", "platform"), [("secrets.md", "prod"), ("first-apply/azure.md", "dev")])
def test_the_commands_of_azure_find_the_vault_of_the_stack_and_write_a_name_of_its_spec(
    file: str, platform: str
) -> None:
    """The tag `Name` of a resource is its name in the stack (infra/component.py)."""
    (vault,) = set(re.findall(r"tags\.Name=='([^']+-secrets-vault)'", page(file)))
    urns = (Path(ROOT) / "tests" / "infra" / "urns" / f"azure-{platform}.txt").read_text(encoding="utf-8")
    assert re.search(rf"keyvault:Vault::{re.escape(vault)}$", urns, re.MULTILINE)
    (written,) = set(re.findall(r"keyvault secret set .*--name (\S+)", page(file)))
    assert written in load_stack(f"azure-{platform}", ROOT).secrets.names
