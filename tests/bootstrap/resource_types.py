"""The cloud resource types that stacks declare, and those that the code of a cloud can create."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pulumi

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"aws": "aws", "gcp": "gcp", "azure": "azure-native"}
SDKS = {"aws": "pulumi_aws", "gcp": "pulumi_gcp", "azure": "pulumi_azure_native"}


def declared(cloud: str) -> set[str]:
    """The types of the resources of every stack on a cloud, from the released URNs (test_urns.py)."""
    found = set()
    for file in sorted((ROOT / "tests" / "infra" / "urns").glob(f"{cloud}-*.txt")):
        for urn in file.read_text(encoding="utf-8").splitlines():
            token = urn.split("::")[2].rpartition("$")[2]
            if token.startswith(f"{PACKAGES[cloud]}:"):
                found.add(token)
    return found


def creatable(cloud: str) -> set[str]:
    """The types of which infra/<cloud> calls the constructor, whatever the spec."""
    return {token for call, names in _calls(cloud) if (token := _token(call, names))}


def called(cloud: str) -> set[str]:
    """The SDK's functions that infra/<cloud> calls, as they are written."""
    return {
        call
        for call, names in _calls(cloud)
        if call.split(".")[0] in names and call.rpartition(".")[2].startswith("get_")
    }


def _calls(cloud: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Each call in infra/<cloud>, as text, with the names that are imported there."""
    for file in sorted((ROOT / "infra" / cloud).glob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        names = _imported(tree, SDKS[cloud])
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                yield ast.unparse(node.func), names


def _imported(tree: ast.Module, sdk: str) -> dict[str, str]:
    """Local names of the SDK's modules: `aws` is pulumi_aws, `storage` is pulumi_azure_native.storage."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {each.asname or each.name: each.name for each in node.names if each.name == sdk}
        elif isinstance(node, ast.ImportFrom) and node.module == sdk:
            names |= {each.asname or each.name: f"{sdk}.{each.name}" for each in node.names}
    return names


def _token(call: str, names: dict[str, str]) -> str:
    head, *rest = call.split(".")
    if head not in names or not rest:
        return ""
    found = import_module(names[head])
    for step in rest:
        found = getattr(found, step, None)
    is_resource = isinstance(found, type) and issubclass(found, pulumi.CustomResource)
    return str(getattr(found, "pulumi_type", "")) if is_resource else ""
