"""What refuses a release: the checkout, a licence; and a whole draft."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tools.release.checkout import checkout_problems
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
    (folder / "pyproject.toml").write_text(f'[project]\nversion = "{version}"\n')
    (folder / "CHANGELOG.md").write_text(f"# Changelog\n\n## {version} - 2026-11-26\n\nText.\n")
    user = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    for command in (["init", "-q"], ["add", "-A"], [*user, "commit", "-qm", "Release"], ["tag", tag]):
        subprocess.run(["git", *command], cwd=folder, check=True)
    return folder


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


@pytest.mark.parametrize(
    ("version", "tag", "where"),
    [("9.9.9", "v9.9.9", "trainfleet/__init__.py"), (__version__, "v0.0.1", "git")],
)
def test_a_version_that_differs_is_named(tmp_path: Path, version: str, tag: str, where: str) -> None:
    (problem,) = checkout_problems(checkout(tmp_path, version, tag))
    assert problem.where == where


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
@pytest.mark.timeout(600)
def test_a_draft_has_every_file_and_its_digests(root: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tools.release", "--draft", "--to", str(tmp_path / "dist")]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    files = {each.name: each for each in (tmp_path / "dist").iterdir()}
    sums = dict(line.split("  ")[::-1] for line in files["SHA256SUMS"].read_text().splitlines())
    assert set(sums) == set(files) - {"SHA256SUMS"}
    assert all(hashlib.sha256(files[name].read_bytes()).hexdigest() == sums[name] for name in sums)
    statement = json.loads(files["provenance.json"].read_text())
    subjects = {each["name"]: each["digest"]["sha256"] for each in statement["subject"]}
    assert subjects == {name: sums[name] for name in sums if name != "provenance.json"}
    bom = json.loads(files[f"trainfleet-{__version__}.cdx.json"].read_text())
    assert bom["bomFormat"] == "CycloneDX"
    assert {"torch", "pulumi"} <= {each["name"] for each in bom["components"]}
    assert str(root) not in files[f"trainfleet-{__version__}.cdx.json"].read_text()
