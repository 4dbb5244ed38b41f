"""Names that a cloud keeps after a deletion: each rule with a wrong and a right program, by record."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.rehearsal.relation_cases import record
from trainfleet.rehearsal.engine.find import Engine
from trainfleet.rehearsal.engine.sandbox import read_project
from trainfleet.rehearsal.rehearse import rehearse
from trainfleet.rehearsal.report import Step
from trainfleet.rehearsal.simulation.cloud_object import CloudObject
from trainfleet.rehearsal.simulation.state import Cloud, RefusedError
from trainfleet.rehearsal.simulation.stateful_rules import rules
from trainfleet.rehearsal.steps import selection
from trainfleet.rehearsal.steps.session import APPLY, RehearsalOptions, rehearsal_session

VAULT = "azure-native:keyvault:Vault"
HSM = "azure-native:keyvault:ManagedHsm"
API = "azure-native:apimanagement:ApiManagementService"
AI = "azure-native:cognitiveservices:Account"
STORE = "azure-native:appconfiguration:ConfigurationStore"
POOL = "gcp:iam/workloadIdentityPool:WorkloadIdentityPool"
PROVIDER = "gcp:iam/workloadIdentityPoolProvider:WorkloadIdentityPoolProvider"
RING, KEY = "gcp:kms/keyRing:KeyRing", "gcp:kms/cryptoKey:CryptoKey"
LOGS = "gcp:logging/projectBucketConfig:ProjectBucketConfig"
PROJECT = "gcp:organizations/project:Project"
SECRET, BUCKET = "aws:secretsmanager/secret:Secret", "aws:s3/bucket:Bucket"


def made(token: str, **inputs: Any) -> CloudObject:
    return record(token, "/".join(str(each) for each in inputs.values()), **inputs)


REFUSED = {
    "a vault, also in another region and group": (
        made(VAULT, resourceGroupName="a", vaultName="Lab", location="eastus"),
        made(VAULT, resourceGroupName="b", vaultName="lab", location="westus"),
        "the name lab of ",
    ),
    "an HSM": (made(HSM, name="lab"), made(HSM, name="lab"), "recover the HSM"),
    "an API service": (made(API, serviceName="lab"), made(API, serviceName="lab"), "48 hours"),
    "an AI account": (
        made(AI, resourceGroupName="a", accountName="lab"),
        made(AI, resourceGroupName="a", accountName="lab"),
        "properties.restore",
    ),
    "a configuration store": (
        made(STORE, configStoreName="lab", sku={"name": "standard"}),
        made(STORE, configStoreName="lab", sku={"name": "standard"}),
        "recover the store",
    ),
    "an identity pool": (
        made(POOL, workloadIdentityPoolId="ci"),
        made(POOL, workloadIdentityPoolId="ci"),
        "about 30 days",
    ),
    "a provider of an identity pool": (
        made(PROVIDER, workloadIdentityPoolId="ci", workloadIdentityPoolProviderId="git"),
        made(PROVIDER, workloadIdentityPoolId="ci", workloadIdentityPoolProviderId="git"),
        "the name git of ",
    ),
    "a key ring": (
        made(RING, location="us-east1", name="lab"),
        made(RING, location="us-east1", name="lab"),
        "the provider deletes no key ring",
    ),
    "a key": (made(KEY, keyRing="r/a", name="k"), made(KEY, keyRing="r/a", name="k"), "import the key"),
    "a log bucket": (
        made(LOGS, location="us", bucketId="pods"),
        made(LOGS, location="us", bucketId="pods"),
        "after 7 days",
    ),
    "a project": (made(PROJECT, projectId="lab-1"), made(PROJECT, projectId="lab-1"), "restore the project"),
    "a secret with a recovery window": (
        made(SECRET, name="lab/token"),
        made(SECRET, name="lab/token", recoveryWindowInDays=0),
        "recovery window of 7 to 30 days",
    ),
    "a bucket in another region": (
        made(BUCKET, bucket="lab", region="us-east-1"),
        made(BUCKET, bucket="lab", region="us-west-2"),
        "put the region into the name",
    ),
}
ALLOWED = {
    "a vault with another name": (made(VAULT, vaultName="lab"), made(VAULT, vaultName="lab2")),
    "a vault that is recovered": (
        made(VAULT, vaultName="lab"),
        made(VAULT, vaultName="lab", properties={"createMode": "recover"}),
    ),
    "an HSM that is recovered": (
        made(HSM, name="lab"),
        made(HSM, name="lab", properties={"createMode": "recover"}),
    ),
    "an API service that is restored": (
        made(API, serviceName="lab"),
        made(API, serviceName="lab", restore=True),
    ),
    "an AI account in another group": (
        made(AI, resourceGroupName="a", accountName="lab"),
        made(AI, resourceGroupName="b", accountName="lab"),
    ),
    "a free configuration store": (
        made(STORE, configStoreName="lab", sku={"name": "free"}),
        made(STORE, configStoreName="lab", sku={"name": "standard"}),
    ),
    "a pool with another id": (
        made(POOL, workloadIdentityPoolId="ci"),
        made(POOL, workloadIdentityPoolId="ci2"),
    ),
    "a provider of another pool": (
        made(PROVIDER, workloadIdentityPoolId="ci", workloadIdentityPoolProviderId="git"),
        made(PROVIDER, workloadIdentityPoolId="cd", workloadIdentityPoolProviderId="git"),
    ),
    "a key ring in another location": (
        made(RING, location="us-east1", name="lab"),
        made(RING, location="us-west1", name="lab"),
    ),
    "a key of another ring": (made(KEY, keyRing="r/a", name="k"), made(KEY, keyRing="r/b", name="k")),
    "a log bucket in another location": (
        made(LOGS, location="us", bucketId="pods"),
        made(LOGS, location="eu", bucketId="pods"),
    ),
    "a project with another id": (made(PROJECT, projectId="lab-1"), made(PROJECT, projectId="lab-2")),
    "a secret without a recovery window": (
        made(SECRET, name="lab/token", recoveryWindowInDays=0),
        made(SECRET, name="lab/token"),
    ),
    "a secret in another region": (
        made(SECRET, name="lab/token", region="us-east-1"),
        made(SECRET, name="lab/token", region="us-west-2"),
    ),
    "a bucket in the same region": (made(BUCKET, bucket="lab"), made(BUCKET, bucket="lab")),
    "an alias of a key, whose name is free at once": (
        made("aws:kms/alias:Alias", name="alias/lab"),
        made("aws:kms/alias:Alias", name="alias/lab"),
    ),
    "a custom role, which the provider undeletes": (
        made("gcp:projects/iAMCustomRole:IAMCustomRole", roleId="lab"),
        made("gcp:projects/iAMCustomRole:IAMCustomRole", roleId="lab"),
    ),
}


def without(gone: CloudObject) -> Cloud:
    """A cloud in which a resource was created and deleted."""
    cloud = Cloud()
    cloud.create(gone)
    cloud.delete(gone.token, gone.id, gone.urn)
    return cloud


@pytest.mark.parametrize("name", REFUSED)
def test_a_name_that_is_kept_cannot_be_used_again(name: str) -> None:
    gone, new, reason = REFUSED[name]
    with pytest.raises(RefusedError, match="which was deleted, is still taken") as caught:
        without(gone).create(new)
    assert reason in str(caught.value)


@pytest.mark.parametrize("name", ALLOWED)
def test_a_name_that_is_free_can_be_used_again(name: str) -> None:
    gone, new = ALLOWED[name]
    without(gone).create(new)


def test_every_rule_has_a_wrong_program() -> None:
    assert {new.token for _, new, _ in REFUSED.values()} == set(rules()["kept_name"])


RINGS = 'gcp.kms.KeyRing("ring", name={name}, location="us-east1", project="lab")\n'
SECRETS = 'aws.secretsmanager.Secret("token", name="lab/token", recovery_window_in_days={days})\n'


def test_an_apply_after_a_destroy_hears_of_a_kept_name(
    engine: Engine, program: Callable[[str], Path]
) -> None:
    report = rehearse(
        read_project(program("import pulumi_gcp as gcp\n" + RINGS.format(name='"lab"'))), engine
    )
    assert [step.name for step in report.steps if not step.ok] == ["again"]
    assert any("the provider deletes no key ring" in str(problem) for problem in report.problems)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("code", "ran"),
    [("import pulumi_gcp as gcp\n" + RINGS.format(name="None"), True), (SECRETS.format(days=0), False)],
    ids=["a generated name", "a name that is free at once"],
)
def test_an_apply_after_a_destroy_with_free_names(
    engine: Engine, program: Callable[[str], Path], code: str, ran: bool
) -> None:
    report = rehearse(read_project(program(code)), engine)
    assert report.ok, report.problems
    assert ("again" in [step.name for step in report.steps if step.ran]) == ran


VAULTS = """import pulumi_azure_native as azure
settings = {"tenant_id": "72f988bf-86f1-41af-91ab-2d7cd011db47", "sku": {"family": "A", "name": "standard"}}
azure.keyvault.Vault("vault", vault_name="labkeys", resource_group_name="a", properties=settings)
"""
BUCKETS = 'aws.s3.Bucket("bucket", bucket="lab-data", region="us-east-1")\n'


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("code", "token", "change", "reason"),
    [
        (VAULTS, VAULT, ("resourceGroupName", "b"), "the name labkeys of vault, which was deleted"),
        (BUCKETS, BUCKET, ("region", "us-west-2"), "put the region into the name"),
        (SECRETS.format(days=7), SECRET, ("name", "lab/token-2"), ""),
    ],
    ids=["a vault in another group", "a bucket in another region", "a secret with another name"],
)
def test_a_replacement_under_a_kept_name_is_refused(
    engine: Engine,
    program: Callable[[str], Path],
    code: str,
    token: str,
    change: tuple[str, str],
    reason: str,
) -> None:
    path, value = change
    with rehearsal_session(read_project(program(code)), engine, RehearsalOptions()) as r:
        assert r.run(Step("apply", "apply"), *APPLY).ok
        urn = next(each["urn"] for each in r.resources() if each["type"] == token)
        r.programs.changes = [selection.Choice(urn, token, (path,), value).as_change()]
        replaced = r.run(Step("apply", "apply"), *APPLY)
        assert replaced.ok == (not reason)
        assert reason in str(replaced.errors)
