"""The permissions of CI are those of the resource types that stacks declare: none less, none more."""

from __future__ import annotations

import json
import re
from fnmatch import fnmatchcase

import pytest

from tests.bootstrap.resource_types import PACKAGES, called, creatable, declared
from tests.bootstrap.specs import CLOUDS, ROOT, spec_of
from trainfleet.infra.aws.iam_documents import Document
from trainfleet.infra.azure.permissions import ROLES
from trainfleet.infra.bootstrap.aws import documents
from trainfleet.infra.bootstrap.permissions import READ, WRITE, needed, rows

OPTIONS = {"aws": ("hyperpod", "network-hub", "placement-group"), "gcp": ("network-hub",)}
POLICY_LIMIT = 6144
"""Characters of a managed policy, without white space (IAM user guide, quotas)."""


def types_of(cloud: str) -> dict[str, str]:
    """Each resource type in the table, and the option that it needs."""
    return {
        token: row.get("option", "")
        for token, row in rows(cloud).items()
        if token.startswith(f"{PACKAGES[cloud]}:")
    }


@pytest.mark.parametrize("cloud", CLOUDS)
def test_ci_may_apply_what_the_stacks_declare_and_nothing_else(cloud: str) -> None:
    always = {token for token, option in types_of(cloud).items() if not option}
    assert always == declared(cloud)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("cloud", CLOUDS)
def test_an_option_adds_what_only_other_platforms_can_create(cloud: str) -> None:
    optional = {token for token, option in types_of(cloud).items() if option}
    assert optional == creatable(cloud) - declared(cloud)
    assert {option for option in types_of(cloud).values() if option} <= set(
        OPTIONS.get(cloud, ("network-hub",))
    )


@pytest.mark.parametrize("cloud", CLOUDS)
def test_every_function_that_the_code_calls_is_permitted(cloud: str) -> None:
    functions = {name for name in rows(cloud) if not name.startswith(f"{PACKAGES[cloud]}:")}
    assert functions == called(cloud)


@pytest.mark.parametrize("cloud", CLOUDS)
def test_a_new_type_in_a_stack_is_noticed(cloud: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison is with the stacks: without the row of a type, it fails."""
    removed = sorted(declared(cloud))[0]
    monkeypatch.delitem(rows(cloud), removed)
    with pytest.raises(AssertionError):
        test_ci_may_apply_what_the_stacks_declare_and_nothing_else(cloud)


@pytest.mark.parametrize("cloud", CLOUDS)
def test_plan_changes_nothing(cloud: str) -> None:
    verbs = re.compile(r"(:(Get|Describe|List|View)|\.(get|list)\w*$|/read$)")
    reads = needed(cloud, READ, OPTIONS.get(cloud, ("network-hub",)))
    assert [each for each in reads if not verbs.search(each)] == []
    assert not set(reads) & set(needed(cloud, WRITE)) - {"compute.instanceGroupManagers.get"}


def test_each_policy_fits_and_every_permission_reaches_it() -> None:
    spec = spec_of("aws", options=OPTIONS["aws"], platforms=[f"platform-number-{n}" for n in range(5)])
    written = documents.write(spec)
    for group, document in {**written, "read": documents.read(spec)}.items():
        assert len(json.dumps(document, separators=(",", ":"))) <= POLICY_LIMIT, group
    granted = {action for each in written.values() for action in actions(each)}
    assert granted == set(needed("aws", WRITE, OPTIONS["aws"]))
    assert set(actions(documents.read(spec))) == set(needed("aws", READ, OPTIONS["aws"]))


def actions(document: Document) -> list[str]:
    return [action for statement in document["Statement"] for action in statement["Action"]]


def reaches(document: Document, action: str, resource: str) -> bool:
    """Whether a statement allows an action on a resource, whatever its conditions."""
    return any(
        action in statement["Action"] and any(fnmatchcase(resource, each) for each in statement["Resource"])
        for statement in document["Statement"]
    )


@pytest.mark.parametrize(
    "action", ["iam:UpdateAssumeRolePolicy", "iam:PutRolePolicy", "iam:DeleteRole", "iam:PassRole"]
)
def test_ci_cannot_change_its_own_roles(action: str) -> None:
    identity = documents.write(spec_of("aws"))["identity"]
    role = "arn:aws:iam::111122223333:role/"
    assert reaches(identity, action, f"{role}prod-node-role-1a2b3c4")
    assert not any(reaches(identity, action, f"{role}ci-{who}") for who in ("plan", "apply", "break-glass"))


def test_ci_cannot_make_another_key_its_own_with_a_tag() -> None:
    """Rights on keys follow their tag, so it may be set on new keys alone."""
    for statement in documents.write(spec_of("aws"))["data"]["Statement"]:
        if "kms:TagResource" in statement["Action"]:
            conditions = statement["Condition"]
            tag = documents.PLATFORM_TAG
            assert conditions.get("Null") == {tag: "true"} or tag in conditions["StringEquals"]
            continue
        changes = [each for each in statement["Action"] if each.startswith("kms:Put")]
        assert not changes or documents.PLATFORM_TAG in statement["Condition"]["StringEquals"]


def test_ci_attaches_the_policies_that_platforms_attach() -> None:
    source = "".join(
        (ROOT / "infra" / "aws" / name).read_text(encoding="utf-8") for name in ("roles.py", "identity.py")
    )
    used = set(re.findall(r'"((?:service-role/)?Amazon\w+)"', source))
    assert set(documents.MANAGED) == used


def test_a_boundary_is_required_of_every_role_that_ci_creates() -> None:
    boundary = "arn:aws:iam::111122223333:policy/platforms"
    identity = documents.write(spec_of("aws", permission_boundary=boundary))["identity"]
    for statement in identity["Statement"]:
        limited = set(statement["Action"]) & set(documents.BOUNDED)
        if limited and not any("aws-service-role" in each for each in statement["Resource"]):
            assert statement["Condition"]["StringEquals"]["iam:PermissionsBoundary"] == boundary


def test_plan_writes_only_locks() -> None:
    state = documents.state("arn:aws:s3:::state", "key", "secrets", ".pulumi/locks/")
    assert reaches(state, "s3:PutObject", "arn:aws:s3:::state/.pulumi/locks/organization/p/s/1.json")
    assert not reaches(state, "s3:PutObject", "arn:aws:s3:::state/.pulumi/stacks/p/s.json")
    assert not reaches(state, "s3:DeleteObject", "arn:aws:s3:::state/.pulumi/stacks/p/s.json")
    assert "kms:Encrypt" not in actions(state)


def test_ci_on_azure_grants_only_the_roles_of_platforms() -> None:
    source = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "infra" / "azure").glob("*.py"))
    granted = {name for name in ROLES if source.count(f'"{name}"') > 1}
    assert granted == set(ROLES), "a role that no platform grants"
