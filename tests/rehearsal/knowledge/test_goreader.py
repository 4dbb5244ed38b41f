"""Reading schemas from Go source: what is declared, what helper functions return, and conditions in code."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

READER = Path(__file__).parents[3] / "tools" / "knowledge" / "goreader"
pytestmark = pytest.mark.skipif(shutil.which("go") is None, reason="goreader is a Go program")


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("goreader") / "goreader"
    subprocess.run(["go", "build", "-o", str(program), "."], cwd=READER, check=True, timeout=300)
    return program


def read(reader: Path, folder: Path, *arguments: str) -> Any:
    command = [str(reader), "-root", str(folder), "-module", "example.com/provider", *arguments]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout)


@pytest.fixture(scope="module")
def resources(reader: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("provider")
    (folder / "shop").mkdir()
    (folder / "shop" / "shop.go").write_text(Path(__file__).with_name("provider.go.txt").read_text())
    return read(reader, folder)


def test_a_resource_of_the_sdk_with_its_sets_and_forced_replacements(resources: Any) -> None:
    disk = resources["shop_disk"]["attributes"]
    assert disk["kms_key_id"]["replace"]
    assert disk["zones"]["kind"] == "set"
    assert "replace" not in disk["size"]
    assert disk["label"]["replace"], "a helper function's argument decides"


def test_force_new_of_a_block_is_about_the_block_and_not_about_what_is_in_it(resources: Any) -> None:
    mount = resources["shop_disk"]["attributes"]["mount"]
    assert "replace" not in mount
    assert mount["when"] == ["added", "removed"]
    assert mount["fields"]["path"]["replace"]
    assert "replace" not in mount["fields"]["readonly"]


def test_conditions_in_code_are_read_or_reported_as_unread(resources: Any) -> None:
    assert {each["path"]: each["when"] for each in resources["shop_disk"]["replacements"]} == {
        "size": ["shrinks"],
        "tier": [""],
    }


def test_a_resource_of_the_framework_whose_schema_is_of_an_embedded_type(resources: Any) -> None:
    rack = resources["shop_rack"]["attributes"]
    assert rack["row"]["replace"]
    assert rack["owner"]["when"] == ["changes except to absent"]
    assert (rack["slot"]["kind"], rack["slot"]["fields"]["height"]["kind"]) == ("set", "int")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return new.(int) > old.(int)", ["grows"]),
        ('return old.(string) == "a" && new.(string) == "b"', ["changes from a to b"]),
        ("return len(old.([]any)) == 1 && len(new.([]any)) == 0", ["removed"]),
        ("return len(old.([]any)) == 0 && len(new.([]any)) > 0", ["added"]),
        ('return old.(string) != new.(string) && new.(string) != ""', ["changes except to absent"]),
        ("return old.(bool) && !new.(bool)", ["changes from true"]),
        ("return other(old, new)", [""]),
        ("if other() {\n return false\n}\nreturn new.(int) < old.(int)", [""]),
    ],
)
def test_the_functions_that_compare_old_and_new(
    reader: Path, tmp_path: Path, body: str, expected: list[str]
) -> None:
    text = Path(__file__).with_name("provider.go.txt").read_text()
    (tmp_path / "shop.go").write_text(text.replace("return new.(int) < old.(int)", body))
    found = read(reader, tmp_path)["shop_disk"]["replacements"]
    assert [each["when"] for each in found if each["path"] == "size"] == [expected]


def test_one_file_for_each_symbol_reads_like_a_source_tree(reader: Path, tmp_path: Path) -> None:
    (tmp_path / "type.x.goindex").write_text('package example.com/provider\n\tfirst = "a"\n')
    (tmp_path / "var.all.goindex").write_text(
        'package example.com/provider\nvar all = map[string]string{first: "b"}\n'
    )
    assert read(reader, tmp_path, "-value", "example.com/provider.all") == {"a": "b"}
