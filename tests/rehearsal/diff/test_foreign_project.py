"""`trainfleet diff` from the built wheel, in somebody else's repository that uses random and tls."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rehearsal.diff.repos import make_repo
from tests.rehearsal.sdks import sdks

FOREIGN = Path(__file__).parents[1] / "programs" / "foreign" / "random_tls_aws"
CHANGES = (
    ("length=24", "length=32"),
    ("rsa_bits=2048", "rsa_bits=3072"),
    ('"team": "ml"', '"team": "ops"'),
)


@pytest.mark.deep
def test_the_wheel_compares_a_project_with_random_and_tls(unpacked_wheel: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(FOREIGN, source)
    (source / "Pulumi.prod.yaml").write_text("config:\n  aws:region: eu-central-1\n")
    repo = make_repo(tmp_path / "shop", source)
    for old, new in CHANGES:
        repo.replace("__main__.py", old, new)
    done = subprocess.run(
        [sys.executable, "-m", "trainfleet", "diff", ".", "--worktree", "--json"],
        cwd=repo.root,
        env=os.environ | {"PYTHONPATH": os.pathsep.join((str(unpacked_wheel), str(sdks())))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    found = {each["name"]: each for each in json.loads(done.stdout)["changes"]}
    assert {name: each["verb"] for name, each in found.items()} == {
        "key": "replace",
        "certificate": "replace",
        "login": "replace",
        "password": "replace",
        "secret": "replace",
    }
    assert found["password"]["forced_by"] == ["length"]
    assert found["key"]["loss"]["kinds"] == ["keys"]
    assert "[secret]" in json.dumps(found["certificate"]["properties"])
    assert "PRIVATE KEY" not in done.stdout
