"""What newly replaces a resource since an upgrade of its provider: from the tables that each side has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.rehearsal.diff.conftest import Diffs
from tests.rehearsal.diff.repos import PARTS, Repo
from trainfleet.rehearsal.diff.environments import Upgrade
from trainfleet.rehearsal.diff.replacement_changes import replacement_changes
from trainfleet.rehearsal.diff.sdk_changes import SdkChange
from trainfleet.rehearsal.simulation.knowledge_table import (
    FOLDER,
    SHIPPED,
    Row,
    Table,
    read_table,
    write_table,
)

DB, BUCKET = "aws:rds/instance:Instance", "aws:s3/bucket:Bucket"
NEWLY = "newly replaces the resource"
UPGRADE = Upgrade("pulumi-aws", "90.0.0", "91.0.0")


def project(folder: Path, version: str = "", **types: Row) -> Path:
    """A project, with its own table of this version of pulumi-aws if one is given."""
    folder.mkdir(parents=True)
    if version:
        rows = {DB: types.get("db", Row()), BUCKET: types.get("bucket", Row())}
        table = Table("aws", "get-schema", version, "2026-11-26", version, rows)
        write_table(table, folder / FOLDER / "aws.json")
    return folder


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (Row(("engine",)), Row(("engine",)), []),
        (Row(), Row(("engine",)), [("engine", NEWLY)]),
        (Row(("engine",)), Row(), [("engine", "no longer replaces the resource")]),
        (Row(("a",)), Row(("a.b",)), [("a", "no longer replaces the resource")]),
        (Row(("a.b",)), Row(("a",)), [("a", NEWLY)]),
        (Row(), Row(when={"size": ("shrinks",)}), [("size", f"{NEWLY} if it shrinks")]),
        (Row(("size",)), Row(when={"size": ("shrinks",)}), []),
        (Row(when={"size": ("shrinks",)}), Row(("size",)), [("size", NEWLY)]),
        (Row(("size",)), Row(unclear={"*": "not read"}), []),
    ],
)
def test_what_differs_between_two_rows(
    tmp_path: Path, before: Row, after: Row, expected: list[tuple[str, str]]
) -> None:
    roots = (
        project(tmp_path / "base", "90.0.1", db=before),
        project(tmp_path / "head", "91.0.0", db=after),
    )
    found, notes = replacement_changes([DB, BUCKET, DB], [UPGRADE], roots)
    assert notes == []
    assert found == [SdkChange(DB, path, what) for path, what in expected]


def test_a_property_that_is_new_as_a_whole_is_not_repeated(tmp_path: Path) -> None:
    roots = project(tmp_path / "base", "90.0.0"), project(tmp_path / "head", "91.0.0", db=Row(("fresh",)))
    found, _ = replacement_changes([DB], [UPGRADE], roots, [SdkChange(DB, "fresh", "new and required")])
    assert found == []


@pytest.mark.parametrize(
    ("base", "head", "missing"),
    [("", "91.0.0", "90.0.0"), ("90.0.0", "90.0.0", "91.0.0"), ("", "", "90.0.0 or 91.0.0")],
)
def test_without_a_table_of_its_version_the_page_says_that_it_is_not_known(
    tmp_path: Path, base: str, head: str, missing: str
) -> None:
    roots = project(tmp_path / "base", base), project(tmp_path / "head", head, db=Row(("engine",)))
    found, (note,) = replacement_changes([DB], [UPGRADE], roots)
    assert found == []
    assert f"not known for pulumi-aws: there is no knowledge table of {missing}." in note
    assert "trainfleet knowledge update --package aws" in note


def test_the_table_that_ships_counts_for_the_version_that_it_is_for(tmp_path: Path) -> None:
    shipped = read_table(SHIPPED / "aws.json")
    roots = project(tmp_path / "base"), project(tmp_path / "head", "91.0.0")
    found, notes = replacement_changes([BUCKET], [Upgrade("pulumi-aws", shipped.sdk, "91.0.0")], roots)
    assert notes == []
    assert SdkChange(BUCKET, "bucket", "no longer replaces the resource") in found


def test_a_provider_whose_types_are_not_in_use_and_one_that_is_new_say_nothing(tmp_path: Path) -> None:
    roots = project(tmp_path / "base"), project(tmp_path / "head")
    new, removed = Upgrade("pulumi-aws", "", "91.0.0"), Upgrade("pulumi-aws", "90.0.0", "")
    assert replacement_changes(["gcp:storage/bucket:Bucket"], [UPGRADE], roots) == ([], [])
    assert replacement_changes([DB], [new, removed, Upgrade("pulumi", "3.1.0", "3.2.0")], roots) == ([], [])


@pytest.mark.deep
def test_a_diff_lists_what_newly_replaces(repo: Repo, diff: Diffs, tmp_path: Path) -> None:
    own = f"{FOLDER}/aws.json"
    for version, row in (("90.0.0", Row()), ("91.0.0", Row(("tags",)))):
        table = Table("aws", "get-schema", version, "2026-11-26", version, {BUCKET: row})
        write_table(table, tmp_path / f"{version}.json")
    repo.write(PARTS, 'import pulumi_aws as aws\n\ndef build(platform, extra):\n    aws.s3.Bucket("runs")\n')
    repo.write("requirements.txt", "pulumi-aws==90.0.0\n")
    repo.write(own, (tmp_path / "90.0.0.json").read_text())
    repo.commit()
    repo.write("requirements.txt", "pulumi-aws==91.0.0\n")
    repo.write(own, (tmp_path / "91.0.0.json").read_text())
    done = diff("one", "--worktree", "--json", "--environments", "same")
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    assert {"type": BUCKET, "property": "tags", "what": NEWLY} in found["sdk"]
