"""The flat program has the resources of a state, in the same order, with the same graph and unknowns."""

from __future__ import annotations

import ast
from typing import Any

from benchmarks.flat_program import (
    Resource,
    differences,
    mask_generated,
    resources,
    source,
    write_program,
)

URN = "urn:pulumi:prod::trainfleet::{}::{}"
KEY = URN.format("aws:kms/key:Key", "prod-key")
ROLE = URN.format("aws:iam/role:Role", "prod-role")
PROVIDER = URN.format("pulumi:providers:kubernetes", "prod-kubernetes")
DEFAULT = URN.format("pulumi:providers:aws", "default_7_51_1")
SECRET = {"4dabf18193072939515e22adb298388d": "1b47061264138c4ac30d75fd1eb44270", "ciphertext": "v1:abc"}


def entry(urn: str, inputs: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A resource in the form of the engine's state."""
    return {
        "urn": urn,
        "type": urn.split("::")[2],
        "custom": True,
        "inputs": inputs,
        "provider": f"{DEFAULT}::1234",
        **more,
    }


STATE: list[dict[str, Any]] = [
    {"urn": URN.format("pulumi:pulumi:Stack", "trainfleet-prod"), "type": "pulumi:pulumi:Stack"},
    {
        "urn": URN.format("trainfleet:aws:Cluster", "prod-cluster"),
        "type": "trainfleet:aws:Cluster",
        "inputs": {},
    },
    entry(DEFAULT, {"region": "us-east-2"}, provider=""),
    entry(KEY, {"enableKeyRotation": True, "description": "data"}, protect=True, retainOnDelete=True),
    entry(
        ROLE,
        {"assumeRolePolicy": "{}", "name": "prod-role-1a2b3c4", "__defaults": ["name"]},
        dependencies=[KEY],
    ),
    entry(
        PROVIDER,
        {"kubeconfig": SECRET, "clusterIdentifier": "prod", "version": "4.34.2"},
        provider="",
        propertyDependencies={"kubeconfig": [ROLE]},
    ),
    entry(
        URN.format("aws:eks/podIdentityAssociation:PodIdentityAssociation", "prod-trainer"),
        {
            "roleArn": "arn:role",
            "clusterName": "prod",
            "namespace": "training",
            "serviceAccount": "trainer",
            "__defaults": [],
        },
        propertyDependencies={"roleArn": [ROLE], "clusterName": [KEY], "namespace": []},
        dependencies=[KEY, ROLE],
    ),
    entry(
        URN.format("kubernetes:core/v1:Namespace", "prod-training"),
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "training", "labels": {"a": "b"}}},
        provider=f"{PROVIDER}::5678",
    ),
    entry(
        URN.format("kubernetes:apiextensions.k8s.io/v1:CustomResourceDefinition", "prod-crd"),
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": "x"},
            "spec": {"group": "ray.io"},
        },
        provider=f"{PROVIDER}::5678",
    ),
    entry(
        URN.format("kubernetes:kueue.x-k8s.io/v1beta1:WorkloadPriorityClass", "prod-high"),
        {
            "apiVersion": "kueue.x-k8s.io/v1beta1",
            "kind": "WorkloadPriorityClass",
            "metadata": {"name": "high"},
            "value": 100,
        },
        provider=f"{PROVIDER}::5678",
    ),
]
EARLY = {
    ("aws:eks/podIdentityAssociation:PodIdentityAssociation", "prod-trainer"): ["clusterName", "namespace"]
}


def calls() -> dict[str, tuple[str, dict[str, str]]]:
    """The flat program's calls: class and arguments by logical name."""
    tree = ast.parse(source(resources(STATE, EARLY)))
    found = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            arguments = {str(keyword.arg): ast.unparse(keyword.value) for keyword in node.value.keywords}
            if len(node.value.args) == 3:  # without a class: type, name and inputs
                arguments |= dict.fromkeys(["token"], ast.literal_eval(node.value.args[0])) | {
                    "inputs": ast.unparse(node.value.args[2])
                }
            found[ast.literal_eval(node.value.args[-2 if len(node.value.args) == 3 else 0])] = (
                ast.unparse(node.value.func),
                arguments,
            )
    return found


def test_the_program_registers_only_custom_resources_in_the_order_of_the_state() -> None:
    assert list(calls()) == [
        "prod-key",
        "prod-role",
        "prod-kubernetes",
        "prod-trainer",
        "prod-training",
        "prod-crd",
        "prod-high",
    ]


def test_a_generated_name_is_omitted() -> None:
    cls, arguments = calls()["prod-role"]
    assert cls == "pulumi_aws.iam.Role"
    assert set(arguments) == {"assume_role_policy", "opts"}


def test_a_value_depends_on_the_same_resources_and_is_known_as_early() -> None:
    _, arguments = calls()["prod-trainer"]
    assert arguments["role_arn"] == "after('arn:role', r1)"
    assert arguments["cluster_name"] == "at_once('prod', r0)"
    assert arguments["namespace"] == "'training'"
    assert "opts" not in arguments, "both dependencies are in the values"


def test_options_are_kept() -> None:
    assert calls()["prod-key"][1]["opts"] == "pulumi.ResourceOptions(protect=True, retain_on_delete=True)"
    assert calls()["prod-role"][1]["opts"] == "pulumi.ResourceOptions(depends_on=[r0])"
    assert calls()["prod-training"][1]["opts"] == "pulumi.ResourceOptions(provider=r2)"


def test_a_provider_keeps_its_settings_without_secrets() -> None:
    cls, arguments = calls()["prod-kubernetes"]
    assert cls == "pulumi_kubernetes.Provider"
    assert arguments == {"kubeconfig": "after('secret', r1)", "cluster_identifier": "'prod'"}


def test_a_typed_class_omits_its_kind_and_a_definition_uses_the_untyped_class() -> None:
    cls, arguments = calls()["prod-training"]
    assert cls == "pulumi_kubernetes.core.v1.Namespace"
    assert set(arguments) == {"metadata", "opts"}
    cls, arguments = calls()["prod-crd"]
    assert cls == "pulumi_kubernetes.apiextensions.CustomResource"
    assert arguments["api_version"] == "'apiextensions.k8s.io/v1'"
    assert arguments["kind"] == "'CustomResourceDefinition'"


def test_a_kind_without_a_class_keeps_all_inputs() -> None:
    cls, arguments = calls()["prod-high"]
    assert cls == "pulumi.CustomResource"
    assert arguments["token"] == "kubernetes:kueue.x-k8s.io/v1beta1:WorkloadPriorityClass"
    assert ast.literal_eval(arguments["inputs"])["value"] == 100
    assert arguments["opts"] == "pulumi.ResourceOptions(provider=r2)"


def test_the_folder_is_a_pulumi_project(tmp_path: Any) -> None:
    write_program(tmp_path / "flat", resources(STATE, EARLY))
    assert {path.name for path in (tmp_path / "flat").iterdir()} == {
        "Pulumi.yaml",
        "Pulumi.flat.yaml",
        "__main__.py",
        "everything.py",
    }
    compile((tmp_path / "flat" / "everything.py").read_text(), "everything.py", "exec")


def test_differences_between_plans_are_reported() -> None:
    one = {("aws:kms/key:Key", "k"): {"description": "data", "policy": "role-1a2b3c4/x"}}
    assert (
        differences(one, {("aws:kms/key:Key", "k"): {"description": "data", "policy": "role-fedcba9/x"}})
        == []
    )
    (line,) = differences(
        one, {("aws:kms/key:Key", "k"): {"description": "logs", "policy": "role-1a2b3c4/x"}}
    )
    assert "aws:kms/key:Key k" in line
    assert differences(one, {}) == ["only in one of them: aws:kms/key:Key k"]


def test_only_generated_suffixes_of_names_are_ignored() -> None:
    assert mask_generated("prod-role-1a2b3c4") == mask_generated("prod-role-4c3b2a1")
    assert mask_generated("vpc-0123456789") != mask_generated("vpc-9876543210")
    assert mask_generated("prod-role") != mask_generated("dev-role")


def test_the_name_of_a_resource_is_the_end_of_its_urn() -> None:
    assert Resource(KEY, "aws:kms/key:Key", {}, {}, [], "", False, False).name == "prod-key"
