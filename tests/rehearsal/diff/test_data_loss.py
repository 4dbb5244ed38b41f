"""The table of losses: every type that stacks use has a row, and what holds data or work is loud."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainfleet.errors import InputError
from trainfleet.rehearsal.diff.data_loss import loss_of, table
from trainfleet.rehearsal.simulation.replacement import by_hand as replacements

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
        table(file)
    assert "[aws:s3/bucket:Bucket]" in str(error.value)
    assert "[aws:x:Y]" in str(error.value)
