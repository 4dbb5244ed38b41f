"""mypy reads the provider SDKs' services that the code uses, and no others: what it skips has no types."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SDKS = ("pulumi_aws", "pulumi_gcp", "pulumi_azure_native")


def overrides(follow_imports: str) -> set[str]:
    """The modules of pyproject.toml's overrides with this setting."""
    tables = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]["overrides"]
    return {name for table in tables if table["follow_imports"] == follow_imports for name in table["module"]}


def used(tree: ast.Module) -> Iterator[str]:
    """The services that a file uses, as `pulumi_aws.ec2`."""
    names = {
        alias.asname or alias.name: alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in SDKS:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
            tuple(f"{sdk}." for sdk in SDKS)
        ):
            yield ".".join((node.module or "").split(".")[:2])
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            sdk = names.get(node.value.id)
            if sdk in SDKS and not node.attr.startswith("get_"):
                yield f"{sdk}.{node.attr}"


def test_each_service_that_is_used_is_typed_and_no_other_is_read() -> None:
    skipped = {name.removesuffix(".*") for name in overrides("skip")}
    assert skipped == set(SDKS)
    read = {name.removesuffix(".*") for name in overrides("silent") if name.endswith(".*")}
    files = [
        path
        for top in ("infra", "training", "policies", "stacks", "benchmarks", "tools")
        for path in sorted((ROOT / top).rglob("*.py"))
    ]
    found = {service for path in files for service in used(ast.parse(path.read_text()))}
    assert len(found) > 30
    listed = {name for name in read if name.startswith(tuple(f"{sdk}." for sdk in SDKS))}
    assert listed == found, "the list is in pyproject.toml, below tool.mypy.overrides"
