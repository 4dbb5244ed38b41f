"""The wheel: built from the checkout, installed into an empty environment, and of use there without the
checkout.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def wheel(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, root],
        check=True,
        capture_output=True,
    )
    return next(folder.glob("*.whl"))


def test_the_wheel_has_every_package_and_the_data_they_read(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for name in (
        "trainfleet/cli.py",
        "trainfleet/infra/spec/schema.py",
        "trainfleet/infra/aws/machines.toml",
        "trainfleet/infra/aws/cluster.py",
        "trainfleet/stacks/__main__.py",
        "trainfleet/stacks/platform.schema.json",
        "trainfleet/policies/PulumiPolicy.yaml",
        "trainfleet/rehearsal/simulation/replacements/aws.toml",
        "trainfleet/rehearsal/simulation/rules/gcp.toml",
        "trainfleet/rehearsal/simulation/stateful_rules/azure-native.toml",
        "trainfleet/rehearsal/simulation/stateful_rules/kubernetes.toml",
        "trainfleet/rehearsal/diff/data_loss.toml",
        "trainfleet/rehearsal/diff/templates/diff.html",
        "trainfleet/infra/gcp/prices.toml",
        "trainfleet/infra/aws/hyperpod_on_create.sh",
        "trainfleet/training/trainer/loop.py",
        "trainfleet/recipes/lm-small.yaml",
        "trainfleet/pins/engine/go.mod",
        "trainfleet/pins/engine/go.sum",
    ):
        assert name in names
    assert {name.partition("/")[0] for name in names if ".dist-info" not in name} == {"trainfleet"}


def test_the_wheel_installs_in_an_empty_environment_and_works_there(
    wheel: Path, root: Path, tmp_path: Path
) -> None:
    venv.create(tmp_path / "empty", with_pip=False)
    python = tmp_path / "empty" / "bin" / "python"
    pins = tmp_path / "pins.txt"
    pins.write_text(
        "\n".join(
            line.split(" ")[0]
            for line in (root / "requirements.lock").read_text().splitlines()
            if line[:1].isalnum() and "==" in line
        )
    )
    uv = Path(sys.executable).with_name("uv")
    subprocess.run(
        [uv, "pip", "install", "--quiet", "--python", python, "--constraints", pins, wheel],
        check=True,
        capture_output=True,
    )
    (tmp_path / "stacks").mkdir()
    (tmp_path / "stacks" / "Pulumi.aws-prod.yaml").write_text(
        (root / "stacks" / "Pulumi.aws-prod.yaml").read_text()
    )
    command = python.with_name("trainfleet")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    for arguments, expected in (
        (["--version"], "trainfleet"),
        (["machines", "--cloud", "aws", "--accelerator", "H100"], "p5.48xlarge"),
        (["spec", "check", "aws-prod"], "aws-prod"),
        (["spec", "schema"], "PlatformSpec"),
    ):
        done = subprocess.run(
            [command, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert expected in done.stdout
    trained = subprocess.run(
        [command, "train", "lm-tiny"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert trained.returncode == 3
    assert "trainfleet[train]" in trained.stderr
