"""The parts of a simulated cloud that need no engine: differences, values, names, uniqueness, what is written
down.
"""

from __future__ import annotations

import base64
import copy
import json
from pathlib import Path

import pytest

from trainfleet.errors import InputError
from trainfleet.rehearsal import simulation
from trainfleet.rehearsal.simulation.changes import changes
from trainfleet.rehearsal.simulation.cloud_object import CloudObject
from trainfleet.rehearsal.simulation.fault_injection import InjectedFaultError
from trainfleet.rehearsal.simulation.kubeconfig import kubeconfig
from trainfleet.rehearsal.simulation.provider import CLOUD_MODELS
from trainfleet.rehearsal.simulation.pulumi_values import (
    UNKNOWN,
    digested,
    has_unknown,
    masked,
    plain,
    secret,
)
from trainfleet.rehearsal.simulation.replacement import Rule, by_hand, join_path, split_path
from trainfleet.rehearsal.simulation.schema import packages
from trainfleet.rehearsal.simulation.state import AlreadyExistsError, Cloud
from trainfleet.rehearsal.steps.selection import replaceable

AWS = CLOUD_MODELS["aws"]


def test_the_simulated_clouds_have_the_same_modules() -> None:
    found = {
        cloud: sorted(file.name for file in (Path(simulation.__file__).parent / cloud).glob("*.py"))
        for cloud in ("aws", "gcp", "azure")
    }
    assert found["aws"] == found["gcp"] == found["azure"] != []


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ({"a": 1}, {"a": 1}, []),
        ({"a": 1}, {"a": 2}, ["a UPDATE"]),
        ({}, {"a": {"b": 1, "c": [1]}}, ["a.b ADD", "a.c[0] ADD"]),
        ({"a": [1, 2]}, {"a": [1]}, ["a[1] DELETE"]),
        ({"a": {"b": 1}}, {}, ["a.b DELETE"]),
        ({"a": {}}, {}, ["a DELETE"]),
        ({"a": UNKNOWN}, {"a": UNKNOWN}, ["a UPDATE"]),
        ({"tags": {"x.y": "1"}}, {"tags": {"x.y": "2"}}, ['tags["x.y"] UPDATE']),
        ({"__defaults": ["name"]}, {"__defaults": []}, []),
    ],
)
def test_differences_are_leaves_with_paths(
    old: dict[str, object], new: dict[str, object], found: list[str]
) -> None:
    assert [f"{join_path(change.path)} {change.kind}" for change in changes(old, new)] == found


@pytest.mark.parametrize(
    ("pattern", "path", "forces"),
    [
        ("name", "name", True),
        ("name", "namePrefix", False),
        ("vpcConfig.subnetIds", "vpcConfig.subnetIds[0]", True),
        ("encryptionConfig[*].provider", "encryptionConfig[3].provider.keyArn", True),
        ("encryptionConfig[*].provider", "encryptionConfig[3].resources[0]", False),
        ("a.b", "a", False),
    ],
)
def test_a_pattern_covers_what_is_below_it(pattern: str, path: str, forces: bool) -> None:
    assert Rule("test", (split_path(pattern),)).forces(split_path(path)) is forces


def test_a_table_entry_without_source_is_refused_with_all_others(tmp_path: Path) -> None:
    file = tmp_path / "replace.toml"
    file.write_text('["aws:a/b:C"]\nreplace = ["name"]\n["aws:a/b:D"]\nsource = "x"\n')
    with pytest.raises(InputError) as caught:
        by_hand(file)
    assert len(caught.value.problems) == 2


def test_secrets_are_wrapped_masked_and_digested() -> None:
    value = {"a": secret("planted"), "b": [UNKNOWN], "c": 2.0}
    assert plain(value) == {"a": "planted", "b": [UNKNOWN], "c": 2}
    assert masked(value) == {"a": "[secret]", "b": ["[unknown]"], "c": 2}
    assert "planted" not in json.dumps(digested(value))
    assert digested(value) == digested({"a": secret("planted"), "b": [UNKNOWN], "c": 2})
    assert has_unknown(value)
    assert not has_unknown(masked(value))


def outputs(
    token: str, inputs: dict[str, object], resource_id: str = "id-1", *, preview: bool = False
) -> dict[str, object]:
    package = packages()["aws"]
    return AWS.outputs(
        package.resource(token), token, inputs, "logical", resource_id, "us-east-2", preview=preview
    )


def test_outputs_are_complete_and_of_the_right_form() -> None:
    made = outputs(
        "aws:eks/cluster:Cluster", {"name": "prod", "roleArn": "arn", "vpcConfig": {"subnetIds": ["a"]}}
    )
    resource = packages()["aws"].resource("aws:eks/cluster:Cluster")
    assert resource is not None
    assert [
        name for name, declared in resource.outputs.items() if declared.required and name not in made
    ] == []
    assert made["arn"] == "arn:aws:eks:us-east-2:111122223333:cluster/prod"
    assert str(made["endpoint"]).startswith("https://")
    assert b"BEGIN CERTIFICATE" in base64.b64decode(made["certificateAuthority"]["data"])  # type: ignore[index]  # an object
    assert made["vpcConfig"]["clusterSecurityGroupId"].startswith("sg-")  # type: ignore[index]  # an object
    assert made["identities"][0]["oidcs"][0]["issuer"].startswith("https://oidc.eks.us-east-2")  # type: ignore[index]  # a list


def test_outputs_of_a_previewed_create_are_unknown_but_for_the_inputs() -> None:
    made = outputs(
        "aws:eks/cluster:Cluster",
        {"name": "prod", "roleArn": "arn", "vpcConfig": {"subnetIds": ["a"]}},
        "",
        preview=True,
    )
    assert made["name"] == "prod"
    assert {made["arn"], made["endpoint"], made["certificateAuthority"]} == {UNKNOWN}
    assert made["vpcConfig"]["vpcId"] == UNKNOWN  # type: ignore[index]  # an object


def test_outputs_depend_on_the_id_alone() -> None:
    first, again, other = (
        outputs("aws:ec2/vpc:Vpc", {"cidrBlock": "10.0.0.0/16"}, each) for each in ("vpc-1", "vpc-1", "vpc-2")
    )
    assert first == again != other


def test_a_secret_input_is_a_secret_output() -> None:
    made = outputs(
        "aws:secretsmanager/secretVersion:SecretVersion", {"secretId": "s", "secretString": secret("planted")}
    )
    assert made["secretString"] == secret("planted")


def test_names_are_synthetic_once_and_kept() -> None:
    token = "aws:s3/bucket:Bucket"
    resource = packages()["aws"].resource(token)
    first = AWS.with_name(resource, token, {}, {}, "Runs", "abcdef0123")
    assert first == {"bucket": "runs-abcdef0", "__defaults": ["bucket"]}
    assert AWS.with_name(resource, token, {}, first, "Runs", "999999999")["bucket"] == "runs-abcdef0"
    assert AWS.with_name(resource, token, {"bucket": "mine"}, first, "Runs", "9") == {"bucket": "mine"}
    assert AWS.with_name(resource, token, {"bucketPrefix": "my-"}, {}, "Runs", "9") == {"bucketPrefix": "my-"}


def test_a_resource_of_a_fixed_name_goes_before_its_replacement_comes() -> None:
    fixed, made_up = {"name": "prod"}, {"name": "prod-1234567", "__defaults": ["name"]}
    assert AWS.delete_first("aws:iam/role:Role", fixed, fixed)
    assert not AWS.delete_first("aws:iam/role:Role", made_up, made_up)
    assert not AWS.delete_first("aws:iam/role:Role", fixed, {"name": "other"})


def test_only_the_identifier_replaces_what_a_kubernetes_provider_made() -> None:
    replaces = CLOUD_MODELS["kubernetes"].config_replaces
    assert (
        replaces({"kubeconfig": "a", "clusterIdentifier": "c"}, {"kubeconfig": "b", "clusterIdentifier": "c"})
        == []
    )
    assert replaces({"clusterIdentifier": "c"}, {"clusterIdentifier": "d"}) == ["clusterIdentifier"]
    assert replaces({"kubeconfig": "a"}, {"kubeconfig": UNKNOWN}) == ["kubeconfig"]


def test_another_active_cluster_replaces_what_a_kubernetes_provider_made() -> None:
    replaces = CLOUD_MODELS["kubernetes"].config_replaces
    before = kubeconfig("one", "person", "https://one.example", "")
    token = {**before, "users": [{"name": "person", "user": {"token": "renewed"}}]}
    moved = kubeconfig("one", "person", "https://two.example", "")
    text = {name: json.dumps(each) for name, each in (("before", before), ("token", token), ("moved", moved))}
    reordered = json.dumps(dict(reversed(before.items())))
    assert replaces({"kubeconfig": text["before"]}, {"kubeconfig": reordered}) == []
    assert replaces({"kubeconfig": text["before"]}, {"kubeconfig": text["token"]}) == []
    compared = CLOUD_MODELS["kubernetes"].config_compared
    assert compared({"kubeconfig": text["before"]}) == compared({"kubeconfig": reordered})
    assert compared({"kubeconfig": text["before"]}) != compared({"kubeconfig": text["token"]})
    assert compared({"kubeconfig": "~/.kube/config"}) == {"kubeconfig": "~/.kube/config"}
    assert replaces({"kubeconfig": text["before"]}, {"kubeconfig": text["moved"]}) == ["kubeconfig"]
    assert replaces({"kubeconfig": "~/.kube/config"}, {"kubeconfig": text["before"]}) == ["kubeconfig"]


def record(urn: str = "urn::a", unique: str = "role|prod", resource_id: str = "prod") -> CloudObject:
    return CloudObject(urn, "aws:iam/role:Role", resource_id, unique, {"name": secret("planted")}, {})


def test_a_physical_name_exists_once() -> None:
    cloud = Cloud()
    cloud.create(record())
    with pytest.raises(AlreadyExistsError, match="prod already exists"):
        cloud.create(record("urn::b", resource_id="other"))


def test_a_fault_is_injected_once() -> None:
    cloud = Cloud()
    cloud.fail_create("urn::a", "no capacity")
    with pytest.raises(InjectedFaultError, match="no capacity"):
        cloud.create(record())
    cloud.create(record())
    assert [op.verb for op in cloud.operations] == ["fail", "create"]


def test_what_exists_is_written_without_secrets(tmp_path: Path) -> None:
    cloud = Cloud()
    cloud.create(record())
    cloud.save(tmp_path / "cloud.json")
    written = (tmp_path / "cloud.json").read_text()
    assert "planted" not in written
    assert json.loads(written)[0]["id"] == "prod"


def test_what_was_listed_stays_as_it_was_and_costs_no_copies_of_its_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cloud = Cloud()
    cloud.create(record())
    with monkeypatch.context() as patched:
        patched.setattr("copy.deepcopy", lambda *_: pytest.fail("every read of a resource lists all of them"))
        (listed,) = cloud.everything()
    before = copy.deepcopy(listed)
    cloud.drift("urn::a", lambda side: side.update(name="by-hand"))
    assert listed == before
    cloud.update("aws:iam/role:Role", "prod", "urn::a", {"name": "new"}, {})
    cloud.delete("aws:iam/role:Role", "prod", "urn::a")
    assert listed == before


def test_something_that_others_follow_is_replaced_first_and_a_cluster_last() -> None:
    def entry(token: str, logical: str, *needs: str, **inputs: str) -> dict[str, object]:
        return {
            "urn": f"urn::{token}::{logical}",
            "type": token,
            "custom": True,
            "inputs": inputs,
            "dependencies": [f"urn::{need}" for need in needs],
        }

    role, topic = "aws:iam/role:Role", "aws:sns/topic:Topic"
    state = [
        entry(topic, "alone", name="alone"),
        entry(role, "followed", name="followed"),
        entry("aws:iam/rolePolicyAttachment:RolePolicyAttachment", "one", f"{role}::followed"),
        entry(role, "cluster", name="cluster"),
        entry("pulumi:providers:kubernetes", "inside", f"{role}::cluster"),
    ]
    rules = {token: Rule("test", (("name",),)) for token in (role, topic)}
    for seed in range(5):
        assert [choice.name for choice in replaceable(state, rules, seed)] == ["followed", "alone", "cluster"]
