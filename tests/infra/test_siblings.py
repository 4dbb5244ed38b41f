"""The cloud folders have the same files, and the same classes with the same constructors."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from trainfleet.infra.cloud_support import support
from trainfleet.infra.clouds import Cloud

INFRA = Path(__file__).resolve().parents[2] / "infra"
EVERY_CLOUD = {"__init__", "build", "support", "validation"}
CREATES_CLUSTER = {
    "account",
    "allocatable",
    "budget",
    "cluster",
    "costs",
    "filesystem",
    "foundation",
    "identity",
    "keys",
    "layout",
    "logs",
    "network",
    "node_config",
    "node_pools",
    "preflight",
    "preflight_answers",
    "registry",
    "secrets",
    "storage",
    "validation_pools",
}
OWN = {
    Cloud.AWS: {
        "addons",
        "asg_lookup",
        "buckets",
        "hyperpod",
        "hyperpod_request",
        "iam_documents",
        "permissions",
        "roles",
    },
    Cloud.GCP: {"apis", "compute_classes", "fabric", "machine_zones"},
    Cloud.AZURE: {"firewall", "group", "permissions", "sizes", "storage_accounts", "vaults", "workspace"},
    Cloud.LOCAL: {"kubeconfig"},
}
"""What only this cloud has."""
CLASSES = {
    ("budget", "Budget"): ("spec", "budget"),
    ("cluster", "Cluster"): ("spec", "foundation"),
    ("filesystem", "Lustre"): ("spec", "shared", "foundation"),
    ("foundation", "Foundation"): None,
    ("identity", "Identity"): ("spec",),
    ("identity", "PodIdentities"): ("spec", "cluster", "identity"),
    ("keys", "Keys"): ("spec",),
    ("network", "Network"): ("spec",),
    ("node_pools", "GpuPools"): ("spec", "foundation", "cluster"),
    ("node_pools", "SystemPool"): ("spec", "foundation", "cluster"),
    ("registry", "Registry"): ("spec",),
    ("secrets", "Secrets"): ("spec",),
    ("storage", "Storage"): ("spec",),
}
"""First arguments of each class's constructor."""
CLOUDS = [cloud for cloud in Cloud if support(cloud).creates_cluster]


@pytest.mark.parametrize("cloud", Cloud)
def test_each_cloud_has_the_files_of_its_siblings(cloud: Cloud) -> None:
    expected = EVERY_CLOUD | OWN[cloud] | (CREATES_CLUSTER if support(cloud).creates_cluster else set())
    assert {file.stem for file in (INFRA / cloud).glob("*.py")} == expected


@pytest.mark.parametrize("cloud", CLOUDS)
@pytest.mark.parametrize(("module", "name"), CLASSES)
def test_each_cloud_has_the_classes_of_its_siblings(cloud: Cloud, module: str, name: str) -> None:
    tree = ast.parse((INFRA / cloud / f"{module}.py").read_text(encoding="utf-8"))
    (found,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    if (expected := CLASSES[module, name]) is not None:
        (init,) = [n for n in found.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"]
        arguments = tuple(argument.arg for argument in init.args.args[1:])
        assert arguments[: len(expected)] == expected
        assert "opts" in [argument.arg for argument in init.args.kwonlyargs]
