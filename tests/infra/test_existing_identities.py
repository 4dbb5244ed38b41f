"""A platform with existing identities creates none, and one with a boundary attaches it to every role."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.infra.azure.platforms import SUBSCRIPTION
from tests.infra.lifecycle import run_lifecycle
from tests.infra.test_existing_network import STACKS
from trainfleet.errors import InputError
from trainfleet.infra.cloud_support import support
from trainfleet.infra.clouds import Cloud
from trainfleet.infra.spec.load import parse_spec

# The simulated provider reads every class of the SDK, the old ones too, and those warn.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

ACCOUNT = "111122223333"
BOUNDARY = f"arn:aws:iam::{ACCOUNT}:policy/boundary"
SECRETS = {"names": ["hf-token"]}
ID = {
    "aws": f"arn:aws:iam::{ACCOUNT}:role/platform/ours-{{}}",
    "gcp": f"ours-{{}}@{STACKS['gcp'][1]['account']}.iam.gserviceaccount.com",
    "azure": f"/subscriptions/{SUBSCRIPTION}/resourceGroups/people/providers"
    "/Microsoft.ManagedIdentity/userAssignedIdentities/ours-{}",
}
CREATED = {
    "aws": ("aws:iam/",),
    "gcp": ("gcp:serviceaccount/account:", "roles/container.defaultNodeServiceAccount"),
    "azure": ("azure-native:managedidentity:UserAssignedIdentity",),
}


def document(cloud: str, **identities: Any) -> dict[str, Any]:
    account = {"account": ACCOUNT} if cloud == "aws" else {}
    return {**STACKS[cloud][1], **account, "secrets": SECRETS, "identities": identities}


def existing(cloud: str) -> dict[str, str]:
    """An identity for each purpose that the platform needs one for."""
    ids = support(Cloud(cloud)).identities
    assert ids is not None
    return {purpose: ID[cloud].format(purpose) for purpose in ids.needed(parse_spec(document(cloud)))}


def settings(cloud: str) -> dict[str, Any]:
    allowed = {"aws:allowedAccountIds": [ACCOUNT]} if cloud == "aws" else {}
    return {**STACKS[cloud][2], **allowed}


@pytest.mark.deep
@pytest.mark.parametrize("cloud", STACKS)
def test_the_platform_uses_the_identities_and_creates_none(root: Path, cloud: str) -> None:
    named = existing(cloud)
    spec = document(cloud, existing=named)
    life = run_lifecycle(root, STACKS[cloud][0], {**settings(cloud), "trainfleet:platform": spec})
    tokens = [each.token for each in life.made]
    assert [token for token in tokens if token.startswith(CREATED[cloud])] == []
    inputs = json.dumps(list(life.inputs.values()), default=str)
    used = {purpose: identity.rpartition("/")[2] for purpose, identity in named.items()}
    assert [purpose for purpose, name in used.items() if name not in inputs] == []
    assert CREATED[cloud][-1] not in inputs
    assert life.left == 0


def test_every_created_role_has_the_boundary(root: Path) -> None:
    spec = document("aws", permission_boundary=BOUNDARY)
    life = run_lifecycle(root, "aws-dev", {**settings("aws"), "trainfleet:platform": spec})
    roles = {name: inputs for name, inputs in life.inputs.items() if "assumeRolePolicy" in inputs}
    assert len(roles) == len(existing("aws"))
    assert {inputs.get("permissionsBoundary") for inputs in roles.values()} == {BOUNDARY}


@pytest.mark.parametrize("cloud", STACKS)
def test_each_needed_identity_has_its_rights(cloud: str) -> None:
    ids = support(Cloud(cloud)).identities
    assert ids is not None
    assert list(ids.rights(parse_spec(document(cloud)))) == list(existing(cloud))


def test_printed_policies_name_keys_by_alias_and_pods_by_account() -> None:
    ids = support(Cloud.AWS).identities
    assert ids is not None
    rights = ids.rights(parse_spec(document("aws")))
    trust = rights["training"]["trust"]["Statement"][0]
    assert trust["Principal"] == {"Service": "pods.eks.amazonaws.com"}
    assert "training" in trust["Condition"]["StringEquals"]["aws:RequestTag/kubernetes-namespace"]
    key = rights["training"]["policy"]["Statement"][-1]
    assert key["Resource"] == [f"arn:aws:kms:us-east-2:{ACCOUNT}:key/*"]
    aliases = key["Condition"]["ForAnyValue:StringEquals"]["kms:ResourceAliases"]
    assert aliases == ["alias/trainfleet/lab/data"]
    assert rights["nodes"]["policy"] is None
    assert "arn:aws:iam::aws:policy/AmazonEKSWorkerNodePolicy" in rights["nodes"]["managed_policies"]


WRONG: list[tuple[str, str, str, str]] = [
    ("aws", "nodes", "arn:aws:iam::111122223333:user/me", "is not the id of a role"),
    ("aws", "nodes", "arn:aws:iam::444455556666:role/nodes", "is of 444455556666"),
    ("aws", "hyperpod", "arn:aws:iam::111122223333:role/hyperpod", "has no effect"),
    ("aws", "trainning", "arn:aws:iam::111122223333:role/t", "did you mean `training`?"),
    ("gcp", "nodes", "ours@example.com", "is not the id of a service account"),
    ("gcp", "nodes", "ours-nodes@another-1.iam.gserviceaccount.com", "is of another-1"),
    ("azure", "cluster", "/subscriptions/x", "is not the id of a managed identity"),
    ("azure", "kubelet", ID["azure"].format("cluster"), "is also the identity of `cluster`"),
]


@pytest.mark.parametrize(("cloud", "purpose", "identity", "message"), WRONG)
def test_a_wrong_identity_is_rejected(cloud: str, purpose: str, identity: str, message: str) -> None:
    with pytest.raises(InputError, match=r"[\s\S]") as caught:
        parse_spec(document(cloud, existing={**existing(cloud), purpose: identity}))
    assert [each.where for each in caught.value.problems] == [f"identities.existing.{purpose}"]
    assert message in f"{caught.value.problems[0].what} {caught.value.problems[0].fix}"


@pytest.mark.parametrize("cloud", STACKS)
def test_all_identities_are_named_or_none(cloud: str) -> None:
    named = existing(cloud)
    del named["nodes" if "nodes" in named else "kubelet"]
    with pytest.raises(InputError, match="is missing, and the platform creates no"):
        parse_spec(document(cloud, existing=named))
