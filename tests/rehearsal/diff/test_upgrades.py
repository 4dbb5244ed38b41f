"""Upgrades of providers: what the locks say, overlays from wheels in a folder, and a diff with two SDKs."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from tests.rehearsal.diff.conftest import Diffs
from tests.rehearsal.diff.repos import PARTS, Repo
from tests.rehearsal.diff.wheels import wheel
from trainfleet.errors import InputError
from trainfleet.rehearsal.diff import environments
from trainfleet.rehearsal.diff.environments import Upgrade, prepare, upgrades
from trainfleet.rehearsal.diff.locks import Lock, Pin, read_lock
from trainfleet.rehearsal.diff.sdk_changes import SdkChange, changes_of, reader, sdk_changes
from trainfleet.rehearsal.simulation.check import Mistake
from trainfleet.rehearsal.simulation.provider import SimulatedProvider
from trainfleet.rehearsal.simulation.schema import packages
from trainfleet.rehearsal.simulation.state import Cloud

BUCKET = "aws:s3/bucket:Bucket"
OLD, NEW = "90.0.0", "91.0.0"
INSTALLED = metadata.version("pulumi-aws")


def project(folder: Path, files: dict[str, str], runtime: str = "python") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "Pulumi.yaml").write_text(f"name: p\nruntime: {runtime}\n")
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


UV = "{name: python, options: {toolchain: uv}}"
PACKAGE = '[[package]]\nname = "pulumi-aws"\nversion = "7.1.0"\n'


@pytest.mark.parametrize(
    ("files", "runtime", "file", "version"),
    [
        ({"requirements.txt": "pulumi_aws==7.0.0\n"}, "python", "requirements.txt", "7.0.0"),
        ({"requirements.txt": "pulumi-aws>=7,<8  # newest\n"}, "python", "requirements.txt", ">=7,<8"),
        ({"requirements.txt": "-r more.txt\n", "more.txt": "Pulumi.AWS == 7.0.0 ; python_version > '3'\n"}, "python", "requirements.txt", "7.0.0"),
        ({"requirements.lock": "pulumi-aws==7.2.0 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\n", "requirements.txt": "pulumi-aws==7.0.0\n"}, "python", "requirements.lock", "7.2.0"),
        ({"uv.lock": PACKAGE, "requirements.txt": "pulumi-aws==7.0.0\n"}, UV, "uv.lock", "7.1.0"),
        ({"poetry.lock": PACKAGE}, "python", "poetry.lock", "7.1.0"),
        ({"pyproject.toml": '[project]\ndependencies = ["pulumi-aws>=7.3"]\n'}, "python", "pyproject.toml", ">=7.3"),
        ({"pyproject.toml": '[project.optional-dependencies]\naws = ["pulumi-aws[x]~=7.3"]\n'}, "python", "pyproject.toml", "~=7.3"),
        ({}, "python", "", ""),
        ({"uv.lock": "not = [toml"}, UV, "", ""),
    ],
    ids=["pinned", "range", "included", "lock with hashes", "uv", "poetry", "pyproject", "extra", "none", "broken"],
)  # fmt: skip
def test_the_lock_of_a_project(
    tmp_path: Path, files: dict[str, str], runtime: str, file: str, version: str
) -> None:
    found = read_lock(project(tmp_path, files, runtime))
    assert found.file == file
    assert (found.pins["pulumi-aws"].shown if version else found.pins) == (version or {})


def test_hashes_of_a_lock_are_kept_for_the_installer(tmp_path: Path) -> None:
    text = "pulumi-aws==7.2.0 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\n"
    pin = read_lock(project(tmp_path, {"requirements.lock": text})).pins["pulumi-aws"]
    assert pin.requirement == "pulumi-aws==7.2.0 --hash=sha256:aa --hash=sha256:bb"


def test_a_lock_may_be_above_the_project_but_not_above_the_repository(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("pulumi-aws==7.0.0\n")
    below = project(tmp_path / "platforms" / "ml", {})
    assert read_lock(below, "platforms/ml").file == "requirements.txt"
    assert read_lock(below, "ml").file == ""


def lock(**pins: str) -> Lock:
    return Lock(
        "x", {name.replace("_", "-"): Pin(name.replace("_", "-"), version) for name, version in pins.items()}
    )


def test_what_differs_between_two_locks_providers_first() -> None:
    found = upgrades(
        lock(a="1", pulumi_aws="7.0.0", same="1", gone="1"),
        lock(a="2", pulumi_aws="8.0.0", same="1", come="3"),
    )
    assert found == (
        Upgrade("pulumi-aws", "7.0.0", "8.0.0"),
        Upgrade("a", "1", "2"),
        Upgrade("come", "", "3"),
        Upgrade("gone", "1", ""),
    )
    assert [each.provider for each in found] == [True, False, False, False]


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment in which uv finds two versions of a tiny SDK and nothing else."""
    wheel(tmp_path / "wheels", OLD, {"bucket": False, "tagSet": False, "region": False})
    wheel(tmp_path / "wheels", NEW, {"bucket": True, "tagsSet": False, "region": False, "shiny": False})
    found = {"UV_FIND_LINKS": str(tmp_path / "wheels"), "UV_NO_INDEX": "1", "UV_OFFLINE": "1"}
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("trainfleet.toolchain.cache_folder", lambda: tmp_path / "cache")
    return found


def roots(tmp_path: Path, before: str, after: str) -> tuple[Path, Path]:
    return (
        project(tmp_path / "base", {"requirements.txt": before}),
        project(tmp_path / "head", {"requirements.txt": after}),
    )


def test_each_side_gets_the_sdk_that_it_locks(tmp_path: Path, wheels: dict[str, str]) -> None:
    found = prepare(roots(tmp_path, f"pulumi-aws=={OLD}\n", f"pulumi-aws=={NEW}\n"), "", "")
    assert found.base is not None
    assert found.head is not None
    assert (found.base / "pulumi_aws").is_dir()
    assert found.packages == ("pulumi-aws",)
    assert "pulumi-aws 91.0.0 as locked" in found.notes[1]
    with reader(found.base) as before, reader(found.head) as after:
        assert set(before.inputs(BUCKET) or {}) == {"bucket", "tagSet", "region"}
        assert sdk_changes([BUCKET, "aws:ec2/vpc:Vpc"], before, after) == [
            SdkChange(BUCKET, "tagSet", "renamed to `tagsSet`"),
            SdkChange(BUCKET, "shiny", "new"),
            SdkChange(BUCKET, "bucket", "newly required"),
        ]


def test_an_overlay_is_built_once(
    tmp_path: Path, wheels: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = roots(tmp_path, f"pulumi-aws=={OLD}\n", f"pulumi-aws=={NEW}\n")
    first = prepare(given, "", "own")
    monkeypatch.setattr(environments, "_build", lambda *_: pytest.fail("built again"))
    assert prepare(given, "", "own") == first
    assert not list((tmp_path / "cache/environments").glob("building-*"))


def test_the_installed_version_needs_no_overlay(tmp_path: Path, wheels: dict[str, str]) -> None:
    found = prepare(roots(tmp_path, f"pulumi-aws=={INSTALLED}\n", f"pulumi-aws=={NEW}\n"), "", "")
    assert found.base is None
    assert found.head is not None


def test_without_its_packages_the_page_says_why_and_own_is_an_error(
    tmp_path: Path, wheels: dict[str, str]
) -> None:
    given = roots(tmp_path, f"pulumi-aws=={OLD}\n", "pulumi-aws==92.0.0\n")
    found = prepare(given, "", "")
    assert (found.base, found.head) == (None, None)
    assert found.upgrades == (Upgrade("pulumi-aws", OLD, "92.0.0"),)
    assert "not with the locked ones: uv cannot install" in found.notes[0]
    with pytest.raises(InputError) as error:
        prepare(given, "", "own")
    assert "--environments same" in error.value.problems[0].fix


def test_same_runs_with_the_installed_ones_and_says_so(tmp_path: Path, wheels: dict[str, str]) -> None:
    found = prepare(roots(tmp_path, f"pulumi-aws=={OLD}\n", f"pulumi-aws=={NEW}\n"), "", "same")
    assert (found.base, found.head) == (None, None)
    assert f"installed pulumi-aws {INSTALLED}" in found.notes[0]


def test_equal_locks_of_another_version_are_named(tmp_path: Path, wheels: dict[str, str]) -> None:
    given = roots(tmp_path, f"pulumi-aws=={OLD}\n", f"pulumi-aws=={OLD}\n")
    found = prepare(given, "", "")
    assert (found.base, found.upgrades) == (None, ())
    assert "--environments own" in found.notes[0]
    assert prepare(given, "", "own").base is not None


def test_a_range_is_named(tmp_path: Path, wheels: dict[str, str]) -> None:
    found = prepare(roots(tmp_path, "pulumi-aws>=7\n", "pulumi-aws>=8\n"), "", "")
    assert found.upgrades == (Upgrade("pulumi-aws", ">=7", ">=8"),)
    assert found.notes == ("pulumi-aws: only exact versions run, so the installed version ran.",)


def inputs(**required: bool | tuple[bool, str]) -> dict[str, dict[str, Any]]:
    return {
        name: {"required": value[0], "type": value[1]}
        if isinstance(value, tuple)
        else {"required": value, "type": "str"}
        for name, value in required.items()
    }


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (inputs(a=False), inputs(a=False), []),
        (None, None, []),
        (None, inputs(a=False), [SdkChange("t", "", "the type is new")]),
        (inputs(a=False), None, [SdkChange("t", "", "the type is removed")]),
        (inputs(), inputs(a=False), [SdkChange("t", "a", "new")]),
        (inputs(), inputs(a=True), [SdkChange("t", "a", "new and required")]),
        (inputs(a=False), inputs(a=True), [SdkChange("t", "a", "newly required")]),
        (inputs(a=True), inputs(a=False), [SdkChange("t", "a", "no longer required")]),
        (inputs(a=False), inputs(), [SdkChange("t", "a", "removed")]),
        (inputs(subnet=False), inputs(subnets=False), [SdkChange("t", "subnet", "renamed to `subnets`")]),
        (
            inputs(subnet=False),
            inputs(subnets=(False, "list")),
            [SdkChange("t", "subnet", "removed"), SdkChange("t", "subnets", "new")],
        ),
        (
            inputs(subnet=False),
            inputs(subnets=True),
            [SdkChange("t", "subnet", "renamed to `subnets`"), SdkChange("t", "subnets", "new and required")],
        ),
    ],
)
def test_what_differs_of_a_type(before: Any, after: Any, expected: list[SdkChange]) -> None:
    assert changes_of("t", before, after) == expected


def test_a_mistake_of_the_installed_version_alone_is_none(tmp_path: Path, wheels: dict[str, str]) -> None:
    found = prepare(roots(tmp_path, f"pulumi-aws=={OLD}\n", f"pulumi-aws=={NEW}\n"), "", "")
    kept = [
        Mistake("missing", "unknown property"),
        Mistake("bucket", "missing required property"),
        Mistake("bucket", "'A' is not a valid name"),
    ]
    dropped = [
        Mistake("shiny", "unknown property"),
        Mistake("acl", "missing required property"),
        Mistake("type", "is not a type of pulumi-aws"),
    ]
    with reader(found.head) as head:
        assert head.accepts(BUCKET, [*kept, *dropped]) == kept
        assert head.accepts("aws:ec2/vpc:Vpc", dropped) == dropped


PROGRAM = """
import pulumi_aws as aws

def build(platform, extra):
    aws.s3.Bucket("runs", bucket="tiny-runs", {more})
"""


@pytest.mark.deep
def test_a_provider_upgrade_is_a_change_and_each_program_runs_with_its_sdk(
    repo: Repo, diff: Diffs, wheels: dict[str, str], tmp_path: Path
) -> None:
    repo.write(PARTS, PROGRAM.format(more='tag_set="x"'))
    repo.write("requirements.txt", f"pulumi-aws=={OLD}\n")
    repo.commit()
    repo.write("requirements.txt", f"pulumi-aws=={NEW}\n")
    done = diff("one", "--worktree", "--json", "--environments", "own", **wheels)
    assert done.returncode == 1, done.stdout
    assert "tag_set" in done.stderr
    repo.write(PARTS, PROGRAM.format(more='tags_set="x"'))
    done = diff("one", "--worktree", "--json", **wheels)
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    assert done.returncode == 2
    assert found["upgrades"] == [{"package": "pulumi-aws", "before": OLD, "after": NEW}]
    assert {"type": BUCKET, "property": "tagSet", "what": "renamed to `tagsSet`"} in found["sdk"]
    assert f"pulumi-aws {OLD} → {NEW}" in found["blast_radius"]
    (change,) = [each for each in found["changes"] if each["name"] == "runs"]
    assert {each["path"] for each in change["properties"]} == {"tagSet", "tagsSet"}
    page = tmp_path / "page.html"
    diff("one", "--worktree", "--format", "html", "--output", str(page), **wheels)
    assert "renamed to `tagsSet`" in page.read_text()


def test_unknown_environments_are_refused(diff: Diffs) -> None:
    done = diff("one", "--environments", "owm")
    assert done.returncode == 1
    assert "own" in done.stderr


def test_a_simulated_cloud_asks_the_sdk_of_the_side_and_remembers_nothing_of_it() -> None:
    cloud = Cloud()
    provider = SimulatedProvider(packages()["aws"], cloud, {})
    given = {"bucket": "some-bucket-of-mine", "shiny": "x"}
    assert [mistake.path for mistake in provider._mistakes(BUCKET, given)] == ["shiny"]
    cloud.other_sdk = lambda _, mistakes: [each for each in mistakes if each.path != "shiny"]
    assert provider._mistakes(BUCKET, given) == []
    cloud.other_sdk = None
    assert [mistake.path for mistake in provider._mistakes(BUCKET, given)] == ["shiny"]
