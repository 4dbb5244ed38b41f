"""The doctor compares the tables of knowledge with the installed SDKs."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

from trainfleet import doctor
from trainfleet.rehearsal.simulation import facts
from trainfleet.rehearsal.simulation.knowledge_table import FOLDER, Row, Table, is_behind, write_table

PACKAGES = ("aws", "azure-native", "gcp", "kubernetes")
INSTALLED = metadata.version("pulumi-aws")


def table(sdk: str) -> Table:
    return Table("aws", "get-schema", sdk, "2026-11-26", sdk, {"aws:s3/bucket:Bucket": Row(("bucket",))})


@pytest.mark.parametrize(
    ("known", "installed", "behind"),
    [
        ("7.51.0", "7.51.1", False),
        ("7.50.9", "7.51.1", True),
        ("7.52.0", "7.51.1", True),
        ("8.51.0", "7.51.1", True),
        ("7.51.0", "", False),
    ],
)
def test_another_minor_version_is_behind(known: str, installed: str, behind: bool) -> None:
    assert is_behind(table(known), installed) is behind


def test_the_doctor_names_the_table_and_both_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_table(table("6.1.0"), tmp_path / FOLDER / "aws.json")
    found = doctor.knowledge()
    assert f"aws is for SDK 6.1.0, installed is {INSTALLED}" in found.detail
    assert (found.status, found.fix) == ("scarce", "trainfleet knowledge update")


def test_the_tables_that_ship_are_for_the_locked_sdks(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    found = doctor.knowledge()
    assert found.status == "here", found.detail
    assert all(f"{package} " in found.detail for package in PACKAGES)


def test_limits_of_another_minor_version_are_named() -> None:
    assert facts.behind(metadata.version) == []
    newer = facts.behind(lambda name: {"pulumi-aws": "8.0.0", "pulumi-gcp": ""}.get(name, ""))
    assert newer == [f"limits of aws are for SDK {INSTALLED}, installed is 8.0.0; they come with Trainfleet"]
