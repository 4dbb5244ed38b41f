"""The sdist and the wheel: complete, nothing else in them, and the same bytes each time."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tools.release import build
from trainfleet import __version__

EPOCH = 1_790_000_000


@pytest.fixture(scope="module")
def built(root: Path, tmp_path_factory: pytest.TempPathFactory) -> build.Distributions:
    return build.build(root, tmp_path_factory.mktemp("built"), EPOCH)


def test_both_have_every_file_of_the_package_and_nothing_else(root: Path, built: build.Distributions) -> None:
    files = build.package_files(root)
    for needed in (
        "trainfleet/infra/spec/schema.py",
        "trainfleet/infra/aws/prices.toml",
        "trainfleet/policies/PulumiPolicy.yaml",
        "trainfleet/recipes/lm-small.yaml",
        "trainfleet/rehearsal/diff/templates/diff.html",
    ):
        assert needed in files
    assert build.content_problems(built, files) == []
    assert [name for name in build.members(built.wheel) if name.startswith(("tests/", "tools/"))] == []


def test_the_metadata_is_what_an_index_accepts(built: build.Distributions) -> None:
    assert build.metadata_problems(built, __version__) == []
    (problem, other) = build.metadata_problems(built, "9.9.9")
    assert f"its version is {__version__}" in problem.what
    assert other.where == built.sdist.name


@pytest.mark.deep
def test_the_unpacked_sdist_and_the_checkout_give_the_same_bytes(
    root: Path, built: build.Distributions, tmp_path: Path
) -> None:
    subprocess.run(["tar", "-xf", built.sdist, "-C", tmp_path], check=True)
    (unpacked,) = tmp_path.iterdir()
    (unpacked / "PKG-INFO").unlink()
    for path in unpacked.rglob("*.py"):
        path.touch()
    again = build.build(unpacked, tmp_path / "again", EPOCH)
    assert again.sdist.read_bytes() == built.sdist.read_bytes()
    assert again.wheel.read_bytes() == built.wheel.read_bytes()
    assert build.build_wheel(root, tmp_path / "straight", EPOCH).read_bytes() == built.wheel.read_bytes()


def test_what_is_missing_and_what_does_not_belong_is_named(tmp_path: Path) -> None:
    wheel, sdist = tmp_path / "trainfleet-1-py3-none-any.whl", tmp_path / "trainfleet-1.tar.gz"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in (
            "trainfleet/cli.py",
            "trainfleet/a.pyc",
            "tests/test_x.py",
            "trainfleet-1.dist-info/METADATA",
        ):
            archive.writestr(name, "")
    with tarfile.open(sdist, "w:gz") as archive:
        for name in ("trainfleet/cli.py", "PKG-INFO", "notes.txt"):
            archive.addfile(tarfile.TarInfo(f"trainfleet-1/{name}"))
    expected = {"trainfleet/cli.py", "trainfleet/infra/spec.py", "trainfleet/a.pyc"}
    found = build.content_problems(build.Distributions(sdist, wheel), expected)
    assert [(each.where.rpartition(".")[2], each.what) for each in found] == [
        ("whl", "trainfleet/infra/spec.py is missing"),
        ("whl", "tests/test_x.py does not belong to it"),
        ("whl", "trainfleet/a.pyc is a leftover of a run"),
        ("gz", "trainfleet/a.pyc is missing"),
        ("gz", "trainfleet/infra/spec.py is missing"),
        ("gz", "notes.txt does not belong to it"),
    ]


def test_a_build_that_fails_is_one_error_with_its_last_lines(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        "[project]\nname = 'x'\n[build-system]\nrequires = []\nbuild-backend = 'hatchling.build'\n"
    )
    with pytest.raises(build.ReleaseError) as caught:
        build.build_wheel(tmp_path, tmp_path / "out", EPOCH)
    assert "the build failed" in str(caught.value)


@pytest.mark.deep
def test_every_distribution_has_the_version_of_the_one_place(root: Path, tmp_path: Path) -> None:
    """Also without tags and history: in a shallow clone, and from the sdist."""
    source = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", "--depth", "1", f"file://{root}", source], check=True)
    file = source / "trainfleet" / "__init__.py"
    file.write_text(file.read_text().replace(f'"{__version__}"', '"9.8.7"'))
    made = build.build(source, tmp_path / "built", EPOCH)
    assert (made.sdist.name, made.wheel.name) == (
        "trainfleet-9.8.7.tar.gz",
        "trainfleet-9.8.7-py3-none-any.whl",
    )
    assert build.metadata_problems(made, "9.8.7") == []
    environment = os.environ | {"PYTHONPATH": str(made.wheel)}
    for code in (
        "import trainfleet.cli; trainfleet.cli.main()",
        "import trainfleet; print(trainfleet.__version__)",
    ):
        command = [sys.executable, "-c", code, *(["--version"] if "cli" in code else [])]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        )
        assert done.stdout.split()[-1] == "9.8.7"
