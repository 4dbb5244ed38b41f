"""What refuses a release: the checkout, a licence; and a whole draft."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tools.release import environments
from tools.release.checkout import checkout_problems, file_problems, release_version, version_of
from tools.release.licences import licence_problems
from trainfleet import __version__

TABLE = """
accepted = ["MIT", "Apache-2.0"]
[names]
"License :: OSI Approved :: MIT License" = "MIT"
[packages]
copyleft = {licence = "GPL-2.0-only", reason = "a program of its own"}
[families]
nvidia- = {licence = "LicenseRef-NVIDIA-Proprietary", reason = "of torch"}
"""


def checkout(folder: Path, version: str = __version__, tag: str = f"v{__version__}") -> Path:
    """A repository with a release commit."""
    for name in ("trainfleet", "policies"):
        (folder / name).mkdir()
    (folder / "trainfleet" / "__init__.py").write_text(f'"""Text."""\n\n__version__ = "{version}"\n')
    (folder / "policies" / "PulumiPolicy.yaml").write_text(f"description: Rules\nversion: {version}\n")
    (folder / "CHANGELOG.md").write_text(f"# Changelog\n\n## {version} - 2026-11-26\n\nText.\n")
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    commit(folder, tag)
    return folder


def commit(folder: Path, tag: str) -> None:
    user = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    for command in (["add", "-A"], [*user, "commit", "-qm", "Release"], ["tag", tag]):
        subprocess.run(["git", *command], cwd=folder, check=True)


def test_a_release_has_one_version_everywhere_and_no_changes(tmp_path: Path) -> None:
    assert checkout_problems(checkout(tmp_path)) == []
    (tmp_path / "new.txt").touch()
    (tmp_path / "CHANGELOG.md").write_text(f"## Unreleased\n\n## {__version__} - 2026-11-26\n")
    found = [(each.where, each.what) for each in checkout_problems(tmp_path)]
    assert found == [
        ("CHANGELOG.md", "begins with Unreleased"),
        ("CHANGELOG.md", "is not committed"),
        ("new.txt", "is not committed"),
    ]


def test_the_version_is_that_of_the_tag_and_the_files_are_compared_with_it(tmp_path: Path) -> None:
    folder = checkout(tmp_path, "0.2.0rc1", "v0.3.0")
    assert release_version(folder) == "0.3.0"
    assert [(each.where, each.what, each.fix) for each in checkout_problems(folder)] == [
        ("trainfleet/__init__.py", "has 0.2.0rc1", "0.3.0"),
        ("policies/PulumiPolicy.yaml", "has 0.2.0rc1", "0.3.0"),
        ("CHANGELOG.md", "begins with 0.2.0rc1 - 2026-11-26", "## 0.3.0 - the date"),
    ]


@pytest.mark.parametrize("version", ["9.9.9", "0.2.0rc1"])
def test_a_tagged_version_is_a_release(tmp_path: Path, version: str) -> None:
    assert checkout_problems(checkout(tmp_path, version, f"v{version}")) == []


def test_a_commit_without_the_tag_of_one_release_has_the_version_of_the_package(tmp_path: Path) -> None:
    folder = checkout(tmp_path, "0.2.0", "nightly")
    assert release_version(folder) == "0.2.0"
    (problem,) = checkout_problems(folder)
    assert (problem.what, problem.fix) == ("this commit has no tag of a release", "make tag VERSION=...")
    for tag_name in ("v0.2.0", "v0.3.0"):
        subprocess.run(["git", "tag", tag_name], cwd=folder, check=True)
    assert release_version(folder) == "0.2.0"
    (problem,) = checkout_problems(folder)
    assert problem.what == "the tags of this commit are v0.2.0, v0.3.0"


def test_a_version_below_an_earlier_tag_is_refused(tmp_path: Path) -> None:
    folder = checkout(tmp_path, "0.10.0", "v0.10.0")
    for name in ("trainfleet/__init__.py", "policies/PulumiPolicy.yaml", "CHANGELOG.md"):
        (folder / name).write_text((folder / name).read_text().replace("0.10.0", "0.9.1"))
    commit(folder, "v0.9.1")
    (problem,) = checkout_problems(folder)
    assert (problem.where, problem.what) == ("git", "v0.9.1 follows v0.10.0")


def test_this_checkout_has_one_version_everywhere(root: Path) -> None:
    assert version_of(root) == __version__
    assert [each for each in file_problems(root, __version__) if each.what.startswith("has ")] == []


def component(name: str, *licences: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "licenses": list(licences)}


def test_each_licence_is_accepted_or_explained(tmp_path: Path) -> None:
    table = tmp_path / "licences.toml"
    table.write_text(TABLE)
    fine = [
        component("a", {"expression": "MIT OR (Apache-2.0 AND MIT)"}),
        component("b", {"license": {"name": "License :: OSI Approved :: MIT License"}}),
        component("Copyleft", {"license": {"id": "GPL-2.0-only"}}),
        component("nvidia-x"),
    ]
    assert licence_problems(fine, table) == []
    wrong = [component("c", {"expression": "MIT AND AGPL-3.0-only"}), component("d")]
    found = {each.where: each.what for each in licence_problems([*fine[:2], *wrong], table)}
    assert found == {
        "c": "has AGPL-3.0-only",
        "d": "states no licence",
        "licences.toml": "explains copyleft, which is not installed",
    }


@pytest.mark.deep
@pytest.mark.timeout(1800)
def test_a_draft_has_every_file_and_its_digests(root: Path, tmp_path: Path) -> None:
    pythons = {each: environments.find(each) for each in environments.supported(root)}
    absent = [each for each, path in pythons.items() if path is None]
    command = [sys.executable, "-m", "tools.release", "--draft", "--to", str(tmp_path / "dist")]
    command += [word for each in absent for word in ("--without", each)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    files = {each.name: each for each in (tmp_path / "dist").iterdir()}
    sums = dict(line.split("  ")[::-1] for line in files["SHA256SUMS"].read_text().splitlines())
    assert set(sums) == set(files) - {"SHA256SUMS"}
    assert all(hashlib.sha256(files[name].read_bytes()).hexdigest() == sums[name] for name in sums)
    statement = json.loads(files["provenance.json"].read_text())
    subjects = {each["name"]: each["digest"]["sha256"] for each in statement["subject"]}
    assert subjects == {name: sums[name] for name in sums if name != "provenance.json"}
    parameters = statement["predicate"]["buildDefinition"]["internalParameters"]
    assert parameters["untestedPythons"] == absent
    tested = [each.rpartition(".")[0] for each in parameters["testedPythons"]]
    assert sorted(tested + absent) == environments.supported(root)
    bom = json.loads(files[f"trainfleet-{__version__}.cdx.json"].read_text())
    assert bom["bomFormat"] == "CycloneDX"
    assert {"torch", "pulumi"} <= {each["name"] for each in bom["components"]}
    assert str(root) not in files[f"trainfleet-{__version__}.cdx.json"].read_text()
