"""The exported pack: complete, of its own, and run by the real engine where Trainfleet is not installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import venv
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from tests.policies.test_engine import BUCKET, MISSING, PROGRAM, broken, engine, planned
from trainfleet.errors import InputError
from trainfleet.policies.engine.export import REQUIREMENTS, export
from trainfleet.rehearsal.engine.engine_cli import Outcome

__all__ = ["engine", "planned"]  # fixtures


def needed(names: list[str]) -> set[str]:
    """Return distributions with everything that they require here."""
    found: set[str] = set()
    while names:
        name = names.pop()
        try:
            requirements = metadata.requires(name) or ()
        except metadata.PackageNotFoundError:
            continue  # for another platform or version of Python
        if name not in found:
            found.add(name)
            plain = (each for each in requirements if "extra ==" not in each)
            names += [match.group() for each in plain if (match := re.match(r"[\w.-]+", each))]
    return found


@pytest.fixture
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The exported pack with an environment that has its requirements and nothing else."""
    folder = tmp_path_factory.mktemp("elsewhere") / "pack"
    export(folder)
    venv.create(folder / "venv", symlinks=True, with_pip=False)
    (packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
    for name in needed(["pulumi-policy"]):
        distribution = metadata.distribution(name)
        roots = {
            file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")
        }
        for root in roots:
            target = packages / root
            if not target.exists():
                target.symlink_to(Path(str(distribution.locate_file(root))))
    return folder


def test_the_environment_of_the_test_has_no_trainfleet(pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    command = [str(pack / "venv" / "bin" / "python"), "-c", "import pulumi_policy; import trainfleet"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    assert "No module named 'trainfleet'" in done.stderr


def test_the_exported_pack_stops_a_preview(
    engine: Callable[..., Callable[[str], Outcome]], pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    # What Pulumi's own script does: the interpreter of the pack's environment runs the pack.
    shim = (
        "#!/bin/sh\nargs=''\n"
        'for each in "$@"; do case "$each" in -*) ;; *) args="$args $each";; esac; done\n'
        f"exec {pack}/venv/bin/python -u -m pulumi.policy $args\n"
    )
    preview = engine(PROGRAM + BUCKET, pack=pack, analyzer=shim)("preview")
    assert preview.code != 0
    assert broken(preview) == MISSING, preview.output[-3000:]


def test_every_rule_is_in_the_exported_pack(pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trainfleet.policies.catalogue import RULES

    monkeypatch.delenv("PYTHONPATH", raising=False)
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from trainfleet_pack.policies import catalogue\n"
        "from trainfleet_pack.policies.engine.pack import policies\n"
        "assert catalogue.__file__.startswith(sys.argv[1]), catalogue.__file__\n"
        "print(len(policies()))\n"
    )
    command = [str(pack / "venv" / "bin" / "python"), "-c", program, str(pack)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    assert done.stdout.strip() == str(sum(bool(r.checks) + bool(r.stack) for r in RULES)), done.stderr


def test_the_wheel_exports_the_same_pack(unpacked_wheel: Path, tmp_path: Path) -> None:
    """An installation has no symlink from trainfleet/policies, and its data are those of the wheel."""
    program = (
        "import sys, trainfleet.cli; print(trainfleet.__file__); sys.argv[0] = 'x'; trainfleet.cli.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "policies", "--export", str(tmp_path / "pack")],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(unpacked_wheel)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(unpacked_wheel))
    exported = {file.relative_to(tmp_path / "here"): file for file in export(tmp_path / "here")}
    found = [path for path in (tmp_path / "pack").rglob("*") if path.is_file()]
    assert {path.relative_to(tmp_path / "pack") for path in found} == exported.keys()
    for path in found:
        assert path.read_bytes() == exported[path.relative_to(tmp_path / "pack")].read_bytes()


def test_its_requirements_are_those_of_the_project(root: Path) -> None:
    project: dict[str, Any] = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    listed = [
        *project["dependencies"],
        *(each for extra in project["optional-dependencies"].values() for each in extra),
    ]
    ours = {re.match(r"[\w-]+", each).group(): each for each in listed}  # type: ignore[union-attr] # all have a name
    for requirement in REQUIREMENTS:
        name = re.match(r"[\w-]+", requirement).group()  # type: ignore[union-attr] # all have a name
        assert ours[name] == requirement


def test_a_folder_with_files_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    with pytest.raises(InputError, match="cannot be exported"):
        export(tmp_path)


@pytest.mark.parametrize("more", [("imdsv2",), ("--json",), ("--cloud", "aws"), ("--exceptions",)])
def test_the_command_exports_and_takes_nothing_else(
    trainfleet: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path, more: tuple[str, ...]
) -> None:
    refused = trainfleet("policies", "--export", str(tmp_path / "pack"), *more)
    assert (refused.returncode, (tmp_path / "pack").exists()) == (2, False)
    assert "does not go with --export" in refused.stderr
    done = trainfleet("policies", "--export", str(tmp_path / "pack"))
    assert done.returncode == 0, done.stderr
    assert f"pulumi preview --policy-pack {tmp_path / 'pack'}" in done.stdout
    assert (tmp_path / "pack" / "PulumiPolicy.yaml").is_file()
