"""The bootstrap stacks on the real engine: they keep every policy, and go through their whole life. The command
is that of docs/bootstrap.md.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bootstrap.specs import CLOUDS, ROOT, STACKS
from trainfleet.rehearsal.engine.find import Engine
from trainfleet.rehearsal.engine.sandbox import read_project
from trainfleet.rehearsal.rehearse import RehearsalOptions, rehearse

Trainfleet = Callable[..., subprocess.CompletedProcess[str]]
OUTPUTS = {
    "aws": {"stateUrl", "secretsProvider", "planIdentity", "applyIdentity", "breakGlassIdentity"},
    "gcp": {"identityProvider", "githubIdentityProvider", "gitlabIdentityProvider"},
    "azure": {"tenantId", "subscriptionId"},
}
PROTECTED = {
    "aws": {"ci-state", "ci-state-key", "ci-secrets-key", "ci-plan", "ci-apply", "ci-break-glass"},
    "gcp": {"ci-state", "ci-state-key", "ci-secrets-key", "ci-plan-account", "ci-apply-account", "ci-pool"},
    "azure": {"ci-state-account", "ci-keys-vault", "ci-secrets-key", "ci-plan", "ci-apply"},
}
STATE_URL = {
    "aws": r"s3://[a-z0-9.-]+\?awssdk=v2&region=us-east-2",
    "gcp": r"gs://[a-z0-9._-]+",
    "azure": r"azblob://state\?storage_account=[a-z0-9]{3,24}",
}
SECRETS = {
    "aws": r"awskms:///arn:aws:kms:us-east-2:\d{12}:key/[\w-]+\?awssdk=v2&region=us-east-2",
    "gcp": r"gcpkms://projects/my-project-123456/locations/us-central1/keyRings/[^/]+/cryptoKeys/[^/]+",
    "azure": r"azurekeyvault://[a-z0-9]{3,24}\.vault\.azure\.net/keys/secrets",
}


def test_the_command_of_the_page_checks_the_stack_with_the_policies_of_the_project(
    trainfleet: Trainfleet,
) -> None:
    page = (ROOT / "docs" / "bootstrap.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^trainfleet (rehearse stacks/bootstrap .*)$", page, re.MULTILINE)
    done = trainfleet(*shlex.split(command), "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    steps = {each["name"]: each for each in json.loads(done.stdout)["steps"]}
    assert steps["policies"]["ran"]
    assert steps["policies"]["ok"]


@pytest.mark.deep
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_bootstrap_stack_goes_through_every_step(engine: Engine, tmp_path: Path, cloud: str) -> None:
    outputs = tmp_path / "outputs.json"
    report = rehearse(
        read_project(STACKS, f"bootstrap-{cloud}"),
        engine,
        RehearsalOptions([ROOT / "policies"], seed=7, outputs=outputs),
        subject=cloud,
    )
    assert report.ok, report.problems
    assert report.missing_rules == []
    assert [step.title for step in report.steps if not step.ran] == []
    found = json.loads(outputs.read_text(encoding="utf-8"))
    assert OUTPUTS["aws"] | OUTPUTS[cloud] <= set(found)
    assert all(found.values()), found
    assert re.fullmatch(STATE_URL[cloud], found["stateUrl"]), found
    assert re.fullmatch(SECRETS[cloud], found["secretsProvider"]), found
    (lifted,) = [step.detail for step in report.steps if step.name == "unprotect"]
    for name in PROTECTED[cloud]:
        assert re.search(rf"\b{name}\b", lifted), f"{name} could be destroyed: {lifted}"


@pytest.mark.parametrize("cloud", CLOUDS)
def test_nothing_in_a_bootstrap_is_a_stored_key(cloud: str) -> None:
    """No access key, password or key file is created, and no stack file has a secret."""
    source = "".join(
        file.read_text(encoding="utf-8") for file in (ROOT / "infra" / "bootstrap" / cloud).glob("*.py")
    )
    assert not re.findall(r"\b(AccessKey|serviceaccount\.Key|HmacKey|ServicePrincipalPassword)\(", source)
    assert "secure:" not in (STACKS / f"Pulumi.bootstrap-{cloud}.yaml").read_text(encoding="utf-8")
