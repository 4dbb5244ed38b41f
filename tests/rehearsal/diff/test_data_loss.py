"""The table of losses: every type that stacks use has a row, and what holds data or work is loud."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainfleet.errors import InputError
from trainfleet.rehearsal.diff import compare
from trainfleet.rehearsal.diff.data_loss import loss_of, table
from trainfleet.rehearsal.simulation.replacement import by_hand as replacements
from trainfleet.rehearsal.simulation.schema import packages

LOUD = {
    "aws:s3/bucket:Bucket": "data",
    "aws:fsx/lustreFileSystem:LustreFileSystem": "data",
    "aws:kms/key:Key": "keys",
    "aws:eks/cluster:Cluster": "data",
    "aws:eks/nodeGroup:NodeGroup": "work",
    "aws:ec2/eip:Eip": "addresses",
    "aws:ec2/subnet:Subnet": "addresses",
    "aws:rds/instance:Instance": "data",
    "aws:secretsmanager/secret:Secret": "secrets",
    "aws:ecr/repository:Repository": "data",
    "gcp:storage/bucket:Bucket": "data",
    "gcp:filestore/instance:Instance": "data",
    "gcp:kms/cryptoKey:CryptoKey": "keys",
    "gcp:container/cluster:Cluster": "data",
    "gcp:container/nodePool:NodePool": "work",
    "gcp:compute/address:Address": "addresses",
    "gcp:compute/subnetwork:Subnetwork": "addresses",
    "gcp:secretmanager/secret:Secret": "secrets",
    "gcp:artifactregistry/repository:Repository": "data",
    "azure-native:storage:StorageAccount": "data",
    "azure-native:storage:BlobContainer": "data",
    "azure-native:keyvault:Vault": "keys",
    "azure-native:keyvault:Key": "keys",
    "azure-native:containerservice:ManagedCluster": "data",
    "azure-native:containerservice:AgentPool": "work",
    "azure-native:network:PublicIPAddress": "addresses",
    "azure-native:network:Subnet": "addresses",
    "azure-native:containerregistry:Registry": "data",
    "azure-native:storagecache:AmlFilesystem": "data",
    "kubernetes:core/v1:Namespace": "data",
    "kubernetes:core/v1:PersistentVolumeClaim": "data",
    "kubernetes:apiextensions.k8s.io/v1:CustomResourceDefinition": "data",
}
QUIET = (
    "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule",
    "aws:iam/rolePolicy:RolePolicy",
    "kubernetes:core/v1:ConfigMap",
)


@pytest.mark.parametrize("token", LOUD)
def test_what_cannot_be_brought_back_is_loud(token: str) -> None:
    loss = loss_of(token)
    assert loss is not None
    assert loss.loud
    assert LOUD[token] in loss.kinds


@pytest.mark.parametrize("token", QUIET)
def test_what_the_next_apply_recreates_is_not_loud(token: str) -> None:
    loss = loss_of(token)
    assert loss is not None
    assert not loss.loud


NOT_SETTINGS = (
    "aws:ec2/capacityBlockReservation:CapacityBlockReservation",
    "aws:s3/directoryBucket:DirectoryBucket",
    "aws:kms/replicaKey:ReplicaKey",
    "aws:kms/externalKey:ExternalKey",
    "aws:autoscaling/group:Group",
    "gcp:compute/snapshot:Snapshot",
    "gcp:compute/image:Image",
    "gcp:compute/regionDisk:RegionDisk",
    "gcp:compute/instanceGroupManager:InstanceGroupManager",
    "azure-native:storage:Table",
    "azure-native:storage:Queue",
    "azure-native:storage:Blob",
    "kubernetes:postgresql.cnpg.io/v1:Cluster",
)
"""Members of families of settings that hold data, keys, paid capacity or work."""


@pytest.mark.parametrize("token", NOT_SETTINGS)
def test_a_family_of_settings_does_not_silence_what_is_none(token: str) -> None:
    change = compare.deletions(
        [{"urn": f"urn:pulumi:one::tiny::{token}::it", "type": token, "custom": True, "id": "it-1"}]
    )[0]
    assert change.destructive


def test_a_wildcard_that_silences_a_family_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "losses.toml"
    file.write_text('["aws:ec2/*"]\nloses = ["nothing"]\nwhy = "a setting of the network"\n')
    with pytest.raises(InputError, match=r"aws:ec2/\*.*silences types that nobody has named"):
        table(file, None)


def test_two_rows_for_one_type_are_refused(tmp_path: Path) -> None:
    row = 'loses = ["data"]\nwhy = "everything in it"\n'
    (tmp_path / "rows.toml").write_text(f'["aws:x/y:Y"]\n{row}')
    (tmp_path / "groups.toml").write_text(f'[[group]]\n{row}types = ["aws:x/y:Y"]\n')
    with pytest.raises(InputError, match="has two rows"):
        table(tmp_path / "rows.toml", tmp_path / "groups.toml")


def test_a_type_that_no_row_names_is_a_loss_that_is_not_known() -> None:
    assert loss_of("aws:ec2/somethingNew:SomethingNew") is None
    assert loss_of("kubernetes:example.com/v1:Database") is None


def test_a_version_in_the_token_changes_nothing() -> None:
    assert loss_of("azure-native:network/v20230601:Subnet") == loss_of("azure-native:network:Subnet")
    assert loss_of("kubernetes:apps/v1beta2:Deployment") == loss_of("kubernetes:apps/v1:Deployment")


def test_every_named_type_exists_in_its_sdk() -> None:
    found = packages()
    for token in table():
        package = token.split(":")[0]
        if package in ("aws", "gcp", "azure-native") and not token.endswith("*"):
            assert token in found[package].classes or token in OTHER_VERSIONS, token


OTHER_VERSIONS = {
    token
    for token in table()
    if token.startswith(("azure-native:insights:", "gcp:serviceaccount/", "gcp:serviceAccount/"))
}
"""Names in earlier SDKs, which are still in the state of stacks."""


def test_every_type_that_can_be_replaced_has_a_row() -> None:
    assert [token for token in replacements() if loss_of(token) is None] == []


def test_reasons_are_sentences_for_a_reviewer() -> None:
    assert [token for token, loss in table().items() if len(loss.why) < 8 or loss.why.endswith(".")] == []


def test_a_row_without_its_reason_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "losses.toml"
    file.write_text(
        '["aws:s3/bucket:Bucket"]\nloses = ["data"]\n["aws:x:Y"]\nloses = ["gold"]\nwhy = "shiny"\n'
    )
    with pytest.raises(InputError) as error:
        table(file, None)
    assert "[aws:s3/bucket:Bucket]" in str(error.value)
    assert "[aws:x:Y]" in str(error.value)
